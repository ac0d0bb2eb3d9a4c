"""`repflow demo`: the built-in models, trained and random, measured and probed; one screen, and a page."""

from __future__ import annotations

import gc
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repflow.cli.console import DONE, FAILED, ModelLines, complain, note, quiet, stdout_console
from repflow.cli.options import AS_JSON
from repflow.cli.report import write_page
from repflow.cli.study import RUNS
from repflow.spec.zoo import NAMES, shown_models
from repflow.store.disk import check_place, make_folder
from repflow.studies.demo import PLACE, Job, by_model, jobs, load_job, run_job
from repflow.studies.probe.config import ProbeConfig
from repflow.studies.recency.config import RecencyConfig

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repflow.core.results import Result
    from repflow.papers.findings import Judged, Reading

FOLDER, PAGE = "demo", "demo.html"
COMMAND = 52
"""Letters of a command that leave room on a line for what it does."""


def command(
    full: Annotated[
        bool,
        typer.Option("--full", help="complete tables: both tasks, all lengths, schemes and models; hours"),
    ] = False,
    out: Annotated[Path, typer.Option("--out", help="folder of runs; the demo's are in its folder demo")] = RUNS,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="all tables, a verdict by model, and paper 1's findings one by one")
    ] = False,
    as_json: AS_JSON = False,
) -> None:
    """Show what repflow measures, on six small built-in models: alike tokens, reach, what can be read, random twins.

    Takes about a minute on two quiet cores (several on a busy machine), needs no network, prints one screen and writes
    a page. An interrupted demo resumes.
    """
    check_place(out)
    make_folder(out / FOLDER)  # one error where nothing can be written, not one of every run
    models = shown_models()
    if missing := [name for name in NAMES if name not in models]:
        note(f"warning: missing from this zoo, so not shown: {', '.join(missing)}")
    planned = jobs(full=full, models=models)
    time_needed = "hours" if full else "about a minute on two quiet cores"
    note(f"demo: {len(planned)} runs of {len(models)} small models into {out / FOLDER}; {time_needed}")
    results = run_all(planned, out / FOLDER)
    failed = [job.label for job in planned if job.name not in results]
    readings, judged = judge_all(list(results.values()))
    if results:
        write_page([out / FOLDER / name for name in results], out / PAGE, papers=True)
    shown = Shown(planned, results, readings, judged)
    if as_json:
        print_json(shown, out, failed)
    else:
        show(shown, verbose=verbose)
        if failed:
            print(f"\n{len(failed)} of {len(planned)} runs failed and are not in these results: {'; '.join(failed)}")
        print_next(out, "hybrid" if "hybrid" in models else models[0], page=bool(results))
    raise typer.Exit(FAILED if failed else DONE)


@dataclass(frozen=True)
class Shown:
    """What there is to show: the runs planned, their results by name, and what they say to the findings."""

    planned: Sequence[Job]
    results: dict[str, Result]
    readings: Sequence[Reading]
    judged: Sequence[Judged]


def print_json(shown: Shown, out: Path, failed: Sequence[str]) -> None:
    """Everything as one object."""
    from repflow.papers.findings import known_readings
    from repflow.report.data.summary import summaries_of
    from repflow.report.terminal.demo import demo_json, reaches

    results = list(shown.results.values())
    folders = [str(out / FOLDER / name) for name in shown.results]
    content = demo_json(
        shown.readings, shown.judged, folders, reaches(results, PLACE), known_readings(), PLACE, summaries_of(results)
    )
    content |= {"failed": list(failed), "page": str(out / PAGE) if results else None}
    print(json.dumps(content, allow_nan=False), flush=True)


def print_next(out: Path, name: str, *, page: bool) -> None:
    """What to open, and what to type."""
    lines = [("open", str(out / PAGE), "figures, in a browser")] if page else []
    lines += [
        ("type", f"repflow measure zoo:{name}", "or your own folder"),
        ("", f"repflow diagnose zoo:{name} --samples 300 --seeds 3", "what is lost, where"),
        ("", "repflow demo --verbose", "every table, verdict"),
        ("", f"repflow list {shlex.quote(str(out / FOLDER))}", "the runs"),
    ]
    wide = max(len(text) for _, text, _ in lines if len(text) <= COMMAND)
    print()
    for head, text, what in lines:
        print(f"{head:<5} {text:<{wide}}  {what}" if len(text) <= COMMAND else f"{head:<5} {text}")


def run_all(planned: Sequence[Job], out: Path) -> dict[str, Result]:
    """All runs by name, model by model; one that fails is reported and left out, and the others continue."""
    results = {}
    groups = by_model(planned)
    with quiet(), ModelLines([(name, len(own)) for name, own in groups.items()]) as lines:
        for name, own in groups.items():
            model = None
            for job in own:
                trained = job.config.init == "trained"
                try:
                    progress = lines.begin(name, job.label)
                    if trained and model is None:
                        model = load_job(job)
                    results[job.name] = run_job(job, out, progress, model if trained else None)
                except Exception as error:  # noqa: BLE001  one run must not take the others down
                    complain(error, job.label)
                lines.end(name)
            del model
            gc.collect()  # the model is free before the next one is loaded
    return results


def judge_all(results: Sequence[Result]) -> tuple[list[Reading], list[Judged]]:
    """Readings of these runs, and the findings with what the package knows of further trainings."""
    from repflow.papers.findings import judge, known_readings, merge, read_results

    own = read_results(results)
    return own, judge(merge(own, known_readings()), place=PLACE)


def show(shown: Shown, *, verbose: bool) -> None:
    """Print one screen; where asked, all tables, verdicts and findings before it."""
    from repflow.report.data.summary import summaries_of
    from repflow.report.terminal.demo import first_screen, verdict_line

    console = stdout_console()
    if verbose:
        show_everything(shown, console)
    for part in first_screen(summaries_of(list(shown.results.values())), console.width):
        console.print(part, highlight=False)
    print(verdict_line(shown.judged, console.width))


def show_everything(shown: Shown, console: Any) -> None:
    """Print every table, a verdict by model and the findings."""
    from repflow.papers.reading import further_trainings, known_readings
    from repflow.report.terminal.demo import findings_text, model_verdict, reaches, verdict_text
    from repflow.spec.zoo import record

    for title, names in tables(shown.planned):
        chosen = [shown.results[name] for name in names if name in shown.results]
        if chosen:
            console.print(title, markup=False, highlight=False)
            console.print(table_of(chosen))
    reach, known = reaches(list(shown.results.values()), PLACE), known_readings()
    lines = [
        model_verdict(
            reading,
            PLACE,
            record(reading.model, "evaluation").get("retrieval"),
            reach.get(reading.model),
            further_trainings(reading, known, PLACE),
        )
        for reading in shown.readings
    ]
    print(verdict_text(lines, console.width), end="\n\n")
    print(findings_text(shown.judged, console.width), end="\n\n")


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
