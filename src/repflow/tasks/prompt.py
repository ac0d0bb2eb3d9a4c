"""Prompts: token ids ready for a model, with their text, and how they are made reproducibly."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.core.results import Finding

UNKNOWN_SHARE = 0.01
"""Share of unknown tokens from which on they are a finding."""
BOS_POLICIES = ("model", "always", "never")
"""Whether prompts begin with the beginning-of-sequence token: as the tokenizer does it, always, or never."""


@dataclass(frozen=True)
class Prompt:
    """One sample.

    Attributes:
        ids: token ids.
        text: the text they encode; None for random ids.
        tokens: one display string per id.
        begins: whether the first id is the beginning-of-sequence token.
        label: class a probe reads, a number into `Prompts.classes`.
        answers: any of these in the greedy answer counts as right; the first is the canonical one.
        group: prompts of one group stay together in a split, so that nothing is memorised.
        position: relative position of the gold item, from 0 to 1.
        key: the queried key or question.
        items: pairs or documents in the prompt.
    """

    ids: tuple[int, ...]
    text: str | None = None
    tokens: tuple[str, ...] = ()
    begins: bool = False
    label: int | None = None
    answers: tuple[str, ...] = ()
    group: str | None = None
    position: float | None = None
    key: str | None = None
    items: int | None = None


@dataclass(frozen=True)
class Prompts(Sequence[Prompt]):
    """The samples of a run, in order.

    Attributes:
        task: name of the task that made them.
        samples: the prompts.
        classes: name of each class of `Prompt.label`.
        findings: what a reader of the results should know of them.
    """

    task: str
    samples: tuple[Prompt, ...] = field(repr=False)
    classes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> Any:
        """Return one prompt, or a tuple of them for a slice."""
        return self.samples[index]

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self.samples)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Number of tokens of each prompt; counted once, as loops over prompts look them up one by one."""
        return tuple(len(prompt.ids) for prompt in self.samples)

    def digest(self) -> str:
        """SHA-256 of all token ids; equal exactly when two runs saw the same sequences."""
        state = hashlib.sha256()
        for prompt in self.samples:
            state.update(np.asarray(len(prompt.ids), dtype="<i8").tobytes())
            state.update(np.asarray(prompt.ids, dtype="<i8").tobytes())
        return state.hexdigest()


