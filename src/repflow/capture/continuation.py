"""What follows a prompt: probabilities of given words and the greedy answer, from one reading of the prompt.

The prompt is read once, in one whole pass; every word that may follow it, and the greedy answer, continue token by
token from the state that was kept of it: repflow's own of Mamba layers (`repflow.models.fastpath.memory`),
transformers' cache of others (keys and values, SSM states). Where a model keeps no such state, or one that says
something else than the whole forward pass, prompt and word are read together, each time from the beginning
(`keeps_state`).

All prompts of a batch are of equal length: padding would move a recurrent state on.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repflow.capture.key_values import held_bytes, roomy_cache
from repflow.capture.token_graph import LEAST_STEPS, Step, captured
from repflow.core.errors import InputError, out_of_memory, teach
from repflow.core.seconds import timed
from repflow.metrics.meter import on_device
from repflow.models import Model
from repflow.models.anatomy import text_config
from repflow.models.fastpath.memory import Memory, remembers
from repflow.models.reading import hidden_of, input_of
from repflow.models.streams import OUTER

CACHES = ("past_key_values", "cache_params", "state")
"""Names under which transformers' models take and return what they keep of a prompt."""
TOLERANCE = {torch.float64: 1e-4, torch.float32: 2e-3}
"""Nats by which two ways to the same log-probability may differ; half precision is compared block by block."""
BRANCH_TOLERANCE = 0.05
"""Share of a block's branch by which it may differ in half precision, beside two roundings of the stream."""
CHECKED_TOKENS = 128
"""Tokens of a prompt that the blocks are compared on."""
LOOK = 16
"""Greedy tokens made between two looks at whether all rows have ended: a look waits for the GPU."""
COPIES = {"cpu": 256 << 20}
MOST_COPIES = 4 << 30
"""Bytes of state that may be copied at once for words side by side; on a CPU fresh memory costs more than a step."""


class Continuation:
    """A batch of prompts of equal length, read by whole forward passes that start over for every word.

    Attributes:
        first: logits after the prompts (batch, vocabulary).
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
        """How many of these words may follow each prompt side by side."""
        return 1

    def follow(self, tokens: Tensor) -> Iterator[Tensor]:
        """Logits (batch × word, vocabulary) after each token, in turn, of the words that follow the prompts.

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

    def greedy(self, tokens: int, end: int | None = None, *, last: bool = False) -> Tensor:
        """Most likely token after token (batch, token); rows that ended are padded with the end token.

        Args:
            tokens: Most tokens of a row.
            end: Token that ends a row.
            last: Nothing else will be read after these prompts, so what was kept of them need not be copied.
        """
        picks: list[Tensor] = []
        logits = self.first
        ended = torch.zeros(len(self.ids), 1, dtype=torch.bool, device=logits.device)
        for step in range(tokens):
            best = logits.argmax(-1, keepdim=True)
            if end is not None:
                best = torch.where(ended, end, best)
                ended = ended | (best == end)
            picks.append(best)
            if step == tokens - 1 or (end is not None and step % LOOK == LOOK - 1 and bool(ended.all())):
                break
            logits = self._next(picks, last)
        whole = torch.cat(picks, 1).cpu()
        if end is None:
            return whole
        # as if it had looked at every token
        going = (whole != end).any(0).long()
        return whole[:, : min(whole.shape[1], int((going * torch.arange(1, len(going) + 1)).max()) + 1)]

    def _next(self, picks: list[Tensor], last: bool) -> Tensor:
        return self._whole(torch.cat([self.ids.to(picks[0].device), *picks], 1), 1)[:, 0]


def _nothing(*_: Any) -> None:
    """States pass by."""


