"""What `repflow pixels` may be asked for: which classifiers, on which images, what is replaced; no torch.

A row names a model and its frame:

    mamba, mamba/16         S6 with 64 states, or 16; also mamba2, h3, rwkv, s4d, transformer
    mamba+both              two directions, added
    mamba+middle            class token behind half of the others; +both+first in front of them; otherwise behind all
    mamba+mean              no class token, mean over tokens
    mamba+positions+mlp     with what the transformer has by itself
    transformer-positions   without it
    s4d+mean+dropout        whole channels dropped behind every layer (.1) in place of dropout behind the embedding
    s4d+mean+dropout+inside the same inside S4D too, behind its GELU
    mamba+mirror            half of the training images mirrored, others in every epoch
    mamba+mean+leaky        tokens sorted by importance in front of the first mixer, as in paper 3; +leaky+random and
                            +leaky+identity are its controls, +hard, +descending, +gates, +restore, +all its forms

`leaky` is the word that `repflow architecture` has for whole sequences sorted. Nothing leaks here: a class is of the
whole image. A class token would be sorted along and land anywhere, so these rows read the mean over tokens.

The frames are those of paper 2's code: three layers of width 32, a class token, RMS norms for mamba and mamba2 and
LayerNorm for all others, embedding dropout .1; the transformer has learned positions, MLPs of its own width and dropout
.1, all others none of them. RWKV-4's inner width is twice the stream's, H3's heads have two channels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from repflow.core.errors import InputError, nearest, teach
from repflow.spec.architecture import CONTROLS, OPTIONS, Numbers, parse_architecture
from repflow.spec.corruption import (
    FIGURES,
    PIXELS,
    PRINTED,
    Region,
    check_regions,
    check_replacements,
    parse_regions,
)
from repflow.studies.corrupt.config import ALL, Replacing, Targets, check_targets
from repflow.studies.engine.parts import ImageSource, Inits, defaults, listed, option
from repflow.studies.laboratory.cell import Cell, axis
from repflow.studies.laboratory.config import LaboratoryConfig, Stacks, check_grid
from repflow.tasks.pixels.layout import ORDERS, PixelLayout

MODELS = ("mamba", "mamba2", "h3", "rwkv", "s4d", "transformer")
ORDERING = ("leaky", *CONTROLS, *OPTIONS, "all")
"""Parts that change the order of tokens."""
PARTS = ("both", "first", "middle", "mean", "positions", "mlp", "dropout", "inside", "mirror", *ORDERING)
PLACES = {"first": "start", "middle": "middle"}
INITS = ("right", "published")
RECIPES = {"published": "recency-table1", "strong": "pixels-strong"}
ROW = re.compile(r"(?P<model>[a-z0-9]+)(?:/(?P<state>[1-9]\d{0,3}))?(?P<parts>(?:[+-][a-z]+)*)")
STATE, DROPOUT, HEADS = 64, 0.1, 4
UNITS = {"transformer": HEADS, "h3": 2, "mamba2": 32}
"""What the width is a multiple of, where heads share it; mamba2's are of 32, or of the whole width if that is less."""
ATTACKED = PRINTED
"""Regions of attacks, where no others are asked for."""


@dataclass(frozen=True)
class Row:
    """A model and its frame, by its word.

    Attributes:
        word: as it was typed.
        model: which one.
        state: states of a channel.
        parts: what it has beside its mixers.
    """

    word: str
    model: str
    state: int
    parts: frozenset[str]

    def frame(self, layers: int, width: int, tokens: int) -> dict[str, Any]:
        """Options of StackConfig but for the images' own."""
        mixer: dict[str, Any] = {
            "mamba": {"name": "s6", "state": self.state},
            "mamba2": {"name": "ssd", "state": self.state},
            "h3": {"name": "h3", "state": self.state, "head_dim": 2},
            "rwkv": {"name": "rwkv4", "inner": 2 * width},
            "s4d": {"name": "s4d", "state": self.state},
            "transformer": {"name": "softmax_attention", "heads": HEADS, "rotary": 0.0, "bias": True},
        }[self.model]
        mixer |= {"dropout": DROPOUT} if "inside" in self.parts else {}
        place = None if "mean" in self.parts else next((PLACES[part] for part in PLACES if part in self.parts), "end")
        frame: dict[str, Any] = {
            "mixers": mixer,
            "num_hidden_layers": layers,
            "hidden_size": width,
            "norm": "rms" if self.model.startswith("mamba") else "layer",
            "class_token": place,
            "pooling": "mean",
            "bidirectional": "both" in self.parts,
            "embedding_dropout": 0.0 if "dropout" in self.parts else DROPOUT,
            "dropout": DROPOUT if self.model == "transformer" or "dropout" in self.parts else 0.0,
        }
        frame |= {"channel_dropout": True} if "dropout" in self.parts else {}
        frame |= {"max_position_embeddings": tokens} if "positions" in self.parts else {}
        order = self.order()
        frame |= {} if order is None else {"reorder": order}
        return frame | ({"mlp": "gelu", "mlp_size": width} if "mlp" in self.parts else {})

    def check_width(self, width: int) -> None:
        """Refuse a width that the model's heads cannot share."""
        unit = UNITS.get(self.model, 1)
        if width % unit and not (self.model == "mamba2" and width < unit):
            low = width - width % unit
            near = " or ".join(str(one) for one in (low, low + unit) if one)
            raise InputError(teach(f"--widths that {unit} divides, for {self.word}", str(width), f"write {near}"))

    def order(self) -> dict[str, Any] | None:
        """Options of `StackConfig.reorder`; None for tokens as they come."""
        words = "".join(f"+{part}" for part in ORDERING if part in self.parts)
        return parse_architecture(f"mamba{words}").order(Numbers(), language=False)


