"""Depth, remedies and hybrids (docs/laboratories/depth.md and remedies.md), in parts that can be carried.

    python -m tools.depth.run plan                                                        what every phase costs
    python -m tools.depth.run prepare --corpus TRAIN --held-out TEXT --text runs/depth-text     where the texts are
    python -m tools.depth.run screen --study depth    --out runs/depth [--seconds 540]    two rates of every depth
    python -m tools.depth.run seeds  --study depth    --out runs/depth [--seconds 540]    two new seeds
    python -m tools.depth.run rates  --study remedies --out runs/depth [--seconds 540]    rates of both bases
    python -m tools.depth.run screen --study remedies --out runs/depth [--seconds 540]    strengths, one seed
    python -m tools.depth.run seeds  --study remedies --out runs/depth [--seconds 540]    three new seeds
    python -m tools.depth.run screen --study hybrids  --out runs/depth [--seconds 540]    4 ratios x 3 places
    python -m tools.depth.run seeds  --study hybrids  --out runs/depth [--seconds 540]    best, middle and worst
    python -m tools.depth.run screen --study norms    --out runs/depth [--seconds 540]    rates without norms
    python -m tools.depth.run seeds  --study norms    --out runs/depth [--seconds 540]    three new seeds, kept
    python -m tools.depth.run probes --out runs/depth                                     probes of these, same machine
    python -m tools.depth.run table  --out runs/depth                    docs/laboratories/depth.json from these

Extensions have the same phases: `--study depth-third` and `depth-rate` (seeds alone), `depth-mamba2`,
`depth-transformer`, `remedies-more`, `hybrids-low` (screen alone). Each phase is one run of `repflow architecture`; run
it again until it says that it is done. `--dry-run` says what it costs. `--keep FOLDER` packs runs and half-trained
models into parts of 15 MiB when the time is up, so that they can be carried to another machine, where `--from FOLDER`
unpacks them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from repflow.store import load_result, read_record
from repflow.studies.architecture.config import ArchitectureCell, ArchitectureConfig
from repflow.studies.architecture.fit import fits, onset_depth
from repflow.studies.architecture.study import STUDY
from tools.depth.plan import IDS, PAIRS, PLANS, Plan
from tools.depth.probe import probe_models, read_probes
from tools.phases import carry_options, phase_or_table, run_phase, trained_cells

PHASES = ("rates", "screen", "seeds")
PROBED = "norms"
"""Study whose models are kept and probed."""
STEPS, BATCH_TOKENS, SCREENED = 2400, 16384, 3
"""Steps of the last phase and of hybrids, tokens of a step, and by what the steps of all others are divided."""
NUMBERS = ("half_reach", "kappa", "smoothness", "stability", "parameters", "own_width", "diverged_at", "loss_drop")
SETTINGS = (
    "steps",
    "batch",
    "decay",
    "clip",
    "warmup",
    "recall_share",
    "recall_ids",
    "recall_pairs",
    "recall_rows",
    "match_row",
)


def config_of(plan: Plan, phase: str, options: argparse.Namespace) -> ArchitectureConfig:
    """The request of a phase; what it costs can be asked before the phases that it decides by are run."""
    missing = [name for name in plan.needs(phase) if not (options.out / name / "result.json").exists()]
    if missing and not options.dry_run:
        raise SystemExit(f"run {missing[0]} first")
    earlier = {name: assumed(name) if name in missing else tested(options.out, name) for name in plan.needs(phase)}
    settings = plan.settings
    last = phase == "seeds" or plan.study == "hybrids"  # all hybrids are judged, not only those that are chosen
    steps = options.steps if last else max(1, options.steps // SCREENED)
    more: dict[str, Any] = {"text": [str(options.text)], "seconds": options.seconds, "device": options.device}
    more |= {"recall_share": 0.5, "recall_ids": options.recall_ids, "recall_rows": options.recall_rows}
    more["recall_pairs"] = options.recall_pairs.split(",")
    more |= {"match_row": settings.match[0], "match_layers": settings.match[1], "head_dim": options.head_dim}
    more |= {"readings": 0, "warmup": 0.1, "checkpoint": 200, "heads": options.heads, "together": 16}
    more |= {"flow_samples": options.flow_samples if last else 0}
    more |= {"keep_models": plan.study == PROBED and phase == "seeds"}
    batch = max(1, options.batch_tokens // max(settings.windows))
    return ArchitectureConfig(cells=plan.cells(phase, earlier), steps=steps, batch=batch, **more)


def assumed(name: str) -> list[dict[str, Any]]:
    """Models of a phase as if all had ended alike, by which the cost of later ones can be said before it is run."""
    plan, phase = next((plan, own) for plan in PLANS.values() for own in plan.phases if plan.name(own) == name)
    alike = {"last_loss": 0.0, "loss": 0.0, "validation_loss": 0.0, "recall": [0.0]}
    words = plan.cells(phase, {before: assumed(before) for before in plan.needs(phase)})
    return [{**ArchitectureCell.parse(word).values(), **alike} for word in words]


def tested(out: Path, name: str) -> list[dict[str, Any]]:
    """Models of a run that are trained and tested, whether or not all are."""
    return [described(word, arrays) for word, arrays in trained_cells(out, name)]


def described(word: str, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Numbers of one model, rounded: the test text is the first, that for validation the second."""
    cell: dict[str, Any] = {"cell": word, **ArchitectureCell.parse(word).values()}
    cell["last_loss"] = _plain(arrays["loss"][-1])
    if "perplexity" in arrays:
        losses = np.log(arrays["perplexity"])
        cell |= {"loss": _plain(losses[0]), "validation_loss": _plain(losses[-1])}
        cell |= {"recall": _plain(arrays["recall"])} if "recall" in arrays else {}
        places = arrays["loss_by_place"]
        spans = [part for part in np.array_split(places, 8) if len(part)]
        cell["loss_by_place"] = [_plain(part.mean()) for part in spans]
    if "token_norm" in arrays:
        cell["first_growth"] = _plain(arrays["token_norm"][1] / arrays["token_norm"][0])
    if "token_similarity" in arrays:
        cell["similarity"] = _plain(arrays["token_similarity"])
        cell["onset"] = _plain(np.array(onset_depth(arrays["token_similarity"])))
    return cell | {name: _plain(arrays[name]) for name in NUMBERS if name in arrays}


