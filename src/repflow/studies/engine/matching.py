"""Matching: the same text for two models, and which tokens of the one are where tokens of the other are.

Where both tokenizers cut a text alike, token i matches token i. Elsewhere a token that ends at character c matches the
token of the other model that ends at c: both have then read exactly the same text. Several tokens may end at one
character (byte-level BPE cuts inside an "é"): the last of them is the one that has read it all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import InputError, teach

if TYPE_CHECKING:
    from repflow.core.results import Finding
    from repflow.models import Model
    from repflow.tasks import Encoder, Prompt, Prompts

MIN_KEPT = 0.5
"""Below this share of matched tokens the two models are not compared on the same text."""


@dataclass(frozen=True)
class Piece:
    """A text with the first model's tokens of it.

    Attributes:
        text: what the other model reads.
        ids: tokens without the first model's BOS.
        ends: character of `text` at which each token ends; outside 1 .. len(text) for bytes of a cut character.
    """

    text: str
    ids: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True)
class PairedPrompts:
    """Prompts of two models over the same texts.

    Attributes:
        a: prompts of the first model.
        b: prompts of the second, sample by sample the same texts.
        rows: per sample, the matched positions in `a` and in `b`.
        by: per sample, `token` or `character`: how they were matched.
    """

    a: Prompts
    b: Prompts
    rows: tuple[tuple[np.ndarray, np.ndarray], ...] = field(repr=False)
    by: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What a reader should know of the prompts."""
        return self.a.findings

    @property
    def matched(self) -> np.ndarray:
        """Matched tokens of each sample."""
        return np.array([len(rows) for rows, _ in self.rows])

    @property
    def kept_share(self) -> np.ndarray:
        """Matched tokens over the tokens of the longer side, per sample."""
        longer = np.maximum(self.a.lengths, self.b.lengths)
        return self.matched / longer


def same_prompts(prompts: Prompts) -> PairedPrompts:
    """Pair prompts with themselves, for models that take the same ids."""
    rows = tuple((np.arange(n), np.arange(n)) for n in prompts.lengths)
    return PairedPrompts(prompts, prompts, rows, ("token",) * len(prompts))


def pair_prompts(pieces: Sequence[Piece], encoder_a: Encoder, encoder_b: Encoder, *, task: str) -> PairedPrompts:
    """Encode each piece for both models and match the tokens."""
    from repflow.tasks import Prompts

    a: list[Prompt] = []
    b: list[Prompt] = []
    rows, by = [], []
    for piece in pieces:
        ids_b, spans = encode_spans(encoder_b.tokenizer, piece.text)
        alike = _cut_alike(encoder_a.tokenizer, encoder_b.tokenizer, piece, ids_b)
        if alike:  # A's tokens of a window may differ at its edges from those of the window's text alone
            ids_b = list(piece.ids)
            pairs = [(i, i) for i in range(len(ids_b))]
        else:
            pairs = match_ends(piece.ends, [end for _, end in spans], len(piece.text))
        shift_a, shift_b = len(encoder_a.prefix), len(encoder_b.prefix)
        pairs = [(i + shift_a, j + shift_b) for i, j in pairs]
        if shift_a and shift_b:
            pairs.insert(0, (0, 0))
        index = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        rows.append((index[:, 0], index[:, 1]))
        by.append("token" if alike else "character")
        a.append(encoder_a.prompt(piece.ids, piece.text))
        b.append(encoder_b.prompt(ids_b, piece.text))
    return PairedPrompts(Prompts(task, tuple(a)), Prompts(task, tuple(b)), tuple(rows), tuple(by))


def _cut_alike(tokenizer_a: Any, tokenizer_b: Any, piece: Piece, ids_b: list[int]) -> bool:
    """Whether both tokenizers give the piece's text the same ids, and the ids mean the same tokens to both."""
    if encode_spans(tokenizer_a, piece.text)[0] != ids_b:
        return False
    ids = [*piece.ids, *ids_b]
    return bool(tokenizer_a.convert_ids_to_tokens(ids) == tokenizer_b.convert_ids_to_tokens(ids))


def match_ends(ends_a: Sequence[int], ends_b: Sequence[int], length: int) -> list[tuple[int, int]]:
    """Positions of tokens that end at the same character of a text of this length; of several, the last.

    >>> match_ends([3, 4, 4, 9], [4, 9, 12], 9)  # "the", two bytes of "é", the rest
    [(2, 0), (3, 1)]
    """
    last_a = {end: i for i, end in enumerate(ends_a) if 0 < end <= length}
    last_b = {end: i for i, end in enumerate(ends_b) if 0 < end <= length}
    return [(last_a[end], last_b[end]) for end in sorted(last_a.keys() & last_b.keys())]


