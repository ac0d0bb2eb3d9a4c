"""`repflow demo`: the built-in models, trained and random, measured and probed, beside what the papers found."""

from __future__ import annotations

import gc
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repflow.cli.console import DONE, FAILED, ProgressLine, complain, note, quiet, stdout_console
from repflow.cli.options import AS_JSON
from repflow.cli.report import write_page
from repflow.cli.study import RUNS
from repflow.spec.zoo import NAMES, shown_models
from repflow.store.disk import check_place, make_folder
from repflow.studies.demo import PLACE, Job, jobs, run_job
from repflow.studies.probe.config import ProbeConfig
from repflow.studies.recency.config import RecencyConfig

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repflow.core.results import Result
    from repflow.papers.findings import Judged, Reading

FOLDER, PAGE = "demo", "demo.html"


def command(
    full: Annotated[
        bool,
        typer.Option("--full", help="complete tables: both tasks, all lengths, schemes and models; hours"),
    ] = False,
    out: Annotated[Path, typer.Option("--out", help="folder of runs; the demo's are in its folder demo")] = RUNS,
    as_json: AS_JSON = False,
) -> None:
    """Show the phenomenon on the built-in models: flow, random twins, probes, reach, and paper 1's eight findings.

    Takes a minute or two on two cores, needs no network, and ends with a page to look at. An interrupted demo
    resumes.
    """
    check_place(out)
    make_folder(out / FOLDER)  # one error where nothing can be written, not one of every run
    models = shown_models()
    if missing := [name for name in NAMES if name not in models]:
        note(f"warning: missing from this zoo, so not shown: {', '.join(missing)}")
    planned = jobs(full=full, models=models)
    note(f"demo: {len(planned)} runs of {len(models)} small models trained by repflow, into {out / FOLDER}")
    results = run_all(planned, out / FOLDER)
    failed = [job.label for job in planned if job.name not in results]
    readings, judged = judge_all(list(results.values()))
    if results:
        write_page([out / FOLDER / name for name in results], out / PAGE)
    if as_json:
        from repflow.papers.findings import known_readings
        from repflow.report.terminal.demo import demo_json, reaches

        folders = [str(out / FOLDER / name) for name in results]
        reach = reaches(list(results.values()), PLACE)
        content = demo_json(readings, judged, folders, reach, known_readings(), PLACE)
        content |= {"failed": failed, "page": str(out / PAGE) if results else None}
        print(json.dumps(content, allow_nan=False), flush=True)
    else:
        show(planned, results, readings, judged)
        if failed:
            print(f"\n{len(failed)} of {len(planned)} runs failed and are not in these results: {'; '.join(failed)}")
        print(f"\nwrote {out / FOLDER}")
        name = "hybrid" if "hybrid" in models else models[0]
        print(f"next: repflow list {shlex.quote(str(out / FOLDER))}; repflow zoo card {name}", end="; ")
        print(f"repflow diagnose zoo:{name} --samples 300 --seeds 3")
        if results:
            print(f"open {out / PAGE} in a browser: the same results as figures, with the findings explained")
    raise typer.Exit(FAILED if failed else DONE)


def run_all(planned: Sequence[Job], out: Path) -> dict[str, Result]:
    """All runs by name, one after the other; one that fails is reported and left out, and the others continue."""
    results = {}
    for place, job in enumerate(planned, start=1):
        try:
            with quiet(), ProgressLine(f"{place}/{len(planned)} {job.label}") as progress:
                results[job.name] = run_job(job, out, progress)
        except Exception as error:  # noqa: BLE001  one run must not take the others down
            complain(error, job.label)
        finally:
            gc.collect()  # the model is free before the next one is loaded
    return results


def judge_all(results: Sequence[Result]) -> tuple[list[Reading], list[Judged]]:
    """Readings of these runs, and the findings with what the package knows of further trainings."""
    from repflow.papers.findings import judge, known_readings, merge, read_results

    own = read_results(results)
    return own, judge(merge(own, known_readings()), place=PLACE)


def show(
    planned: Sequence[Job], results: dict[str, Result], readings: Sequence[Reading], judged: Sequence[Judged]
) -> None:
    """Print tables, verdicts and findings."""
    from repflow.papers.reading import further_trainings, known_readings
    from repflow.report.terminal.demo import findings_text, model_verdict, reaches, verdict_text
    from repflow.spec.zoo import record

    console = stdout_console()
    for title, names in tables(planned):
        chosen = [results[name] for name in names if name in results]
        if chosen:
            console.print(title, markup=False, highlight=False)
            console.print(table_of(chosen))
    reach, known = reaches(list(results.values()), PLACE), known_readings()
    lines = [
        model_verdict(
            reading,
            PLACE,
            record(reading.model, "evaluation").get("retrieval"),
            reach.get(reading.model),
            further_trainings(reading, known, PLACE),
        )
        for reading in readings
    ]
    print(verdict_text(lines, console.width))
    print()
    print(findings_text(judged, console.width))


def table_of(chosen: Sequence[Result]) -> RenderableType:
    """Results of one kind side by side."""
    from repflow.report.terminal import measure, probe, recency

    if "log_influence" in chosen[0]:
        return recency.side_by_side(chosen)
    return probe.side_by_side(chosen) if "probe_accuracy" in chosen[0] else measure.side_by_side(chosen)


def tables(planned: Sequence[Job]) -> list[tuple[str, list[str]]]:
    """Titles and run names of the tables: a table for each task, length and kind of run."""
    by_title: dict[str, list[str]] = {}
    for job in planned:
        about = job.config
        place = f"{about.task}, {about.length} tokens"
        what = f"Flow, {about.states} states"
        if isinstance(about, ProbeConfig):
            what = f"Probes for the {about.label}"
        elif isinstance(about, RecencyConfig):
            what = "How far back tokens reach"
        by_title.setdefault(f"{what}: {place}, {about.samples} prompts", []).append(job.name)
    return list(by_title.items())
