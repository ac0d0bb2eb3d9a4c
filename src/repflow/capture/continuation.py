"""What follows a prompt: probabilities of given words and the greedy answer, from one reading of the prompt.

The prompt is read once; every word that may follow it, and the greedy answer, go on from the state the model kept of it
(keys and values, SSM states). Where a model keeps no such state, or one that says something else than the whole forward
pass, prompt and word are read together, each time from the beginning (`keeps_state`).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from repflow.capture.run import out_of_memory
from repflow.errors import InputError, teach
from repflow.metrics.meter import on_device
from repflow.models import Model
from repflow.models.anatomy import text_config

CACHES = ("past_key_values", "cache_params", "state")
"""Names under which transformers' models take and return what they keep of a prompt."""
TOLERANCE = {torch.float64: 1e-4, torch.float32: 2e-3}
HALF_TOLERANCE = 0.2
"""Nats by which two ways to the same log-probability may differ, in half precision and above."""
COPIES = {"cpu": 256 << 20}
MOST_COPIES = 4 << 30
"""Bytes of state that may be copied at once for words side by side; on a CPU fresh memory costs more than a step."""


class Continuation:
    """A batch of prompts of equal length, read once by whole forward passes that begin anew for every word.

    Attributes:
        first: logits behind the prompts (batch, vocabulary).
    """

    def __init__(self, model: Model, ids: Tensor) -> None:
        if model.head is None:
            remedy = "load the causal language model"
            raise InputError(teach("a model with a head", f"{model.name} without one", remedy))
        self.model, self.ids = model, ids
        self.first = self._read()

    def _read(self) -> Tensor:
        return self._whole(self.ids, 1)[:, 0]

    def together(self, words: int) -> int:
        """How many of so many words may follow each prompt side by side."""
        return 1

    def follow(self, tokens: Tensor) -> Iterator[Tensor]:
        """Logits (batch × word, vocabulary) behind each token in turn of the words that follow the prompts.

        Args:
            tokens: (batch × word, token), the words of a prompt next to each other.
        """
        times = len(tokens) // len(self.ids)
        whole = torch.cat([self.ids.repeat_interleave(times, 0), tokens], 1)
        yield from self._whole(whole, tokens.shape[1]).unbind(1)

    def _whole(self, ids: Tensor, last: int) -> Tensor:
        normed: list[Tensor] = []
        self.model.stream(ids, on_state=_nothing, on_final_norm=lambda hidden: normed.append(hidden[:, -last:]))
        with torch.inference_mode():
            return self.model.logits(normed[0])

    def greedy(self, tokens: int, end: int | None = None) -> Tensor:
        """Most likely token after token (batch, token); rows that ended are filled up with the end token."""
        made: list[Tensor] = []
        logits, ended = self.first, torch.zeros(len(self.ids), 1, dtype=torch.bool)
        for step in range(tokens):
            best = logits.argmax(-1, keepdim=True).cpu()
            if end is not None:
                best = torch.where(ended, end, best)
                ended |= best == end
            made.append(best)
            if step == tokens - 1 or bool(ended.all()):
                break
            logits = self._next(torch.cat(made, 1))
        return torch.cat(made, 1)

    def _next(self, made: Tensor) -> Tensor:
        return self._whole(torch.cat([self.ids, made], 1), 1)[:, 0]


def _nothing(*_: Any) -> None:
    """States pass by."""


