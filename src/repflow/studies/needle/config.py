"""Options of `repflow needle`."""

from __future__ import annotations

from dataclasses import dataclass

from repflow.core.errors import InputError, nearest, teach
from repflow.spec.length import parse_length
from repflow.studies.engine.naming import Names, spell, weight_words
from repflow.studies.engine.parts import (
    AnswerTokens,
    Batches,
    Chat,
    FirstToken,
    Lengths,
    Matching,
    OneModel,
    Sampling,
    ablation_names,
    defaults,
    listed,
    option,
    words,
)
from repflow.tasks.needle.needles import CANDIDATES, check_count
from repflow.tasks.needle.prompts import INSTRUCTION, NeedleSweep

LENGTHS = ("256", "512")
POSITIONS = ("0", "0.25", "0.5", "0.75", "1")
MATCHES = ("text", "tokens")


@dataclass
@defaults(
    {
        "samples": "needles per cell, the same in every cell",
        "seed": "seed of needles, documents and random weights",
        "match": "several models get the same text, or each as many tokens as it may have (tokens)",
        "answer_tokens": "most tokens of the greedy answer; default 8 more than the longest candidate, 0 for none",
    },
    samples=16,
    lengths=listed(
        f"tokens per prompt, repeated or comma separated; 1K is 1,000; default {', '.join(LENGTHS)}",
        LENGTHS,
        aliases=("--length",),
    ),
)
class NeedleConfig(Batches, FirstToken, Matching, Chat, AnswerTokens, Sampling, Lengths, OneModel):
    """What to look for; the fields are the command line's options and the `config` of the Result."""

    positions: list[str] = listed(
        "where the needle is placed, 0 first and 1 last, repeated or comma separated; default " + ", ".join(POSITIONS),
        POSITIONS,
        aliases=("--position",),
    )
    candidates: int = option(CANDIDATES, "words ranked for each needle: the planted, the true and others")
    needles: str | None = option(None, "FILE.jsonl of own needles: statement, question, planted, true, others")
    haystack: list[str] = listed("text file to hide needles in, may be given several times; default made-up prose")
    skip_told: bool = option(False, "draw other needles instead of refusing those whose words occur in the haystack")
    instruction: str = option(INSTRUCTION, "text before the question; '' for none")

    def __post_init__(self) -> None:
        """Convert lists to their canonical form, so that the same request makes the same run."""
        self.lengths = [str(length) for length in sorted({parse_length(word) for word in words(self.lengths)})]
        self.positions = [f"{value:.15g}" for value in sorted({_position(word) for word in words(self.positions)})]
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


def _position(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise InputError(teach("--positions from 0 to 1", repr(word), "0 is the document's beginning, 1 its end"))
    return value


def check_words(config: NeedleConfig) -> None:
    """Refuse what can be seen to be wrong before a model is loaded, which may take minutes."""
    from repflow.spec.request import check_least
    from repflow.studies.engine.loading import check_files, check_loading
    from repflow.tasks.make import check_size
    from repflow.tasks.prompt import BOS_POLICIES

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
        raise InputError(teach("--haystack FILE with --skip-told", "none", "made-up prose never contains an answer"))
    if config.skip_told and config.needles:
        raise InputError(teach("--skip-told with needles drawn here", "--needles", "leave one of them out"))
    check_files(*config.haystack, *([config.needles] if config.needles else []))


def names(config: NeedleConfig) -> Names:
    """Names of a run: model, weights, parts taken out and the largest length.

    >>> few = NeedleConfig(model="gpt2", samples=2, positions=["0", "1"])
    >>> names(NeedleConfig(model="gpt2")).current, names(few).current
    ('gpt2-needle-512', 'gpt2-needle-512-51738dd1')
    """
    parts = [*weight_words(config), "needle", *config.lengths[-1:]]
    return spell(config, parts, ("init", "init_seed", "ablate"))