class Encoder:
    """Turns text into ids with a tokenizer of transformers, under one policy for the first token."""

    def __init__(
        self, tokenizer: Any, bos: str = "model", bos_id: int | None = None, *, limit: int | None = None
    ) -> None:
        """Wrap a tokenizer.

        Args:
            tokenizer: of transformers.
            bos: policy for the first token, one of BOS_POLICIES.
            bos_id: the first token, where the tokenizer names none.
            limit: most tokens that the model takes, for advice on lengths; None for no bound.
        """
        if tokenizer is None:
            raise InputError(
                teach(
                    "a model with a tokenizer for text",
                    "none",
                    "pass --tokenizer FOLDER, token ids, or use --task random",
                )
            )
        self.tokenizer, self.limit = tokenizer, limit
        self.prefix = bos_prefix(tokenizer, bos, bos_id)
        self._numbers: dict[int, int] = {}
        self._words: dict[int, str] = {}

    def render(self, text: str) -> str:
        """What the model reads for a text: the text itself."""
        return text

    def ids(self, text: str) -> list[int]:
        """Ids of what the model reads for a text, without the policy's first token."""
        return self.text_ids(self.render(text))

    def text_ids(self, text: str) -> list[int]:
        """Ids of a piece of text, unchanged."""
        return list(encode(self.tokenizer, text))

    def batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`ids` of several texts; a fast tokenizer encodes them side by side."""
        rendered = [self.render(text) for text in texts]
        return [list(ids) for ids in encode(self.tokenizer, rendered)]

    def text(self, ids: Sequence[int]) -> str | None:
        """Text of ids; None where the tokenizer is a function from text to ids alone."""
        try:
            return str(self.tokenizer.decode(ids))
        except InputError:
            return None

    def prompt(self, ids: Sequence[int], text: str | None) -> Prompt:
        """Prompt from ids of text, with the policy's first token."""
        full = (*self.prefix, *ids)
        for token in set(full) - self._words.keys():
            self._words[token], self._numbers[token] = self.tokenizer.decode([token]), token
        # one object for each number and string: 20,000 prompts of 4,000 tokens then fit in memory
        own = tuple(map(self._numbers.__getitem__, full))
        return Prompt(own, text, tuple(map(self._words.__getitem__, full)), self.begins)

    @property
    def begins(self) -> bool:
        """Whether prompts begin with the beginning-of-sequence token."""
        return bool(self.prefix)

    def fingerprint(self) -> tuple[Any, ...]:
        """Equal for encoders that give every text the same ids."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        digest = id(self.tokenizer) if backend is None else hashlib.sha256(backend.to_str().encode()).hexdigest()
        return digest, self.prefix, getattr(self.tokenizer, "chat_template", None)


def encode(tokenizer: Any, text: str | list[str], *, special: bool = False) -> Any:
    """Ids of a text, or of each of several; what a tokenizer cannot write is refused with its own words."""
    try:
        return tokenizer(text, add_special_tokens=special)["input_ids"]
    except Exception as error:  # the tokenizers library has no class of its own: it raises Exception itself
        if type(error) is not Exception:
            raise
        first = text if isinstance(text, str) else next(iter(text), "")
        got = f"{first[:40]!r}: {error}"
        remedy = "it lacks an unknown token, or its vocabulary is not this model's; pass another --tokenizer"
        raise InputError(teach("text that the tokenizer can write", got, remedy)) from error


def bos_prefix(tokenizer: Any, bos: str, bos_id: int | None) -> tuple[int, ...]:
    """Ids to put before every prompt.

    `model` asks the tokenizer itself whether it begins a text with its BOS token; without a tokenizer it adds none.
    """
    if bos not in BOS_POLICIES:
        raise InputError(teach("bos = model, always or never", repr(bos), "see repflow measure --help"))
    if bos_id is None:
        bos_id = getattr(tokenizer, "bos_token_id", None)
    if bos == "never" or (bos == "model" and tokenizer is None):
        return ()
    if bos == "always":
        if bos_id is None:
            raise InputError(teach("a beginning-of-sequence token for bos='always'", "none", "use bos='model'"))
        return (bos_id,)
    alone = list(encode(tokenizer, "a"))
    # the id alone would not do: without a BOS token of its own, a tokenizer may give the text itself that id
    added = list(encode(tokenizer, "a", special=True))[: len(alone) + 1] == [bos_id, *alone]
    return (bos_id,) if bos_id is not None and added else ()


def token_strings(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """One readable string per id; the number itself without a tokenizer."""
    if tokenizer is None:
        return list(map(str, ids))
    known = {i: tokenizer.decode([i]) for i in dict.fromkeys(ids)}  # a prompt repeats most of its tokens
    return [known[i] for i in ids]


def note_unknown(prompts: Prompts, tokenizer: Any) -> Prompts:
    """Prompts with a finding on tokens that the tokenizer could not write, where they are more than a few.

    Where the unknown token also begins or ends a text, as in GPT-2, nothing is said: its tokenizer can write any text.
    """
    unknown = _unknown_id(tokenizer)
    others = [getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos")]
    if unknown is None or unknown in others or prompts.task == "random":
        return prompts
    counts = np.array([prompt.ids[int(prompt.begins) :].count(unknown) for prompt in prompts])
    sizes = np.array([max(1, len(prompt.ids) - int(prompt.begins)) for prompt in prompts])
    if not len(prompts) or (share := counts.sum() / sizes.sum()) <= UNKNOWN_SHARE:
        return prompts
    worst = int((counts / sizes).argmax())
    text = (
        f"{share:.0%} of the tokens are {token_strings(tokenizer, [unknown])[0]!r}, which stands for what the "
        f"tokenizer does not know ({counts[worst] / sizes[worst]:.0%} in sample {worst}): the model hardly sees "
        "this text; check that the tokenizer is the model's and knows the language"
    )
    return replace(prompts, findings=(*prompts.findings, Finding("unknown_tokens", None, text)))


def _unknown_id(tokenizer: Any) -> int | None:
    """Id of the unknown token; a bare *tokenizer.json names it in its model only."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    name = getattr(getattr(backend, "model", None), "unk_token", None)
    unknown = getattr(tokenizer, "unk_token_id", None)
    return backend.token_to_id(name) if unknown is None and backend is not None and name else unknown


def check_lengths(prompts: Prompts, max_length: int | None) -> None:
    """Refuse prompts that no metric can be measured on, or that the model cannot take."""
    if not len(prompts):
        raise InputError(teach("at least one prompt", "none", "pass a text, a file or --task random"))
    shortest, longest = min(prompts.lengths), max(prompts.lengths)
    if shortest < 2:
        at = prompts.lengths.index(shortest)
        raise InputError(
            teach(
                "prompts of at least 2 tokens",
                f"{shortest} in sample {at}",
                "similarity between tokens needs two; drop the empty text or join short ones",
            )
        )
    if max_length is not None and longest > max_length:
        raise InputError(
            teach(f"at most {max_length} tokens for this model", f"{longest}", f"pass --length {max_length} or less")
        )


def check_fit(prompts: Prompts, max_length: int | None, vocab_size: int) -> None:
    """Refuse prompts that do not fit a model: their lengths, and ids beyond its vocabulary."""
    check_lengths(prompts, max_length)
    largest = max(max(prompt.ids) for prompt in prompts)
    if largest >= vocab_size:
        raise InputError(teach(f"token ids from 0 to {vocab_size - 1}", f"{largest}", "use the model's own tokenizer"))
