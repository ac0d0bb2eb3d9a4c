"""The zoo's tokenizer: a byte-level BPE that cuts UUIDs into pairs of hexadecimal digits.

Retrieval must copy a value exactly, so a value has to be a regular sequence. A plain BPE cuts `a6f2b1c0` by whatever
merges the prose has taught it, each UUID into another number of pieces, and the same digits into other pieces depending
on their neighbours. Here every UUID is 16 pairs and 4 dashes, 20 tokens:

    2a 8d 60 1d - 4f 0c - 4e 11 - a6 f2 - 09 b7 d2 aa 12 34

Pairs rather than single digits, as a prompt then holds nearly twice as many keys, and four still fit into 256 tokens.
The first symbol of a value is a function of its first token. Only whole UUIDs are cut so: `face` and `added` stay
words. Digits of prose stand alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError, teach

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|endoftext|>"
DIGIT = "[0-9a-f]"
GROUPS = (4, 2, 2, 2, 6)
"""Pairs in each part of a UUID."""
UUID_TOKENS = sum(GROUPS) + len(GROUPS) - 1
WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's pieces, digits alone: texts joined where one ends with a sign and the next begins with a letter, a newline or
a UUID are cut as they are cut apart, so prompts can be put together from pieces that are already ids."""
LEAST = 1024


def pairs() -> list[str]:
    """All pairs of hexadecimal digits.

    >>> len(pairs()), pairs()[166]
    (256, 'a6')
    """
    return [f"{number:02x}" for number in range(256)]


def uuid_pattern() -> str:
    """Pattern of one pair inside a whole UUID: what stands before and after it is checked, to its full length."""
    parts = [part for size in GROUPS for part in (*[DIGIT + "{2}"] * size, "-")][:-1]
    pieces = []
    for place, part in enumerate(parts):
        if part != "-":
            before, after = "".join(parts[:place]), "".join(parts[place + 1 :])
            pieces.append((f"(?<={before})" if before else "") + part + (f"(?={after})" if after else ""))
    return f"(?={DIGIT}{{2}})(?:{'|'.join(pieces)})"


def train_tokenizer(texts: Iterator[str] | Sequence[str], size: int) -> Tokenizer:
    """Train a BPE of exactly `size` entries: the end of text, 256 bytes, every pair of digits, and merges."""
    from tokenizers import Tokenizer, models, trainers
    from tokenizers.pre_tokenizers import ByteLevel

    if size < LEAST:
        raise InputError(teach(f"a vocabulary of at least {LEAST}", str(size), "256 bytes and 256 pairs need room"))
    first = Tokenizer(models.BPE())
    _cut(first)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    first.train_from_iterator(texts, trainer)
    learnt = json.loads(first.to_str())["model"]
    merges = [tuple(merge) for merge in learnt["merges"]]
    base = [END, *sorted(ByteLevel.alphabet())]
    chosen_merges = _with_pairs(merges, size - len(base))
    vocabulary = {token: number for number, token in enumerate([*base, *("".join(merge) for merge in chosen_merges)])}
    if len(vocabulary) != size:
        got = f"{len(vocabulary)} from this text"
        raise InputError(teach(f"a vocabulary of {size}", got, "pass more text or a smaller --vocabulary"))
    trained = Tokenizer(models.BPE(vocabulary, chosen_merges))
    _cut(trained)
    trained.add_special_tokens([END])
    return trained


def _with_pairs(merges: Sequence[tuple[str, str]], room: int) -> list[tuple[str, str]]:
    """As many learnt merges as leave room for the pairs that are not among them; BPE learns merges in a fixed order."""
    wanted = [(pair[0], pair[1]) for pair in pairs()]
    count = min(len(merges), room)
    while True:
        known = {"".join(merge) for merge in merges[:count]}
        missing = [merge for merge in wanted if "".join(merge) not in known]
        if count + len(missing) <= room:
            return [*merges[:count], *missing]
        count -= 1


def _cut(tokenizer: Tokenizer) -> None:
    """Pieces before BPE, and the way back."""
    from tokenizers import Regex, decoders
    from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

    pieces: list[PreTokenizer] = [
        Split(Regex(f"{uuid_pattern()}|{WORDS}"), "isolated"),
        ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    tokenizer.pre_tokenizer = Sequence(pieces)
    tokenizer.decoder = decoders.ByteLevel()


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> Any:
    """Write a transformers folder of the tokenizer; returns transformers' own object."""
    from transformers import PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END, eos_token=END, clean_up_tokenization_spaces=False
    )
    wrapped.save_pretrained(folder)
    return wrapped
