"""What `repflow recall` may be asked for: which stacks, on which rows, how long; no torch.

A row names the mixer of a stack:

    none/16          S6 with 16 states               both/16        of them one with decay 1, one with decay 0
    both+/16         those two added: 18 states      both+@-1000/16 decay exp(−1000 Δ) in place of 0
    placebo/16       first and last state frozen     gla, ssd/64, softmax_attention: any other mixer

A cell is one model: row:layers:width:initialisation:rate:seed.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

from repflow.core.errors import InputError, nearest, teach
from repflow.studies.engine.naming import Names, option_tag
from repflow.studies.engine.parts import Device, FlowSamples, Inits, Lengths, defaults, listed, option, words
from repflow.tasks.recall import FILLERS, POWER, RecallSetting

POLES = ("none", "one", "zero", "both", "placebo")
INITS = ("right", "published")
MIXERS = (
    *("softmax_attention", "linear_attention", "retention", "gla", "s4d", "h3"),
    *("ssd", "rwkv4", "rwkv5", "rg_lru"),
)
ROW = re.compile(r"(?P<word>[a-z_0-9]+?)(?P<added>\+)?(?:@(?P<rate>-[0-9.]+))?(?:/(?P<state>[0-9]+))?")
STATE = 16


@dataclass(frozen=True)
class Row:
    """A mixer, by its word.

    Attributes:
        word: as it was typed.
        mixer: entry of a stack's configuration.
    """

    word: str
    mixer: dict[str, Any]


def parse_row(word: str) -> Row:
    """The mixer that a row names.

    >>> parse_row("both+@-1000/16").mixer["zero_rate"], parse_row("gla").mixer
    (-1000.0, {'name': 'gla'})
    """
    match = ROW.fullmatch(word)
    name = match["word"] if match else word
    if match is None or name not in (*POLES, *MIXERS):
        remedy = nearest(name, (*POLES, *MIXERS))
        raise InputError(teach("a row such as none/16, both+/16, placebo/16 or gla", repr(word), remedy))
    state = None if match["state"] is None else int(match["state"])
    if name in MIXERS:
        if match["added"] or match["rate"]:
            raise InputError(teach("poles of S6 alone in a row", repr(word), "write both+ or both@-1000"))
        return Row(word, {"name": name} | ({} if state is None else {"state": state}))
    mixer: dict[str, Any] = {"name": "s6", "state": STATE if state is None else state}
    mixer |= {} if name == "none" else {"polarize": "both" if name == "placebo" else name}
    mixer |= {"placebo": True} if name == "placebo" else {}
    mixer |= {"pole_states": "added"} if match["added"] else {}
    mixer |= {"zero_rate": float(match["rate"])} if match["rate"] else {}
    fixed = 0 if name == "none" else 2 if name in ("both", "placebo") else 1
    if name == "none" and (match["added"] or match["rate"]):
        raise InputError(teach("a pole with + or @", repr(word), "write both+/16, or none/18 for as many states"))
    if match["rate"] and name not in ("zero", "both"):
        raise InputError(teach("@ with a pole at 0", repr(word), "write zero@-1000 or both@-1000"))
    if not match["added"] and mixer["state"] <= fixed:
        expected = f"more states than the {fixed} that {word!r} fixes"
        raise InputError(teach(expected, str(mixer["state"]), "write more states, or + to add the fixed ones"))
    return Row(word, mixer)


@dataclass(frozen=True)
class Cell:
    """One model to train.

    Attributes:
        row: word of its mixer.
        layers: number of blocks.
        width: of the residual stream.
        init: `right`, or `published`: step sizes' biases zeroed.
        rate: greatest learning rate.
        seed: of weights and rows.
    """

    row: str
    layers: int
    width: int
    init: str
    rate: float
    seed: int

    def __str__(self) -> str:
        return f"{self.row}:{self.layers}:{self.width}:{self.init}:{self.rate:g}:{self.seed}"

    @classmethod
    def parse(cls, word: str) -> Cell:
        """Read `str(cell)`.

        >>> str(Cell.parse("both+/16:2:64:right:0.002:3"))
        'both+/16:2:64:right:0.002:3'
        """
        parts = word.split(":")
        try:
            row, layers, width, init, rate, seed = parts
            return cls(row, int(layers), int(width), init, float(rate), int(seed))
        except ValueError:
            remedy = "write both+/16:2:64:right:0.002:3"
            raise InputError(teach("a cell as ROW:LAYERS:WIDTH:INIT:RATE:SEED", repr(word), remedy)) from None


@dataclass
@defaults(
    inits=listed("step sizes at initialisation: right, published (biases zeroed)", ["right"]),
    lengths=listed("tokens of training rows", ["64", "128", "256"]),
    flow_samples=option(8, "prompts for flow, influence and memory of each trained model; 0 for none"),
)
class RecallConfig(Inits, Lengths, FlowSamples, Device):
    """Which stacks to train and how; the fields are the command line's options and the `config` of the Result."""

    rows: list[str] = listed("mixers: none/16, both/16, both+/16 (added), placebo/16, gla ...", ["none/16", "both/16"])
    layers: list[str] = listed("numbers of blocks, repeated or comma separated", ["2"])
    widths: list[str] = listed("widths of the residual stream", ["64"])
    rates: list[str] = listed("learning rates", ["0.002"])
    seeds: list[str] = listed("seeds of weights and rows", ["0"])
    cells: list[str] = listed("these models alone: ROW:LAYERS:WIDTH:INIT:RATE:SEED, instead of all combinations")
    shares: list[str] = listed("shares of a row that are pairs", ["0.125", "0.25", "0.5"])
    test_length: int | None = option(None, "tokens of test rows; default the greatest of --lengths")
    test_rows: int = option(1000, "test rows of each number of pairs")
    vocabulary: int = option(8192, "token ids: keys in the lower half, values in the upper")
    power: float = option(POWER, "power law of the queries' places; 1 spreads them evenly")
    filler: str = option("zeros", "what stands between queries: zeros, or random ids")
    steps: int = option(20_000, "optimiser steps of each model")
    batch: int = option(128, "rows of a step")
    decay: float = option(0.1, "weight decay of matrices and embeddings")
    clip: float = option(1.0, "greatest norm of a gradient; 0 for no clipping")
    warmup: float = option(0.0, "share of the steps in which the rate rises; then a cosine to 0")
    untied: bool = option(False, "the head has weights of its own, and is not the embedding table")
    together: int = option(16, "models of one shape that are trained side by side, at most")
    seconds: float | None = option(None, "stop after this time; the same command resumes")
    checkpoint: int = option(2000, "steps between checkpoints")

    def __post_init__(self) -> None:
        """Lists in one form, so that the same request makes the same run."""
        for name in ("rows", "layers", "widths", "inits", "rates", "seeds", "cells", "lengths", "shares"):
            setattr(self, name, words(getattr(self, name)))

    def grid(self) -> list[Cell]:
        """All models, in order."""
        if self.cells:
            return [Cell.parse(word) for word in self.cells]
        axes = (_numbers(self, name, kind) for name, kind in (("layers", int), ("widths", int)))
        layers, widths = axes
        rates, seeds = _numbers(self, "rates", float), _numbers(self, "seeds", int)
        product = itertools.product(layers, widths, self.inits, self.rows, rates, seeds)
        return [Cell(row, depth, width, init, rate, seed) for depth, width, init, row, rate, seed in product]

    def settings(self) -> list[RecallSetting]:
        """Kinds of training rows."""
        return [
            self.setting(length, share)
            for length in _numbers(self, "lengths", int)
            for share in _numbers(self, "shares", float)
        ]

    def tests(self) -> list[RecallSetting]:
        """Kinds of test rows, by number of pairs."""
        length = max(_numbers(self, "lengths", int)) if self.test_length is None else self.test_length
        return [self.setting(length, share) for share in _numbers(self, "shares", float)]

    def setting(self, length: int, share: float) -> RecallSetting:
        """Rows of a length, of which a share is pairs."""
        pairs = round(length * share / 2)
        return RecallSetting(
            length=length, pairs=pairs, vocabulary=self.vocabulary, power=self.power, filler=self.filler
        )

    def command(self, *cells: Cell) -> str:
        """What trains some models again."""
        plain, parts = RecallConfig(), ["repflow recall", f"--cells {','.join(map(str, cells))}"]
        left = ("rows", "layers", "widths", "inits", "rates", "seeds", "cells", "seconds", "checkpoint", "device")
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name in left or value == getattr(plain, name):
                continue
            word = name.replace("_", "-")
            if isinstance(value, bool):
                parts.append(f"--{word}")
            else:
                parts.append(f"--{word} {','.join(value) if isinstance(value, list) else value}")
        return " ".join(parts)


