"""What `repflow architecture` may be asked for: which language models, on which text, how long; no torch.

A row is an architecture (`repflow.spec.architecture`): mamba, 3xmamba2.attention, mamba+positive+scaled, mamba+leaky,
mamba2+diversity@0.1 ...
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from repflow.core.errors import InputError, teach
from repflow.spec.architecture import Architecture, Numbers, parse_architecture
from repflow.spec.request import check_least
from repflow.studies.engine.parts import Lengths, TextFiles, Tokenizing, defaults, listed, option
from repflow.studies.laboratory.cell import Cell, axis
from repflow.studies.laboratory.config import LaboratoryConfig, Stacks, check_grid, numbers
from repflow.tasks.recall import RecallSetting

ENGLISH = "english"
RECALL_PARTS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Parts of a row that are pairs: those of `repflow recall`, and easier ones, which are learned first."""


@dataclass(frozen=True)
class ArchitectureCell(Cell):
    """One language model to train.

    Attributes:
        row: word of its architecture.
        layers: number of blocks.
        width: of the residual stream; that of the row to match, where rows are matched.
        length: tokens of a window.
        rate: greatest learning rate.
        seed: of weights and of the windows' order.

    >>> str(ArchitectureCell.parse("mamba+leaky:8:256:512:0.002:0"))
    'mamba+leaky:8:256:512:0.002:0'
    """

    example: ClassVar[str] = "mamba:4:128:256:0.002:0"

    row: str = axis("rows")
    layers: int = axis("layers")
    width: int = axis("widths")
    length: int = axis("lengths")
    rate: float = axis("rates")
    seed: int = axis("seeds")


@dataclass
class RowNumbers:
    """What the words of rows leave open."""

    heads: int = option(4, "heads of attention")
    head_dim: int | None = option(
        None, "channels of a head of Mamba-2; default 64, so that its width is 32, 64, 96 ..."
    )
    chunk: int = option(16, "tokens of a chunk, for rows with +chunks")
    sort_temperature: float = option(1.0, "temperature of SoftSort, for rows that sort")
    sort_power: float = option(1.0, "power of SoftSort; tokens of equal score share their ranks")
    eigenvalue_shift: float = option(0.7, "what +shift adds to the sizes of eigenvalues")
    eigenvalue_norm: float = option(0.5, "spectral norm of S_C'S_B at the start, for rows with +scaled")

    def row_numbers(self) -> Numbers:
        """As rows take them."""
        sort = (self.chunk, self.sort_temperature, self.sort_power)
        return Numbers(
            self.heads, *sort, shift=self.eigenvalue_shift, scale=self.eigenvalue_norm, head_dim=self.head_dim
        )


@dataclass
class Corpus:
    """Texts that language models are trained and tested on."""

    held_out: str | None = option(None, "text to test on; default a part of --text")
    held_out_share: float = option(
        0.1, "share of the documents that is held out, where no text is named; of a plain file its end"
    )
    test_texts: list[str] = listed("further texts to test on, each NAME=PATH")


@dataclass
class Lookup:
    """Steps that train and test recall of pairs beside the text (`repflow.tasks.recall`)."""

    recall_share: float = option(
        0.0, "share of the steps that train recall of pairs, whose ids stand behind the text's"
    )
    recall_ids: int = option(1024, "ids of keys and values")
    recall_pairs: list[str] = listed("numbers of pairs in a row; default a 32nd, 16th ... half of a window's tokens")
    recall_rows: int = option(500, "test rows of each number of pairs")

    def recall_settings(self, length: int) -> list[RecallSetting]:
        """Rows of a window's length with each number of pairs.

        Raises:
            InputError: more pairs than a row has room or ids for.
        """
        usual = {max(1, round(length * part / 2)) for part in RECALL_PARTS}
        pairs = sorted(numbers("recall-pairs", self.recall_pairs, int) if self.recall_pairs else usual)
        if pairs[-1] > self.recall_ids // 2 - 1:
            remedy = f"pass --recall-ids {2 * pairs[-1] + 2} or more, or fewer --recall-pairs"
            got = f"{self.recall_ids} ids for up to {pairs[-1]} pairs"
            raise InputError(teach("two ids for every pair, and two more", got, remedy))
        return [RecallSetting(length, count, self.recall_ids) for count in pairs]