def parse_row(word: str) -> Row:
    """The model that a row names.

    >>> parse_row("mamba/16+both").state, sorted(parse_row("transformer-mlp").parts)
    (16, ['positions'])
    """
    match = ROW.fullmatch(word)
    model = match["model"] if match else re.split("[/+-]", word)[0]
    if match is None or model not in MODELS:
        expected = "a row such as mamba, mamba/16, mamba+both, h3 or transformer-positions"
        remedy = f"write {model}, or {model}/16 for 16 states" if model in MODELS else nearest(model, MODELS)
        raise InputError(teach(expected, repr(word), remedy))
    if match["state"] and model in ("transformer", "rwkv"):
        raise InputError(teach(f"{model} without a number of states", repr(word), f"write {model}"))
    parts = {"positions", "mlp"} if model == "transformer" else set()
    for sign, part in re.findall(r"([+-])([a-z]+)", match["parts"]):
        if part not in PARTS:
            raise InputError(teach(f"parts of a row: {', '.join(PARTS)}", repr(part), nearest(part, PARTS)))
        if (part in parts) == (sign == "+"):
            got = f"{sign}{part} of {model}, which {'has it' if sign == '+' else 'does not have it'}"
            raise InputError(teach("a part added that is not there, or taken away that is", got, "leave it out"))
        (parts.add if sign == "+" else parts.discard)(part)
    if len(parts & {"first", "middle", "mean"}) > 1:
        raise InputError(teach("one place for the class", repr(word), "choose first, middle or mean"))
    if "first" in parts and "both" not in parts:
        remedy = f"write {word}+both: from left to right the first token sees nothing but itself"
        raise InputError(teach("a class token in front of a model that mixes both ways", repr(word), remedy))
    if "inside" in parts and not (model == "s4d" and "dropout" in parts):
        raise InputError(teach("+inside behind s4d and +dropout", repr(word), "write s4d+dropout+inside"))
    _check_order(word, parts)
    return Row(word, model, int(match["state"] or STATE), frozenset(parts))


def _check_order(word: str, parts: set[str]) -> None:
    """Refuse orders of tokens that a classifier of images cannot have."""
    if not parts & set(ORDERING):
        return
    problems = {
        "a form of sorting with +leaky": ("leaky" not in parts, "add +leaky: whole images are sorted"),
        "one order": (len(parts & set(CONTROLS)) > 1, f"choose {' or '.join(CONTROLS)}"),
        "a sort with +hard or +descending": (
            bool(parts & {"hard", "descending"} and parts & set(CONTROLS)),
            f"leave {' and '.join(CONTROLS)} out",
        ),
        "sorted tokens whose mean is read": ("mean" not in parts, "add +mean: a class token would be sorted along"),
        "sorted tokens that are mixed one way": ("both" in parts, "leave +both out: a sort has one direction"),
    }
    for expected, (broken, remedy) in problems.items():
        if broken:
            raise InputError(teach(expected, repr(word), remedy))


@dataclass(frozen=True)
class PixelCell(Cell):
    """One classifier to train.

    Attributes:
        row: word of its model.
        layers: number of blocks.
        width: of the residual stream.
        token_order: order of the pixels.
        init: `right`, or `published`: biases of linear layers zeroed, those of Mamba's step sizes too.
        rate: greatest learning rate.
        seed: of weights and of the images' order.

    >>> str(PixelCell.parse("mamba+both:3:32:row:right:0.001:0"))
    'mamba+both:3:32:row:right:0.001:0'
    """

    example: ClassVar[str] = "mamba:3:32:row:right:0.001:0"

    row: str = axis("rows")
    layers: int = axis("layers")
    width: int = axis("widths")
    token_order: str = axis("orders")
    init: str = axis("inits")
    rate: float = axis("rates")
    seed: int = axis("seeds")