class CachedContinuation(Continuation):
    """The same from the state that the model keeps of the prompts."""

    def __init__(self, model: Model, ids: Tensor) -> None:
        self._base = model.reading.base
        self._taken = inspect.signature(self._base.forward).parameters
        self._walk: Any = None
        super().__init__(model, ids)

    def _read(self) -> Tensor:
        given = {}
        if "past_key_values" in self._taken:  # not every model returns the one it makes by itself
            given["past_key_values"] = DynamicCache(config=text_config(self.model.network.config))
        before = {(module, name): value for module, name, value in _module_tensors(self._base)}
        self._cache, first = self._run(self.ids, given, 0)
        self._inside = [
            (module, name, value.clone())
            for module, name, value in _module_tensors(self._base)
            if before.get((module, name)) is not value
        ]
        return first

    def _run(self, ids: Tensor, cache: dict[str, Any], behind: int) -> tuple[dict[str, Any], Tensor]:
        """One forward pass behind so many tokens: the cache after it and the logits of the last token."""
        device = self.model.device
        places = {}
        if "position_ids" in self._taken:  # hybrids whose first layer keeps no keys would count from 0
            places["position_ids"] = torch.arange(behind, behind + ids.shape[1], device=device)[None]
        with torch.inference_mode():
            output = self._base(input_ids=on_device(ids, device), use_cache=True, **places, **cache)
            found = {name: output[name] for name in CACHES if name in self._taken and output.get(name) is not None}
            if not found and not cache:
                raise InputError(teach("a model that keeps a state of its prompt", self.model.name, "read it whole"))
            return found or cache, self.model.logits(output.last_hidden_state[:, -1])

    def together(self, words: int) -> int:
        """As many as there is room to copy the state for."""
        if not all(hasattr(cache, "reorder_cache") for cache in self._cache.values()):
            return 1
        size = sum(_bytes(cache) for cache in self._cache.values()) + sum(value.nbytes for *_, value in self._inside)
        return max(1, min(words, COPIES.get(self.model.device.type, MOST_COPIES) // max(1, size)))

    def _begin(self, times: int = 1) -> dict[str, Any]:
        """A copy of what was kept of the prompts, each of them so many times, to go on from."""
        rows = torch.arange(len(self.ids)).repeat_interleave(times)
        made = {name: copy.deepcopy(cache) for name, cache in self._cache.items()}
        for cache in made.values() if times > 1 else ():
            cache.reorder_cache(rows.to(self.model.device))
        for module, name, value in self._inside:
            setattr(module, name, value[rows.to(value.device)])
        return made

    def follow(self, tokens: Tensor) -> Iterator[Tensor]:
        """Logits behind each token in turn: several tokens at once would begin anew in some SSMs."""
        cache = self._begin(len(tokens) // len(self.ids))
        for place in range(tokens.shape[1]):
            cache, logits = self._run(tokens[:, place : place + 1], cache, self.ids.shape[1] + place)
            yield logits

    def greedy(self, tokens: int, end: int | None = None) -> Tensor:
        """Most likely token after token."""
        self._walk = self._begin()
        try:
            return super().greedy(tokens, end)
        finally:
            self._walk = None

    def _next(self, made: Tensor) -> Tensor:
        self._walk, logits = self._run(made[:, -1:], self._walk, self.ids.shape[1] + made.shape[1] - 1)
        return logits


def _module_tensors(base: Any) -> list[tuple[Any, str, Tensor]]:
    """Tensors that modules hold beside weights and buffers: RecurrentGemma keeps its state there."""
    return [
        (module, name, value)
        for module in base.modules()
        for name, value in module.__dict__.items()
        if isinstance(value, Tensor)
    ]


def _bytes(cache: Any) -> int:
    """Bytes of the tensors in what a model keeps."""
    if isinstance(cache, Tensor):
        return cache.nbytes
    if isinstance(cache, dict):
        return sum(map(_bytes, cache.values()))
    if isinstance(cache, list | tuple):
        return sum(map(_bytes, cache))
    return _bytes(vars(cache)) if hasattr(cache, "__dict__") and not isinstance(cache, type) else 0


def read_prompts(model: Model, ids: Tensor, *, cached: bool) -> Continuation:
    """Read a batch of prompts of equal length (batch, token).

    Args:
        model: with a head.
        ids: token ids.
        cached: go on from the model's own state; see `keeps_state`.
    """
    return CachedContinuation(model, ids) if cached else Continuation(model, ids)


def word_logprobs(read: Continuation, words: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
    """Log-probability of whole words behind each prompt: log p(w) = sum_i log p(w_i | prompt, w_1 .. w_{i-1}).

    Args:
        read: the prompts.
        words: per prompt its words, each a sequence of token ids; all prompts have equally many (batch, word).

    Returns:
        (batch, word) in nats, float64.
    """
    first = _log_softmax(read.first)
    count = len(words[0])
    group = read.together(count)
    parts = [_group_logprobs(read, first, [row[at : at + group] for row in words]) for at in range(0, count, group)]
    return np.concatenate(parts, 1)


def _group_logprobs(read: Continuation, first: Tensor, words: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
    """Log-probabilities of a few words (batch, word), side by side."""
    sizes = torch.tensor([[len(word) for word in row] for row in words])
    longest = int(sizes.max())
    # behind its end a word repeats its last token, whose probability is not counted
    ids = torch.tensor([[[*word, *[word[-1]] * (longest - len(word))] for word in row] for row in words])
    total = first.gather(1, ids[..., 0].to(first.device)).cpu()
    if longest > 1:
        flat = ids.flatten(0, 1)
        for place, logits in enumerate(read.follow(flat[:, :-1]), start=1):
            step = _log_softmax(logits).gather(1, flat[:, place, None].to(logits.device))
            total += torch.where(sizes > place, step.cpu().reshape(total.shape), 0.0)
    return total.numpy()


def _log_softmax(logits: Tensor) -> Tensor:
    with torch.inference_mode():
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1).double()


def keeps_state(model: Model, ids: Tensor, words: Sequence[Sequence[Sequence[int]]], *, tokens: int = 4) -> bool:
    """Whether going on from the model's own state gives what whole forward passes give, on a few prompts.

    transformers' caches of some architectures fail, or keep another state than the forward pass.
    """
    try:
        read = CachedContinuation(model, ids)
        ours, answer = word_logprobs(read, words), read.greedy(tokens)
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
        if out_of_memory(error):
            raise
        return False
    whole = Continuation(model, ids)
    theirs = word_logprobs(whole, words)
    if not np.isfinite(theirs).all():
        return bool((np.isfinite(ours) == np.isfinite(theirs)).all())
    near = bool(np.abs(ours - theirs).max() <= TOLERANCE.get(model.dtype, HALF_TOLERANCE))
    # half precision may choose another of two nearly equal tokens
    return near and (model.dtype not in TOLERANCE or torch.equal(answer, whole.greedy(tokens)))