@dataclass
@defaults(
    {
        "text": "text to train on: file, folder, english (built in) or a prepared folder; may be given several times",
        "tokenizer": "bytes, a folder or file, zoo:NAME or hub id; default bytes",
        "cells": "these models alone: ROW:LAYERS:WIDTH:LENGTH:RATE:SEED, instead of all combinations",
    },
    rows=listed(
        "architectures: mamba, 3xmamba2.attention, mamba+positive, mamba2+diversity@0.1 ...", ["mamba", "transformer"]
    ),
    layers=listed("numbers of blocks, repeated or comma separated", ["4"]),
    widths=listed("widths of the residual stream", ["128"]),
    lengths=listed("tokens of a window, repeated or comma separated", ["256"]),
    steps=option(2000, "optimiser steps of each model"),
    batch=option(32, "windows of a step at the greatest length; shorter ones have more, for as many tokens"),
    warmup=option(0.05, "share of the steps in which the rate rises; then a cosine"),
)
class ArchitectureConfig(Lookup, Corpus, RowNumbers, Stacks, Lengths, TextFiles, Tokenizing, LaboratoryConfig):
    """Which language models to train and how; the fields are the command line's options and the Result's `config`."""

    cell: ClassVar[type[Cell]] = ArchitectureCell
    command_words: ClassVar[str] = "architecture"
    separated: ClassVar[tuple[str, ...]] = ("text", "test_texts", "recall_pairs")

    match_row: str | None = option(None, "row whose parameters all others match, by their width")
    match_layers: int | None = option(None, "depth whose parameters all depths match by their width; needs --match-row")
    decay_limit: float = option(0.99, "decay that costs nothing, for rows with +contract")
    last_rate: float = option(0.0, "last learning rate as a share of the greatest")
    second_beta: float = option(0.95, "beta of AdamW's mean square of the gradient")
    dropout: float = option(0.0, "share of channels dropped from what each mixer adds, while training")
    readings: int = option(10, "times that perplexity is read while a model trains; 0 for the end alone")
    reading_tokens: int = option(20_000, "held-out tokens of each of these readings; the end reads all")
    leak_positions: int = option(2000, "positions at which rows that reorder are given the prefix alone; 0 for none")

    def paths(self) -> list[str]:
        """Texts to train on."""
        return self.text or [ENGLISH]

    def others(self) -> dict[str, str]:
        """Further texts to test on, by name."""
        pairs = [word.partition("=") for word in self.test_texts]
        bad = next((name for name, sign, path in pairs if not (name and sign and path)), None)
        names = [name for name, _, _ in pairs]
        if bad is not None or len(set(names)) < len(names) or {"train", "held_out"} & set(names):
            got = ", ".join(self.test_texts)
            raise InputError(teach("--test-texts NAME=PATH, each name once", repr(got), "write wiki=wiki.txt"))
        return {name: path for name, _, path in pairs}

    def command(self, *cells: Cell) -> str:
        """What trains some models again: `--batch` are windows of the longest of these, not of the whole grid's."""
        if not cells:
            return super().command()
        longest = max(int(cell.length) for cell in cells)  # type: ignore[attr-defined]
        mine = replace(self, batch=self.rows_of(longest))
        return super(ArchitectureConfig, mine).command(*cells)

    def rows_of(self, length: int) -> int:
        """Windows of a step: as many tokens as at the greatest length."""
        longest = max(cell.length for cell in self.grid())
        return self.batch * longest // length