class CachedContinuation(Continuation):
    """The same from the state that the model keeps of the prompts."""

    def __init__(self, model: Model, ids: Tensor) -> None:
        self._base = model.reading.base
        self._taken = inspect.signature(self._base.forward).parameters
        self._walk: Any = None
        self._cache: Any = None
        super().__init__(model, ids)

    def _read(self) -> Tensor:
        cache = {}
        if "past_key_values" in self._taken:  # not every model returns the one it makes by itself
            cache["past_key_values"] = roomy_cache(text_config(self.model.network.config))
        before = {(module, name): value for module, name, value in _module_tensors(self._base)}
        self._cache, first = self._run(self.ids, cache, 0)
        self._inside = [
            (module, name, value.clone())
            for module, name, value in _module_tensors(self._base)
            if before.get((module, name)) is not value
        ]
        return first

    @timed("forward")
    def _run(self, ids: Tensor, cache: dict[str, Any], behind: int) -> tuple[dict[str, Any], Tensor]:
        """One forward pass after `behind` tokens: the cache after it and the logits of the last token."""
        device = self.model.device
        places = {}
        if "position_ids" in self._taken:  # hybrids whose first layer keeps no keys would count from 0
            places["position_ids"] = torch.arange(behind, behind + ids.shape[1], device=device)[None]
        with torch.inference_mode():
            output = self._base(input_ids=on_device(ids, device), use_cache=True, **places, **cache)
            caches = {name: output[name] for name in CACHES if name in self._taken and output.get(name) is not None}
            if not caches and not cache:
                raise InputError(teach("a model that keeps a state of its prompt", self.model.name, "read it whole"))
            return caches or cache, self.model.logits(output.last_hidden_state[:, -1])

    def together(self, words: int) -> int:
        """As many as there is room to copy the state for."""
        if not all(hasattr(cache, "reorder_cache") for cache in self._cache.values()):
            return 1
        size = sum(held_bytes(cache) for cache in self._cache.values()) + sum(
            value.nbytes for *_, value in self._inside
        )
        return max(1, min(words, COPIES.get(self.model.device.type, MOST_COPIES) // max(1, size)))

    def _begin(self, times: int = 1) -> dict[str, Any]:
        """A copy of what was kept of the prompts, each repeated `times` times, to continue from."""
        rows = torch.arange(len(self.ids)).repeat_interleave(times)
        caches = {name: copy.deepcopy(cache) for name, cache in self._cache.items()}
        for cache in caches.values() if times > 1 else ():
            cache.reorder_cache(rows.to(self.model.device))
        for module, name, value in self._inside:
            setattr(module, name, value[rows.to(value.device)])
        return caches

    def follow(self, tokens: Tensor) -> Iterator[Tensor]:
        """Logits after each token in turn: some SSMs would start over with several tokens at once."""
        cache = self._begin(len(tokens) // len(self.ids))
        for place in range(tokens.shape[1]):
            cache, logits = self._run(tokens[:, place : place + 1], cache, self.ids.shape[1] + place)
            yield logits

    def greedy(self, tokens: int, end: int | None = None, *, last: bool = False) -> Tensor:
        """Most likely token after token."""
        self._walk = None
        try:
            return super().greedy(tokens, end, last=last)
        finally:
            self._walk = None

    def _next(self, picks: list[Tensor], last: bool) -> Tensor:
        if self._walk is None:
            self._walk = self._cache if last and not self._inside else self._begin()
        self._walk, logits = self._run(picks[-1], self._walk, self.ids.shape[1] + len(picks) - 1)
        return logits


def on_gpu(model: Model) -> bool:
    """Whether all of a model is on one GPU, so that its steps can be captured."""
    return model.device.type == "cuda" and {p.device for p in model.network.parameters()} == {model.device}


class OwnContinuation(CachedContinuation):
    """The same from repflow's own states of Mamba layers, in a model that runs without a cache.

    Attributes:
        graphs: run greedy steps as CUDA graphs on a GPU.
    """

    graphs = True
    _step: Step | None = None

    def _read(self) -> Tensor:
        self._inside = []
        self._cache, first = self._run(self.ids, Memory(), 0)
        if len(self._cache.layers) != len(self.model.blocks):
            got = f"{len(self._cache.layers)} of {len(self.model.blocks)} that do"
            raise InputError(teach("layers that keep a state", got, "read the prompts whole"))
        return first

    @timed("forward")
    def _run(self, ids: Tensor, cache: Any, behind: int) -> tuple[Any, Tensor]:
        with torch.inference_mode(), cache.active():
            arguments = self.model.reading.arguments(on_device(ids, self.model.device), None)
            return cache, self.model.logits(self._base(**arguments).last_hidden_state[:, -1])

    def _next(self, picks: list[Tensor], last: bool) -> Tensor:
        """The first token launch by launch, which compiles what it needs; the others as one graph on a GPU."""
        if self._walk is None or not self.graphs or not on_gpu(self.model):
            return super()._next(picks, last)
        if self._step is None:
            self._step = captured(self._launched, picks[-1])
        with torch.inference_mode():
            return self._step(picks[-1])

    def _launched(self, ids: Tensor) -> Tensor:
        return self._run(ids, self._walk, 0)[1]

    def greedy(self, tokens: int, end: int | None = None, *, last: bool = False) -> Tensor:
        """Most likely token after token."""
        self._step = None if tokens >= LEAST_STEPS else self._launched
        try:
            return super().greedy(tokens, end, last=last)
        finally:
            self._step = None

    def together(self, words: int) -> int:
        """As many as there is room to copy the state for."""
        room = COPIES.get(self.model.device.type, MOST_COPIES)
        return max(1, min(words, room // max(1, self._cache.nbytes)))

    def _begin(self, times: int = 1) -> Any:
        return self._cache.rows(torch.arange(len(self.ids)).repeat_interleave(times))


def _module_tensors(base: Any) -> list[tuple[Any, str, Tensor]]:
    """Tensors that modules hold beside weights and buffers: RecurrentGemma keeps its state there."""
    return [
        (module, name, value)
        for module in base.modules()
        for name, value in module.__dict__.items()
        if isinstance(value, Tensor)
    ]


def read_prompts(model: Model, ids: Tensor, *, cached: bool) -> Continuation:
    """Read a batch of prompts of equal length (batch, token).

    Args:
        model: with a head.
        ids: token ids.
        cached: continue from the state kept of them; see `keeps_state`.
    """
    if not cached:
        return Continuation(model, ids)
    return OwnContinuation(model, ids) if remembers(model.blocks) else CachedContinuation(model, ids)


def word_logprobs(continuation: Continuation, words: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
    """Log-probability of whole words after each prompt: log p(w) = sum_i log p(w_i | prompt, w_1 .. w_{i-1}).

    Args:
        continuation: The prompts, read once.
        words: Per prompt its words, each a sequence of token ids; all prompts have equally many (batch, word).

    Returns:
        (batch, word) in nats, float64.
    """
    first = _log_softmax(continuation.first)
    count = len(words[0])
    group = continuation.together(count)
    parts = [
        _group_logprobs(continuation, first, [row[at : at + group] for row in words]) for at in range(0, count, group)
    ]
    return np.concatenate(parts, 1)


def _group_logprobs(continuation: Continuation, first: Tensor, words: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
    """Log-probabilities of a few words (batch, word), side by side."""
    sizes = torch.tensor([[len(word) for word in row] for row in words])
    longest = int(sizes.max())
    # behind its end a word repeats its last token, whose probability is not counted
    ids = torch.tensor([[[*word, *[word[-1]] * (longest - len(word))] for word in row] for row in words])
    total = first.gather(1, ids[..., 0].to(first.device)).cpu()
    if longest > 1:
        flat = ids.flatten(0, 1)
        for place, logits in enumerate(continuation.follow(flat[:, :-1]), start=1):
            step = _log_softmax(logits).gather(1, flat[:, place, None].to(logits.device))
            total += torch.where(sizes > place, step.cpu().reshape(total.shape), 0.0)
    return total.numpy()


def _log_softmax(logits: Tensor) -> Tensor:
    with torch.inference_mode():
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1).double()


def keeps_state(
    model: Model, ids: Tensor, words: Sequence[Sequence[Sequence[int]]] | None = None, *, tokens: int = 4
) -> bool:
    """Whether continuing from the stored state gives what whole forward passes give, on a few prompts of equal length.

    transformers' caches of some architectures fail, or keep another state than the forward pass. In float32 and above
    log-probabilities are compared: of words, where there are any, and along the greedy answer. In half precision
    rounding alone may change them arbitrarily (a random Mamba amplifies it from block to block), so every block is
    compared separately, on the input it had in the whole pass.

    Args:
        model: with a head.
        ids: (batch, token).
        words: per prompt the words that will follow it.
        tokens: of the greedy answer.
    """
    try:
        if model.dtype not in TOLERANCE:
            return blocks_agree(model, ids[:, :CHECKED_TOKENS])
        cached, whole = read_prompts(model, ids, cached=True), Continuation(model, ids)
        answer = whole.greedy(tokens)
        pairs = [(_along(cached, answer), _along(whole, answer))]
        if words is not None:
            pairs.append((word_logprobs(cached, words), word_logprobs(whole, words)))
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
        if out_of_memory(error):
            raise
        return False
    return all(_near(ours, theirs, TOLERANCE[model.dtype]) for ours, theirs in pairs)


def _along(continuation: Continuation, tokens: Tensor) -> np.ndarray:
    """Log-probabilities of the whole vocabulary after the prompts and after each of these tokens but the last."""
    logits = [continuation.first, *(continuation.follow(tokens[:, :-1]) if tokens.shape[1] > 1 else [])]
    return torch.stack([_log_softmax(part).cpu() for part in logits]).numpy()


def _near(ours: np.ndarray, theirs: np.ndarray, tolerance: float) -> bool:
    if not np.isfinite(theirs).all():
        return bool((np.isfinite(ours) == np.isfinite(theirs)).all())
    return bool(np.abs(ours - theirs).max() <= tolerance)


def blocks_agree(model: Model, ids: Tensor, *, steps: int = 2, tolerance: float = BRANCH_TOLERANCE) -> bool:
    """Whether every block, given the inputs of a whole pass one token at a time, gives the same outputs."""
    if ids.shape[1] <= steps or (model.streams is not None and model.streams.layout == OUTER):
        return False  # streams before the batch axis: their tokens stand elsewhere
    stream: list[tuple[Tensor, Tensor]] = []
    entering: list[Tensor] = []

    def keep(_: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        entering.append(input_of(args, kwargs).clone())

    with _hooked(model, keep, lambda _, __, output: stream.append((entering.pop(), hidden_of(output).clone()))):
        Continuation(model, ids)
    cut = ids.shape[1] - steps
    place, worst = [slice(0, cut)], [0.0]
    at = dict(zip(model.blocks, stream, strict=True))

    def replace(block: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        state = at[block][0][:, place[0]]
        if args:
            return (state, *args[1:]), kwargs
        name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
        return args, {**kwargs, name: state}

    def compare(block: Any, _: Any, output: Any) -> None:
        before, after = (part[:, place[0]].float() for part in at[block])
        allowed = tolerance * (after - before).abs().max() + 2 * torch.finfo(model.dtype).eps * after.abs().max()
        worst[0] = max(worst[0], float((hidden_of(output).float() - after).abs().max() / allowed))

    with _hooked(model, replace, compare):
        behind = read_prompts(model, ids[:, :cut], cached=True).follow(ids[:, cut:])
        for step in range(steps):
            place[0] = slice(cut + step, cut + step + 1)
            next(behind)
    return worst[0] <= 1  # NaN is not


@contextmanager
def _hooked(model: Model, before: Any, after: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for block in model.blocks:
            stack.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(block.register_forward_hook(after).remove)
        yield
