"""The tasks without anything to find: `text` (files or strings), `random` (seeded ids), and given ids."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.tasks.prompt import Encoder, Prompt, Prompts, bos_prefix, token_strings

PACKED: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".xz": lzma.decompress}
"""How a file is unpacked, by the end of its name."""
MOST_TOKENS = 10**9
"""Tokens of all prompts together, which are kept in memory; more is a slip of the keyboard."""


def random_prompts(
    vocab_size: int,
    *,
    length: int,
    samples: int,
    seed: int = 0,
    tokenizer: Any = None,
    bos: str = "model",
    bos_id: int | None = None,
    without: Collection[int] = (),
) -> Prompts:
    """Uniform random token ids: what the architecture does when the input says nothing.

    Example of the data, vocabulary 100, length 6: `37 4 91 4 62 10`. Sample i depends on the seed and i alone. Ids in
    `without` are never drawn: a padding id's embedding is zero in many models, and a zero vector has no direction.

    >>> random_prompts(3, length=6, samples=1, without=[1])[0].ids
    (2, 2, 2, 0, 0, 0)
    """
    check_size(length, samples)
    if seed < 0:
        raise InputError(teach("a seed of 0 or more", f"{seed}", "pass --seed 0"))
    prefix = bos_prefix(tokenizer, bos, bos_id)
    ids_allowed = np.setdiff1d(np.arange(vocab_size), list(without))
    if not len(ids_allowed):
        got = f"none of {vocab_size} once padding is left out"
        raise InputError(teach("token ids to draw from", got, "check the model's vocab_size"))
    prompts = []
    for index in range(samples):
        rng = np.random.default_rng([seed, index])
        body = ids_allowed[rng.integers(0, len(ids_allowed), size=length - len(prefix))].tolist()
        ids = (*prefix, *body)
        prompts.append(Prompt(ids, None, tuple(token_strings(tokenizer, ids)), bool(prefix)))
    return Prompts("random", tuple(prompts))


def text_prompts(texts: Sequence[str], encoder: Encoder, *, length: int | None = None, task: str = "text") -> Prompts:
    """One prompt per text, cut to `length` tokens where it is given."""
    prompts = []
    for text in texts:
        ids = encoder.ids(text)
        if length is not None and len(ids) > (room := length - len(encoder.prefix)):
            prompts.append(encoder.prompt(ids[:room], encoder.text(ids[:room])))
        else:
            prompts.append(encoder.prompt(ids, text))
    return Prompts(task, tuple(prompts))


def file_prompts(files: Sequence[str | Path], encoder: Encoder, *, length: int, samples: int) -> Prompts:
    """Windows of exactly `length` tokens, spread evenly over the files, which are read one after the other.

    Windows do not cross from one file into the next. A file shorter than one window is left out; having too few
    windows in all is an error.
    """
    check_size(length, samples)
    size = length - len(encoder.prefix)
    windows: list[list[int]] = []
    longest = 0
    for file in files:
        ids = encoder.ids(read_text(Path(file)))
        longest = max(longest, len(ids))
        windows += [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)]
    if len(windows) < samples:
        raise InputError(
            teach(
                f"text for {samples} windows of {length} tokens",
                f"{len(windows)} (longest file: {longest} tokens)",
                "pass more text, a smaller --length or fewer --samples",
            )
        )
    chosen = [windows[i * len(windows) // samples] for i in range(samples)]
    return Prompts("text", tuple(encoder.prompt(ids, encoder.text(ids)) for ids in chosen))


def id_prompts(ids: Any, vocab_size: int, *, tokenizer: Any = None, bos_id: int | None = None) -> Prompts:
    """Given token ids, one sequence or tensor per sample, taken as they are."""
    prompts = []
    for index, row in enumerate(ids):
        values = _whole_numbers(row, index)
        if values and not 0 <= min(values) <= max(values) < vocab_size:
            raise InputError(
                teach(
                    f"token ids from 0 to {vocab_size - 1}",
                    f"{min(values)} to {max(values)} in sample {index}",
                    "encode with this model's own tokenizer",
                )
            )
        begins = bool(values) and values[0] == bos_id
        prompts.append(Prompt(values, None, tuple(token_strings(tokenizer, values)), begins))
    return Prompts("ids", tuple(prompts))


def _whole_numbers(row: Any, index: int) -> tuple[int, ...]:
    """Ids of one sample; 1.5 or a nested list is a mistake, not an id."""
    values = row.tolist() if hasattr(row, "tolist") else row
    if isinstance(values, Sequence) and set(map(type, values)) == {int}:  # the usual case, without a loop in Python
        return tuple(values)
    if not isinstance(values, Sequence) or not all(isinstance(i, (int, np.integer)) for i in values):
        got = f"{str(row)[:60]} in sample {index}"
        raise InputError(teach("whole numbers as token ids (batch, token)", got, "pass one list of ids per prompt"))
    return tuple(int(i) for i in values)


def check_size(length: int, samples: int) -> None:
    """Check the two sizes every task takes."""
    if length < 2 or samples < 1:
        raise InputError(
            teach("length >= 2 and samples >= 1", f"length {length}, samples {samples}", "raise the smaller one")
        )
    if length * samples > MOST_TOKENS:
        got = f"{samples} prompts of {length} tokens"
        raise InputError(teach(f"at most {MOST_TOKENS:,} tokens in all prompts", got, "lower --length or --samples"))


def read_text(path: Path) -> str:
    """Read a UTF-8 file, compressed if its name ends with .gz or .xz, or say why it cannot be used."""
    try:
        data = PACKED.get(path.suffix, bytes)(path.read_bytes())
        text = (
            data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        )  # a byte-order mark is no part of the text
    except UnicodeDecodeError as error:
        raise InputError(teach(f"UTF-8 text in {path}", str(error), "convert the file to UTF-8")) from None
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        kind = "gzipped" if path.suffix == ".gz" else "compressed"
        raise InputError(teach(f"{kind} text in {path}", str(error), "compress it again or unpack it")) from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; check the path") from None
    if not text.strip():
        raise InputError(teach(f"text in {path}", "an empty file", "pass a file with text"))
    return text
