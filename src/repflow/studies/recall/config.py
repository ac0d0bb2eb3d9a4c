"""What `repflow recall` may be asked for: which stacks, on which rows, how long; no torch.

A row names the mixer of a stack:

    none/16          S6 with 16 states               both/16        of them one with decay 1, one with decay 0
    both+/16         those two added: 18 states      both+@-1000/16 decay exp(−1000 Δ) in place of 0
    placebo/16       first and last state frozen     gla, ssd/64, softmax_attention: any other mixer

A cell is one model: row:layers:width:initialisation:rate:seed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from repflow.core.errors import InputError, nearest, teach
from repflow.studies.engine.parts import Inits, Lengths, defaults, listed, option
from repflow.studies.laboratory.cell import Cell, axis
from repflow.studies.laboratory.config import LaboratoryConfig, Stacks, check_grid
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
class RecallCell(Cell):
    """One model to train.

    Attributes:
        row: word of its mixer.
        layers: number of blocks.
        width: of the residual stream.
        init: `right`, or `published`: step sizes' biases zeroed.
        rate: greatest learning rate.
        seed: of weights and rows.

    >>> str(RecallCell.parse("both+/16:2:64:right:0.002:3"))
    'both+/16:2:64:right:0.002:3'
    """

    example: ClassVar[str] = "both+/16:2:64:right:0.002:3"
    order: ClassVar[tuple[str, ...]] = ("layers", "widths", "inits", "rows", "rates", "seeds")

    row: str = axis("rows")
    layers: int = axis("layers")
    width: int = axis("widths")
    init: str = axis("inits")
    rate: float = axis("rates")
    seed: int = axis("seeds")


@dataclass
@defaults(
    rows=listed("mixers: none/16, both/16, both+/16 (added), placebo/16, gla ...", ["none/16", "both/16"]),
    inits=listed("step sizes at initialisation: right, published (biases zeroed)", ["right"]),
    lengths=listed("tokens of training rows", ["64", "128", "256"]),
    cells=listed("these models alone: ROW:LAYERS:WIDTH:INIT:RATE:SEED, instead of all combinations"),
)
class RecallConfig(Stacks, Inits, Lengths, LaboratoryConfig):
    """Which stacks to train and how; the fields are the command line's options and the `config` of the Result.

    >>> from repflow.studies.laboratory.config import grid_names
    >>> grid_names(RecallConfig()).current, grid_names(RecallConfig(steps=5, seconds=9.0)).current
    ('recall-2x20000-steps', 'recall-2x5-steps-49bd0f44')
    """

    cell: ClassVar[type[Cell]] = RecallCell
    command_words: ClassVar[str] = "recall"
    separated: ClassVar[tuple[str, ...]] = ("lengths", "shares")

    shares: list[str] = listed("shares of a row that are pairs", ["0.125", "0.25", "0.5"])
    test_length: int | None = option(None, "tokens of test rows; default the greatest of --lengths")
    test_rows: int = option(1000, "test rows of each number of pairs")
    vocabulary: int = option(8192, "token ids: keys in the lower half, values in the upper")
    power: float = option(POWER, "power law of the queries' places; 1 spreads them evenly")
    filler: str = option("zeros", "what stands between queries: zeros, or random ids")
    untied: bool = option(False, "the head has weights of its own, and is not the embedding table")

    def settings(self) -> list[RecallSetting]:
        """Kinds of training rows."""
        lengths, shares = self.listed("lengths", int), self.listed("shares", float)
        return [self.setting(length, share) for length in lengths for share in shares]

    def tests(self) -> list[RecallSetting]:
        """Kinds of test rows, by number of pairs."""
        length = max(self.listed("lengths", int)) if self.test_length is None else self.test_length
        return [self.setting(length, share) for share in self.listed("shares", float)]

    def setting(self, length: int, share: float) -> RecallSetting:
        """Rows of a length, of which a share is pairs."""
        pairs = round(length * share / 2)
        return RecallSetting(
            length=length, pairs=pairs, vocabulary=self.vocabulary, power=self.power, filler=self.filler
        )


def check(config: RecallConfig) -> None:
    """Refuse what no model could be trained with; imports no torch."""
    from repflow.spec.request import check_least

    check_least([("--test-rows", config.test_rows, 1), ("--vocabulary", config.vocabulary, 4)])
    if config.filler not in FILLERS:
        raise InputError(teach(f"--filler {' or '.join(FILLERS)}", repr(config.filler), "zeros have no duplicate keys"))
    for cell in check_grid(config):
        parse_row(cell.row)
        if cell.init not in INITS:
            raise InputError(teach(f"--inits {' or '.join(INITS)}", repr(cell.init), nearest(cell.init, INITS)))
        if cell.init == "published" and parse_row(cell.row).mixer["name"] != "s6":
            raise InputError(teach("the published initialisation of S6 rows", cell.row, "pass --inits right"))
        if cell.layers < 1 or cell.width < 1:
            raise InputError(teach("layers and width of at least 1", str(cell), "correct the cell"))
    config.settings()
    config.tests()