def _plain(values: Any) -> Any:
    """Plain numbers of seven digits, None for NaN: tables round them once more."""
    if np.ndim(values):
        return [_plain(value) for value in values]
    return float(f"{float(values):.7g}") if np.isfinite(values) else None


def table(out: Path) -> dict[str, Any]:
    """Numbers of all phases that have begun, also of earlier forms of a study; a command for every model."""
    numbers: dict[str, Any] = {}
    for facts in sorted(out.glob("*.facts/facts.json")):
        name = facts.parent.stem
        known = json.loads(facts.read_text(encoding="utf-8"))
        done = (out / name / "result.json").exists()
        cells = [cell | read_probes(out, name, cell["cell"]) for cell in tested(out, name)]
        effects = {"fits": fitted(out / name)} if done else {}
        numbers[name] = {"finished": done, **known, **effects, "cells": cells}
    return numbers


def fitted(run: Path) -> dict[str, Any]:
    """What each factor of a finished run does, rounded; fitted again, as stored fits may be of an earlier version."""
    result = load_result(run)
    if "token_similarity" in result:
        result.arrays["onset_depth"] = np.array([onset_depth(own) for own in result["token_similarity"]])
    effects = fits(result, read_record(run).config["recall_rows"])
    for fit in effects.values():
        for effect in fit.get("effects", {}).values():
            effect |= {side: _plain(effect[side]) for side in ("mean", "low", "high")}
    return effects