def encode_spans(tokenizer: Any, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Ids of a text without special tokens, and the first and past-the-last character of each."""
    try:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    except (NotImplementedError, ValueError) as error:
        raise InputError(
            teach(
                "a fast tokenizer, which reports where in the text its tokens are",
                f"{type(tokenizer).__name__} ({error})",
                "pass one with --tokenizer or --tokenizer-b",
            )
        ) from error
    return list(encoded["input_ids"]), [(int(start), int(end)) for start, end in encoded["offset_mapping"]]


def cut_piece(text: str, ids: Sequence[int], spans: Sequence[tuple[int, int]], start: int, stop: int) -> Piece:
    """Tokens start .. stop of a text with exactly the whole characters that they cover.

    A piece begins where the token before it ends, since many tokenizers leave a token's leading space out of its span.
    """
    begin = spans[start - 1][1] if start else 0
    end = len(text)
    if stop < len(ids):
        whole = [e for _, e in spans[start:stop] if e <= max(spans[stop][0], begin)]
        end = max(whole, default=begin)
    return Piece(text[begin:end], tuple(ids[start:stop]), tuple(e - begin for _, e in spans[start:stop]))


def text_pieces(texts: Sequence[str], encoder: Encoder, *, length: int | None = None) -> list[Piece]:
    """One piece per text, cut to `length` tokens where it is given."""
    pieces = []
    for text in texts:
        ids, spans = encode_spans(encoder.tokenizer, text)
        stop = len(ids) if length is None else min(len(ids), length - len(encoder.prefix))
        pieces.append(cut_piece(text, ids, spans, 0, stop))
    return pieces


def file_pieces(files: Sequence[str | Path], encoder: Encoder, *, length: int, samples: int) -> list[Piece]:
    """Windows of `length` tokens spread evenly over the files: the ids that `repflow.tasks.file_prompts` gives."""
    from repflow.tasks.make import check_size, read_text

    check_size(length, samples)
    size = length - len(encoder.prefix)
    pieces = []
    for file in files:
        text = read_text(Path(file))
        ids, spans = encode_spans(encoder.tokenizer, text)
        pieces += [cut_piece(text, ids, spans, at, at + size) for at in range(0, len(ids) - size + 1, size)]
    if len(pieces) < samples:
        raise InputError(
            teach(
                f"text for {samples} windows of {length} tokens",
                f"{len(pieces)}",
                "pass more text, a smaller --length or fewer --samples",
            )
        )
    return [pieces[i * len(pieces) // samples] for i in range(samples)]


def check_vocabularies(model_a: Model, model_b: Model) -> int:
    """Refuse the same ids for models to which they mean different tokens; else the number of ids both take."""
    tokenizers = (model_a.tokenizer, model_b.tokenizer)
    if None in tokenizers:
        equal = model_a.vocab_size == model_b.vocab_size
    else:  # the embedding may be padded, so its size says less than the tokens themselves
        equal = tokenizers[0] is tokenizers[1] or tokenizers[0].get_vocab() == tokenizers[1].get_vocab()
    if not equal:
        raise InputError(
            teach(
                "two models with the same vocabulary, to which equal ids mean the same",
                f"{model_a.name} ({model_a.vocab_size} ids) and {model_b.name} ({model_b.vocab_size} ids)",
                "compare them on text: --task text --text FILE",
            )
        )
    return min(model_a.vocab_size, model_b.vocab_size)


def check_paired(paired: PairedPrompts, model_a: Model, model_b: Model, *, least: int) -> None:
    """Refuse pairs that the models cannot take or that no estimate can be made of.

    Args:
        paired: the prompts.
        model_a: first model.
        model_b: second model.
        least: matched tokens that every sample needs.
    """
    from repflow.tasks import check_fit

    for model, prompts in ((model_a, paired.a), (model_b, paired.b)):
        check_fit(prompts, model.max_length, model.vocab_size)
        largest = max(max(prompt.ids) for prompt in prompts)
        if largest >= model.vocab_size:
            expected = f"token ids below {model.vocab_size} for {model.name}"
            raise InputError(teach(expected, str(largest), "check that the tokenizer is the model's own"))
    share = paired.kept_share
    worst = int(share.argmin())
    if share[worst] < MIN_KEPT:
        raise InputError(
            teach(
                f"at least {MIN_KEPT:.0%} of the tokens at shared character boundaries",
                f"{share[worst]:.1%} in sample {worst} ({paired.matched[worst]} of"
                f" {max(paired.a.lengths[worst], paired.b.lengths[worst])} tokens)",
                "these tokenizers cut the text too differently to compare states row by row",
            )
        )
    if paired.matched.min() < least:
        at = int(paired.matched.argmin())
        raise InputError(
            teach(
                f"at least {least} matched tokens in every sample",
                f"{paired.matched[at]} in sample {at}",
                "use longer prompts or a smaller --neighbours",
            )
        )