def check(config: ArchitectureConfig) -> list[ArchitectureCell]:
    """Refuse what no model could be trained with; imports no torch."""
    least = [
        ("--readings", config.readings, 0),
        ("--reading-tokens", config.reading_tokens, 1),
        ("--chunk", config.chunk, 1),
    ]
    check_least([*least, ("--leak-positions", config.leak_positions, 0), ("--heads", config.heads, 1)])
    check_least([("--head-dim", 1 if config.head_dim is None else config.head_dim, 1)])
    for name, low, high in (("dropout", 0, 1), ("last_rate", 0, 1.000001), ("second_beta", 0, 1)):
        value = getattr(config, name)
        if not low <= value < high:
            raise InputError(teach(f"--{name.replace('_', '-')} from 0 to 1", f"{value}", "leave it out"))
    numbers("lengths", config.lengths, int)
    cells: list[ArchitectureCell] = check_grid(config)
    for cell in cells:
        row = parse_architecture(cell.row)
        if cell.layers < 1 or cell.width < 1 or cell.length < 2:
            expected = "layers and width of at least 1, windows of at least 2 tokens"
            raise InputError(teach(expected, str(cell), "correct the cell"))
        row.laid(cell.layers)
        if cell.layers < 2 and {"supervision", "smooth"} & row.parts:
            raise InputError(teach(f"at least 2 layers for {cell.row}", str(cell), "correct the cell"))
        check_row(row, cell.length, config)
    if config.match_row is not None:
        parse_architecture(config.match_row)
    elif config.match_layers is not None:
        expected = "--match-row with --match-layers"
        raise InputError(teach(expected, f"--match-layers {config.match_layers}", "name the row whose size all have"))
    check_lookup(config, cells)
    check_texts(config)
    return cells


def check_lookup(config: ArchitectureConfig, cells: list[ArchitectureCell]) -> None:
    """Refuse shares, ids and bounds that cannot be."""
    check_least([("--recall-rows", config.recall_rows, 1), ("--match-layers", config.match_layers or 1, 1)])
    if not 0 <= config.recall_share < 1:
        remedy = "0.25 is every fourth step; `repflow recall` trains nothing else"
        raise InputError(teach("--recall-share from 0 to below 1", f"{config.recall_share}", remedy))
    if not 0 < config.decay_limit < 1:
        raise InputError(teach("--decay-limit between 0 and 1", f"{config.decay_limit}", "0.99 halves in 69 tokens"))
    for cell in cells if config.recall_share else []:
        config.recall_settings(cell.length)


def check_row(row: Architecture, tokens: int, config: RowNumbers) -> None:
    """Refuse an order of tokens that windows of this length cannot have."""
    order = row.order(config.row_numbers())
    if order is not None and order["form"] == "chunks" and config.chunk >= tokens:
        expected = f"--chunk below the {tokens} tokens of a window"
        raise InputError(teach(expected, str(config.chunk), "choose a smaller one: no token would be reordered"))
    for name in ("sort_temperature", "sort_power", "eigenvalue_norm"):
        if not 0 < getattr(config, name) < float("inf"):
            remedy = "write +hard for a temperature of 0" if name == "sort_temperature" else "leave it out"
            expected = f"a finite --{name.replace('_', '-')} above 0"
            raise InputError(teach(expected, f"{getattr(config, name)}", remedy))


def check_texts(config: ArchitectureConfig) -> None:
    """Refuse texts that are not there."""
    places = [*config.paths(), *config.others().values(), *([config.held_out] if config.held_out else [])]
    for path in places:
        if path != ENGLISH and not Path(path).expanduser().exists():
            remedy = f"check the path, or leave --text out for {ENGLISH}, the built-in one"
            raise InputError(teach("a text file or a folder", f"{path}, which does not exist", remedy))
    if not 0 < config.held_out_share < 1:
        got = f"{config.held_out_share}"
        raise InputError(teach("--held-out-share between 0 and 1", got, "pass 0.1, or --held-out TEXT"))
