"""What `repflow needle` may be asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError, nearest, teach
from repflow.spec.length import parse_length
from repflow.studies.engine.fields import option, said, same
from repflow.studies.measure import ablation_names
from repflow.tasks.needle.needles import CANDIDATES, check_count
from repflow.tasks.needle.prompts import INSTRUCTION, NeedleSweep

LENGTHS = ("256", "512")
POSITIONS = ("0", "0.25", "0.5", "0.75", "1")
MATCHES = ("text", "tokens")


@dataclass
class NeedleConfig:
    """What to look for; the fields are the command line's options and the `config` of the Result."""

    model: str = same("model")
    lengths: list[str] = field(
        default_factory=lambda: list(LENGTHS),
        metadata={
            "help": f"tokens per prompt, repeated or comma separated; default {', '.join(LENGTHS)}",
            "aliases": ("--length",),
        },
    )
    positions: list[str] = field(
        default_factory=lambda: list(POSITIONS),
        metadata={
            "help": "where the needle stands, 0 first and 1 last, repeated or comma separated; default "
            f"{', '.join(POSITIONS)}",
            "aliases": ("--position",),
        },
    )
    samples: int = option(16, "needles per cell, the same in every cell")
    candidates: int = option(CANDIDATES, "words ranked for each needle: the planted, the true and others")
    needles: str | None = option(None, "FILE.jsonl of own needles: statement, question, planted, true, others")
    haystack: list[str] = field(
        default_factory=list,
        metadata={"help": "text file to hide needles in, may be given several times; default made-up prose"},
    )
    skip_told: bool = option(False, "draw other needles instead of refusing those whose words stand in the haystack")
    instruction: str = option(INSTRUCTION, "what stands before the question; '' for nothing")
    answer_tokens: int | None = option(
        None, "most tokens of the greedy answer; default 8 more than the longest candidate, 0 for none"
    )
    seed: int = option(0, "seed of needles, documents and random weights")
    chat_template: bool = same("chat_template")
    match: str = option("text", "several models get the same text, or each as many tokens as it may have (tokens)")
    match_with: list[str] = field(default_factory=list, metadata=said("match_with"))
    init: str = same("init")
    init_seed: int | None = same("init_seed")
    ablate: list[str] = field(default_factory=list, metadata=said("ablate"))
    bos: str = same("bos")
    tokenizer: str | None = same("tokenizer")
    dtype: str | None = same("dtype")
    device: str | None = same("device")
    device_map: str | None = same("device_map")
    scan: str = same("scan")
    batch_size: int | None = same("batch_size")
    allow_float16: bool = same("allow_float16")
    trust_remote_code: bool = same("trust_remote_code")

    def __post_init__(self) -> None:
        """Bring lists into their canonical form, so that the same request makes the same run."""
        self.lengths = [str(length) for length in sorted({parse_length(word) for word in _words(self.lengths)})]
        self.positions = [f"{value:.15g}" for value in sorted({_position(word) for word in _words(self.positions)})]
        self.haystack = [str(file) for file in ([self.haystack] if isinstance(self.haystack, str) else self.haystack)]
        self.ablate = ablation_names(self.ablate)

    @property
    def states(self) -> str:
        """No states are read; the type of configs that load models asks for their kind."""
        return "residual"

    @property
    def sweep(self) -> NeedleSweep:
        """Lengths and positions as numbers."""
        places = tuple(float(word) for word in self.positions)
        return NeedleSweep(tuple(map(int, self.lengths)), places, self.instruction)


def _words(given: Any) -> list[str]:
    listed = [given] if isinstance(given, str | int | float) else given
    return [part.strip() for value in listed for part in str(value).split(",") if part.strip()]


def _position(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise InputError(teach("--positions from 0 to 1", repr(word), "0 is the document's beginning, 1 its end"))
    return value


def check_request(config: NeedleConfig, name: str | None = None) -> None:
    """Refuse what can be seen to be wrong before a model is loaded, which may take minutes."""
    from repflow.spec.request import check_least
    from repflow.store.name import check_name
    from repflow.studies.engine.loading import check_files, check_loading
    from repflow.tasks.make import check_size
    from repflow.tasks.prompt import BOS_POLICIES

    if name is not None:
        check_name(name)
    check_loading(config)
    for flag, values in (("--lengths", config.lengths), ("--positions", config.positions)):
        if not values:
            raise InputError(teach(f"{flag} with a value", "none", "leave it out for the default"))
    for length in map(int, config.lengths):
        check_size(length, config.samples)
    check_count(config.candidates)
    check_least([("--answer-tokens", config.answer_tokens, 0)])
    for flag, value, known in (("--match", config.match, MATCHES), ("--bos", config.bos, BOS_POLICIES)):
        if value not in known:
            raise InputError(teach(f"{flag} {', '.join(known)}", repr(value), nearest(value, known)))
    if config.skip_told and not config.haystack:
        raise InputError(teach("--haystack FILE with --skip-told", "none", "made-up prose never tells an answer"))
    if config.skip_told and config.needles:
        raise InputError(teach("--skip-told with needles drawn here", "--needles", "leave one of them out"))
    check_files(*config.haystack, *([config.needles] if config.needles else []))


def run_name(config: NeedleConfig) -> str:
    """Folder name of a run, as one safe path component: model, weights, parts taken out and the largest length.

    Eight digits stand for all other options that are not at their default: a quick try must not block the real run.

    >>> run_name(NeedleConfig(model="gpt2")), run_name(NeedleConfig(model="gpt2", samples=2, positions=["0", "1"]))
    ('gpt2-needle-512', 'gpt2-needle-512-51738dd1')
    """
    from repflow.store import safe_name
    from repflow.studies.probe.config import option_tag

    parts = [Path(config.model.removeprefix("config:")).stem if config.model.startswith("config:") else config.model]
    parts += [config.init] if config.init != "trained" else []
    parts += [f"init{config.init_seed}"] if config.init_seed is not None else []
    parts += ["ablated", *config.ablate] if config.ablate else []
    parts += ["needle", *config.lengths[-1:], option_tag(config, NAMED)]
    return safe_name("-".join(filter(None, parts)))


NAMED = frozenset(("model", "init", "init_seed", "ablate"))
"""Options that the name of a run spells out."""