def _numbers(config: RecallConfig, name: str, kind: type) -> list[Any]:
    try:
        values = [kind(word) for word in getattr(config, name)]
    except ValueError:
        got = ",".join(getattr(config, name))
        raise InputError(teach(f"numbers in --{name}", repr(got), "write such as 2,4")) from None
    if not values or len(set(values)) < len(values) or not all(value >= 0 for value in values):
        raise InputError(teach(f"different numbers of at least 0 in --{name}", f"{values}", "name each once"))
    return values


def check(config: RecallConfig) -> None:
    """Refuse what no model could be trained with; imports no torch."""
    from repflow.spec.request import check_least

    least = {"test_rows": 1, "steps": 1, "batch": 1, "flow_samples": 0, "together": 1, "checkpoint": 1, "vocabulary": 4}
    check_least([(f"--{name.replace('_', '-')}", getattr(config, name), low) for name, low in least.items()])
    if config.filler not in FILLERS:
        raise InputError(teach(f"--filler {' or '.join(FILLERS)}", repr(config.filler), "zeros have no duplicate keys"))
    for name, low, high in (("decay", 0, 1e9), ("clip", 0, 1e9), ("warmup", 0, 1)):
        if not low <= getattr(config, name) <= high:
            raise InputError(teach(f"--{name} from {low}", f"{getattr(config, name)}", "see repflow recall --help"))
    cells = config.grid()
    if not cells or len(set(cells)) < len(cells):
        raise InputError(teach("different models", f"{len(cells)}, some alike", "name each row, rate and seed once"))
    for cell in cells:
        parse_row(cell.row)
        if cell.init not in INITS:
            raise InputError(teach(f"--inits {' or '.join(INITS)}", repr(cell.init), nearest(cell.init, INITS)))
        if cell.init == "published" and parse_row(cell.row).mixer["name"] != "s6":
            raise InputError(teach("the published initialisation of S6 rows", cell.row, "pass --inits right"))
        if cell.layers < 1 or cell.width < 1 or not 0 < cell.rate < 10:
            raise InputError(teach("layers and width of at least 1, a rate above 0", str(cell), "correct the cell"))
    config.settings()
    config.tests()


def names(config: RecallConfig) -> Names:
    """Rows and depths, then eight digits for everything.

    >>> names(RecallConfig()).current, names(RecallConfig(steps=5, seconds=9.0)).current
    ('recall-2x20000-steps', 'recall-2x5-steps-49bd0f44')
    """
    from repflow.store import safe_name

    tag = option_tag(config, ())
    count = len(config.grid())
    name = safe_name("-".join(filter(None, ["recall", f"{count}x{config.steps}-steps", tag])))
    return Names(name, name, name)