def note(out: Path, name: str, config: ArchitectureConfig) -> None:
    """Keep what is known of a run beside it, in a folder, so that it is carried."""
    import torch

    from repflow.version import __version__

    facts: dict[str, Any] = {"models": len(config.grid()), "repflow": __version__, **STUDY.facts(config)["data"]}
    facts |= {key: getattr(config, key) for key in SETTINGS}
    facts["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    of_length = {cell.length: cell for cell in config.grid()}
    facts["commands"] = {length: config.command(cell).replace(str(cell), "CELL") for length, cell in of_length.items()}
    folder = out / f"{name}.facts"
    folder.mkdir(exist_ok=True)
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def train(options: argparse.Namespace) -> None:
    """One phase, as far as the time allows."""
    plan = PLANS[options.study]
    if options.phase == "probes":
        name = PLANS[PROBED].name("seeds")
        words = [cell["cell"] for cell in tested(options.out, name)]
        if not words:
            raise SystemExit(f"run {name} first")
        probe_models(options.out, name, words, samples=options.probe_samples, device=options.device)
        return
    if options.phase not in plan.phases:
        raise SystemExit(f"{options.study} has the phases {', '.join(plan.phases)}, not {options.phase}")
    name, config = plan.name(options.phase), config_of(plan, options.phase, options)
    if options.dry_run:
        from repflow.studies.laboratory.cost import cost_words, estimate

        print(f"{name}: {cost_words(STUDY, config)}", *estimate(STUDY, config).lines(options.seconds), sep="\n")
        return

    def show() -> None:
        for cell in tested(options.out, name):
            recall = None if cell.get("recall") is None else np.round(cell["recall"], 3).tolist()
            print(cell["cell"], "loss", cell.get("loss"), "validation", cell.get("validation_loss"), "recall", recall)

    note(options.out, name, config)
    run_phase(STUDY, config, name, options, show)


def costs(options: argparse.Namespace) -> None:
    """Say what every phase that is not finished takes, its trainings one after another."""
    from repflow.studies.laboratory.cost import cost_words, gpu_seconds

    if not options.text.exists():
        raise SystemExit(f"no text in {options.text}: run prepare, or name the folder it wrote with --text")
    options.dry_run = True
    for word, plan in PLANS.items():
        for phase in plan.phases:
            if not (options.out / plan.name(phase) / "result.json").exists():
                config = config_of(plan, phase, options)
                seconds = f"about {gpu_seconds(STUDY, config):.0f} s of one H200"
                print(f"{phase} --study {word}: {cost_words(STUDY, config)}, {seconds}", flush=True)


def prepare(options: argparse.Namespace) -> None:
    """Token ids of the texts in a folder: to train, to test, and to choose strengths on."""
    from repflow.tasks.documents import read_documents
    from repflow.training.text import encode_documents, text_data
    from repflow.training.text.tokens import TextData

    data = text_data(options.corpus, held_out=options.held_out)
    documents = read_documents(options.held_out)
    halves = [encode_documents(documents[side::2], data.tokenizer) for side in (0, 1)]
    train_part = data.train.some(options.most_tokens)
    whole = TextData(train_part, halves[0], {"validation": halves[1]}, data.tokenizer, data.source)
    whole.save(options.text)
    print({name: (len(part), len(part.ids)) for name, part in whole.parts().items()})


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=("plan", "prepare", *PHASES, "probes", "table"))
    parser.add_argument("--study", choices=list(PLANS), default="depth")
    parser.add_argument("--out", type=Path, default=Path("runs/depth"))
    parser.add_argument("--text", type=Path, default=Path("runs/depth-text"), help="folder that prepare wrote")
    parser.add_argument("--corpus", type=Path, help="text to train on, for prepare")
    parser.add_argument("--held-out", type=Path, help="text whose documents test and validate by turns, for prepare")
    parser.add_argument("--most-tokens", type=int, help="of the text to train on, for prepare")
    carry_options(parser)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument(
        "--steps", type=int, default=STEPS, help=f"of the phase seeds and of hybrids; others have 1/{SCREENED}"
    )
    parser.add_argument("--batch-tokens", type=int, default=BATCH_TOKENS)
    parser.add_argument("--recall-ids", type=int, default=IDS)
    parser.add_argument("--recall-pairs", default=",".join(map(str, PAIRS)))
    parser.add_argument("--recall-rows", type=int, default=500)
    parser.add_argument("--flow-samples", type=int, default=16)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=16)
    parser.add_argument("--probe-samples", type=int, default=4000, help="prompts of a probe, for probes")
    parser.add_argument("--to", type=Path, default=Path("docs/laboratories/depth.json"))
    return parser.parse_args()


def main() -> None:
    """Run a phase, or gather all of them."""
    options = parsed()
    if options.phase in ("plan", "prepare"):
        {"plan": costs, "prepare": prepare}[options.phase](options)
        return
    phase_or_table(options, train, table)


if __name__ == "__main__":
    main()