@dataclass
@defaults(
    {
        "regions": "tokens that are replaced in test images: windows:K, paper (Tables 1 and 3), START:END, last:K ...",
        "replace": "by what: normal, data, shuffle, mean, same, other, target:CLASS; default all",
        "targets": "classes that attacks steer to, by name or number, or all; default no attacks",
        "influence": "test images whose gradient says how much each token counts; 0 for none",
    },
    rows=listed("models: mamba, h3, rwkv, transformer, mamba+both ...", ["mamba", "transformer"]),
    layers=listed("numbers of blocks, repeated or comma separated", ["3"]),
    widths=listed("widths of the residual stream", ["32"]),
    inits=listed("initialisation: right, published (biases of linear layers zeroed)", ["right"]),
    rates=listed("learning rates", ["0.001"]),
    cells=listed("these models alone: ROW:LAYERS:WIDTH:ORDER:INIT:RATE:SEED, instead of all combinations"),
    regions=listed("", ["windows:32", "paper"]),
    steps=option(23_430, "optimiser steps of each model: 30 epochs of CIFAR-10"),
    batch=option(64, "images of a step"),
    clip=option(0.0, "greatest norm of a gradient; 0 for no clipping"),
    flow_samples=option(4, "test images, in grey, for flow, influence and memory of causal models; 0 for none"),
)
class PixelsConfig(Stacks, Replacing, Targets, ImageSource, Inits, LaboratoryConfig):
    """Which classifiers to train and how; the fields are the command line's options and the `config` of the Result."""

    cell: ClassVar[type[Cell]] = PixelCell
    command_words: ClassVar[str] = "pixels"
    separated: ClassVar[tuple[str, ...]] = ("regions", "replace", "targets", "attack_regions")

    attack_regions: list[str] = listed(
        "tokens that targets lend, in words of repflow attack --regions; paper: those of Figure 3, fewer: smaller ones",
        [ATTACKED],
    )
    orders: list[str] = listed(f"orders of pixels: {', '.join(ORDERS)}", ["row"])
    optimiser: str = option(
        "published", "how weights are updated: published (paper 2), strong (S4D's own, see the laboratory's page)"
    )
    train_images: int | None = option(None, "training images, the first ones; default all, of drawn ones 4,000")
    test_images: int = option(2000, "test images whose parts are replaced; accuracy as they are is that of all")

    def layout(self, order: str) -> PixelLayout:
        """How images become sequences."""
        return PixelLayout(order, grey=self.grey, patch=self.patch or 1)

    def attacked(self, tokens: int) -> list[Region]:
        """Regions that the target lends; `paper` stands for those of paper 2's Figure 3."""
        return parse_regions(self.attack_regions, tokens, FIGURES)


def check(config: PixelsConfig) -> None:
    """Refuse what no model could be trained with; imports no torch."""
    from repflow.spec.request import check_least
    from repflow.tasks.pixels.source import check_source

    least: list[Any] = [("--test-images", config.test_images, 2), ("--draws", config.draws, 1)]
    check_least([*least, ("--influence", config.influence, 0), ("--patch", config.patch, 1)])
    check_least([("--train-images", config.train_images, 1)])
    if config.optimiser not in RECIPES:
        expected, got = f"--optimiser {', '.join(RECIPES)}", repr(config.optimiser)
        raise InputError(teach(expected, got, nearest(config.optimiser, RECIPES)))
    check_source(config.images)
    check_regions(config.regions)
    check_replacements(config.replace or PIXELS, PIXELS)
    check_targets(config.targets)
    check_regions(config.attack_regions, f"--attack-regions {ATTACKED}")
    if config.attack_regions != [ATTACKED] and not config.targets:
        expected, got = "--targets beside --attack-regions", f"{','.join(config.attack_regions)} and no targets"
        raise InputError(teach(expected, got, f"pass --targets {ALL}, or leave --attack-regions out"))
    for cell in check_grid(config):
        row = parse_row(cell.row)
        config.layout(cell.token_order)
        if cell.init not in INITS:
            raise InputError(teach(f"--inits {' or '.join(INITS)}", repr(cell.init), nearest(cell.init, INITS)))
        if cell.layers < 1 or cell.width < 1:
            raise InputError(teach("layers and width of at least 1", str(cell), "correct the cell"))
        row.check_width(cell.width)
