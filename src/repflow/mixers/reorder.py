"""Token reordering (paper 3, section 5.2, Equation 13 and Algorithm 1): sorted by importance before they are mixed.

Glossary: s importance score of a token; K learned vector; S_Δ x what S6's step size is made of; P soft permutation
(rank, token); τ temperature; p power.

    s_t = ⟨K, S_Δ x_t⟩                      ⟨K, x_t⟩ where a mixer has no step size, as the paper does for H3
    P = softmax_row(−|sort(s) 1ᵀ − 1 sᵀ|^p / τ)        SoftSort (Prillo and Eisenschlos 2020)

| form | what a token reads | causal |
|---|---|---|
| `whole` | all tokens of the sequence, sorted: the paper's form | no: it reads later tokens |
| `chunks` | chunks that lie wholly before its own, each sorted; then its own chunk as it is, up to itself | yes |
| `prefix` | all tokens up to itself, sorted: a scan for every token | yes |

The paper sorts whole sequences of a language model, so that a next-token loss is in part read off the answer. Here
such a model has to be asked for by name (`leaky=True`), and what is measured of it says so. A class of a whole text or
image has no such problem.

The paper's text sorts ascending, its Algorithm 1 descending; its code keeps the gate of a token in place while the
token moves (`gate=False`), and does not put outputs back (`restore=False`). τ and p are not printed; the code has 1.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.core.errors import InputError, nearest, teach
from repflow.mixers.base import Mixer
from repflow.mixers.option import at_least, of_kind, one_of
from repflow.mixers.scan.carry import Carry
from repflow.mixers.scan.precision import without_autocast

FORMS = ("whole", "chunks", "prefix")
ORDERS = ("sorted", "identity", "random")
TIES = ("share", "refuse")
CHUNK = 16
"""Tokens of a chunk, unless another number is asked for."""


class NonFiniteScoreError(InputError):
    """An importance score that is not finite, so that no order has a place for it."""


def soft_sort(
    scores: Tensor,
    *,
    temperature: float = 1.0,
    power: float = 1.0,
    descending: bool = False,
    hard: bool = False,
    seen: Tensor | None = None,
    ties: str = "share",
) -> Tensor:
    """Permutation matrix (..., rank, token) of scores (..., token): P @ tokens are the tokens in order.

    Args:
        scores: One per token.
        temperature: τ; the limit 0 is a hard sort.
        power: p.
        descending: Largest first.
        hard: The permutation itself, with the soft one's gradient (straight-through).
        seen: Tokens to sort (..., token); ranks beyond their number have no meaning. All if left out.
        ties: What equal scores do: `share` their ranks in equal parts (hard: they keep their order), or `refuse`.

    >>> soft_sort(torch.tensor([3.0, 1.0, 2.0]), hard=True).argmax(-1).tolist()
    [1, 2, 0]
    >>> soft_sort(torch.tensor([3.0, 1.0, 2.0]), temperature=1e-3).round(decimals=3).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    check_sharpness(temperature, power)
    one_of("ties", ties, TIES)
    if scores.ndim == 0:
        remedy = "pass a score for each token, scores[None] for a single one"
        raise InputError(teach("scores (..., token)", "a number without axes", remedy))
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    _check_scores(scores, ties, seen)
    outside = -math.inf if descending else math.inf
    keys = scores.detach() if seen is None else scores.detach().masked_fill(~seen, outside)
    order = keys.argsort(dim=-1, descending=descending, stable=True)
    scores = scores.expand(order.shape)
    distance = (scores.gather(-1, order).unsqueeze(-1) - scores.unsqueeze(-2)).abs()
    apart = distance > 0  # a power below 1 has no slope at 0
    logits = torch.where(apart, torch.where(apart, distance, 1.0) ** power, 0.0) / -temperature
    if seen is not None:
        logits = logits.masked_fill(~seen.unsqueeze(-2), -math.inf)
    soft = logits.softmax(-1)
    if not hard:
        return soft
    exact = functional.one_hot(order, order.shape[-1]).to(soft.dtype)
    return exact + (soft - soft.detach())


def check_sharpness(temperature: float, power: float) -> None:
    """Refuse a temperature or power that SoftSort is not defined for."""
    if not 0 < temperature < math.inf:
        remedy = "pass hard=True for the sort that a temperature of 0 would be"
        raise InputError(teach("a finite temperature above 0", str(temperature), remedy))
    if not 0 < power < math.inf:
        raise InputError(teach("a finite power above 0", str(power), "the paper's code has 1"))


def _check_scores(scores: Tensor, ties: str, seen: Tensor | None) -> None:
    """Refuse scores that no order has a place for.

    On a GPU a score that is not finite shows in the loss, and nothing is waited for; that ties are refused was asked
    for, and is worth the wait.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return
    if scores.device.type == "cpu" and not bool(scores.isfinite().all()):
        rows = scores.detach().reshape(-1, scores.shape[-1])
        row, token = (~rows.isfinite()).nonzero()[0].tolist()
        got = f"{float(rows[row, token])} at token {token}"
        remedy = "look for a state that overflowed, or lower the rate"
        raise NonFiniteScoreError(teach("finite importance scores", got, remedy))
    if ties == "refuse":
        ranked = (scores if seen is None else scores.masked_fill(~seen, math.inf)).sort(-1).values
        equal = (ranked[..., 1:] == ranked[..., :-1]) & ranked[..., 1:].isfinite()
        if bool(equal.any()):
            got = f"{int(equal.sum())} pairs of equal scores"
            raise InputError(teach("different scores", got, "pass ties='share', or scores that differ"))


class TokenOrder(nn.Module):
    """An order of tokens, and which tokens it may look at.

    Args:
        features: Channels that the score is made of.
        form: `whole`, `chunks` or `prefix` (see the module).
        order: `sorted` by importance; as controls `identity`, or `random`: fixed places drawn once.
        chunk: Tokens of a chunk.
        hard: Sort, in place of SoftSort.
        temperature: τ of SoftSort.
        power: p of SoftSort.
        descending: Most important first.
        ties: What tokens of equal score do, see `soft_sort`.
        restore: Put outputs back to where their tokens came from; by default as the paper has it in `whole`, not, and
            in order otherwise. The outputs of `chunks` are in order by themselves.
        gate: Move a mixer's gates with their tokens; the paper's code leaves them.
        leaky: Said by name: a language model may read its future (`whole`).
        seed: Of the random order.
    """

    def __init__(
        self,
        features: int,
        *,
        form: str = "chunks",
        order: str = "sorted",
        chunk: int = CHUNK,
        hard: bool = False,
        temperature: float = 1.0,
        power: float = 1.0,
        descending: bool = False,
        ties: str = "share",
        restore: bool | None = None,
        gate: bool = False,
        leaky: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        one_of("form of reorder", form, FORMS)
        one_of("order of reorder", order, ORDERS)
        one_of("ties of reorder", ties, TIES)
        at_least(1, chunk=chunk, features=features)
        at_least(0, seed=seed)
        check_sharpness(temperature, power)
        if form == "chunks" and (gate or restore is False):
            got = "gate=True" if gate else "restore=False"
            remedy = "leave it out: a token's own chunk stays as it is, so nothing moves that could be put back"
            raise InputError(teach("chunks with gates and outputs in order", got, remedy))
        if leaky and form != "whole":
            raise InputError(teach("leaky with the form whole alone", form, "leave leaky out: this form is causal"))
        self.form, self.order, self.chunk, self.hard, self.leaky = form, order, chunk, hard, leaky
        self.temperature, self.power, self.descending, self.ties = temperature, power, descending, ties
        self.restore, self.gate, self.seed = form != "whole" if restore is None else restore, gate, seed
        self._kept: dict[tuple[int, torch.device], Tensor] = {}
        # 1 / √features keeps the scores' spread that of the features, of which the paper says nothing
        self.K = nn.Parameter(_drawn_apart(features) * features**-0.5) if order == "sorted" else None

    @property
    def looks_ahead(self) -> bool:
        """Whether an output can depend on later tokens."""
        return self.form == "whole" and self.order != "identity"

    @property
    def surrogate(self) -> bool:
        """Whether its gradient is that of the soft sort where the sort itself is hard."""
        return self.hard and self.order == "sorted"

    def scores(self, features: Tensor) -> Tensor:
        """Score (..., token) of features (..., token, channel); that of a control comes from the place alone."""
        if self.K is not None:
            with without_autocast(features.device):  # in bfloat16 most scores of a long sequence would be equal
                wide = torch.promote_types(features.dtype, torch.float32)
                return features.to(wide) @ self.K.to(wide)
        return self._places(features.shape[-2], features.device).expand(features.shape[:-1])

    def _places(self, count: int, device: torch.device) -> Tensor:
        """Scores of a control, which a recorded step cannot copy to the device.

        A recorded step reads them where they were, so that none is ever given up for another length: each power of two
        has its own, whose first ones are those of shorter sequences.
        """
        key = (1 << (count - 1).bit_length(), device)
        if key not in self._kept:
            places = np.arange(key[0]) if self.order == "identity" else np.random.default_rng(self.seed).random(key[0])
            with torch.inference_mode(False):  # training may read what an evaluation has made
                self._kept[key] = torch.as_tensor(places, dtype=torch.float32).to(device)
        return self._kept[key][:count]

    def matrix(self, features: Tensor, seen: Tensor | None = None) -> Tensor:
        """Permutation (..., rank, token) of tokens with these features, in their dtype."""
        control = self.order != "sorted"
        P = soft_sort(
            self.scores(features),
            temperature=self.temperature,
            power=self.power,
            descending=self.descending and not control,
            hard=self.hard or control,
            seen=seen,
            ties=self.ties,
        )
        return P.to(features.dtype)

    def unpadded(self, features: Tensor, mask: Tensor) -> Tensor:
        """`matrix` of sequences with padding on their right, which stays where it is; mask (batch, token)."""
        seen = mask.to(features.device).bool()
        P = self.matrix(features, seen)
        return torch.where(seen.unsqueeze(-1), P, torch.eye(P.shape[-1], dtype=P.dtype, device=P.device))


def _drawn_apart(count: int) -> Tensor:
    """Normal numbers (count,) that leave torch's generator as it was: other weights are those without reordering."""
    with torch.random.fork_rng(devices=[]):
        seed = int(torch.randint(2**62, (), device="cpu"))
    own = torch.randn(count, generator=torch.Generator().manual_seed(seed), device="cpu")
    return own.to(torch.get_default_device())


def _has_gate(mixer: Mixer) -> bool:
    """Whether `enter` gives a gate; one token is enough to see it."""
    like = next(mixer.parameters(), torch.empty(0))
    with torch.no_grad():
        return mixer.enter(like.new_zeros(1, 1, mixer.width))[1] is not None


class Reordered(Mixer):
    """A mixer that reads tokens in another order.

    Args:
        inner: The mixer; its recurrence is then not one over the tokens as they come, and is not read as such.
        options: Those of `TokenOrder`.

    >>> from repflow.mixers import build
    >>> mixer = Reordered(build("s6", 8), chunk=4)
    >>> mixer(torch.ones(1, 9, 8)).shape, mixer.order.looks_ahead
    (torch.Size([1, 9, 8]), False)
    """

    family: ClassVar[str] = "reordered"
    recurrent: ClassVar[bool] = False

    def __init__(self, inner: Mixer, **options: Any) -> None:
        super().__init__(inner.width)
        self.inner = inner
        inner.reordered = True
        self.order = TokenOrder(inner.score_width, **options)
        if self.order.gate and not _has_gate(inner):
            got = f"gate=True around {inner.family}, which has none"
            raise InputError(teach("a mixer with a gate to move", got, "leave gate out (of a row: +gates)"))

    @property
    def state_size(self) -> None:
        """None: what is kept of the tokens is not one state that each of them adds to."""
        return

    @property
    def mixing(self) -> str:
        """That of the mixer inside."""
        return self.inner.mixing

    @property
    def surrogate(self) -> bool:
        """As its order's."""
        return self.order.surrogate

    def unused(self, tokens: int) -> tuple[str, ...]:
        """K where nothing is sorted: no chunk lies wholly before a token, or there is one token alone."""
        sorted_from = self.order.chunk + 1 if self.order.form == "chunks" else 2
        return ("order.K",) if self.order.K is not None and tokens < sorted_from else ()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix tokens (batch, token, width) in their new order.

        Args:
            x: Tokens.
            mask: 1 at tokens, 0 at padding on their right (batch, token), which `whole` must not sort in among them;
                the causal forms never look at it.
        """
        self.check_input(x)
        tokens, gate = self.inner.enter(x)
        features = self.inner.score_features(tokens) if self.order.K is not None else tokens
        if self.order.form == "chunks":
            return self.inner.leave(self._chunks(tokens, features), gate)
        if self.order.form == "prefix":
            return self._prefix(tokens, features, gate)
        P = self.order.matrix(features) if mask is None else self.order.unpadded(features, mask)
        return self._through(P, tokens, gate)

    def advance(self, x: Tensor, carry: Carry) -> Tensor:
        """Refused: tokens that are kept would have to be sorted again with every new one."""
        expected = "a pass over whole sequences of a model that reorders tokens"
        raise InputError(teach(expected, "one that goes on from a cache", "pass use_cache=False"))

    def _chunks(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Outputs (batch, token, channel): earlier chunks in their new order, a token's own as it is."""
        size = self.order.chunk
        count = (tokens.shape[1] - 1) // size  # chunks that lie before some token
        if count == 0:
            return self.inner.core(tokens)
        whole, shape = slice(count * size), (len(tokens), count, size, -1)
        scored, past = features[:, whole].reshape(shape), tokens[:, whole].reshape(shape)
        past = (self.order.matrix(scored) @ past).flatten(1, 2)
        return self.inner.core_behind(past, tokens, size)

    def _through(self, P: Tensor, tokens: Tensor, gate: Tensor | None) -> Tensor:
        """Outputs (batch, rank, width) of tokens sorted by P, put back where that is asked for."""
        y = self.inner.core(P @ tokens)
        moved = P @ gate if gate is not None and self.order.gate else gate
        if not self.order.restore:
            return self.inner.leave(y, moved)
        return P.mT @ self.inner.leave(y, moved) if self.order.gate else self.inner.leave(P.mT @ y, gate)

    def _prefix(self, tokens: Tensor, features: Tensor, gate: Tensor | None) -> Tensor:
        """Outputs (batch, token, width): each from a pass of its own over the tokens up to it."""
        batch, count = tokens.shape[:2]
        seen = torch.ones(count, count, dtype=torch.bool, device=tokens.device).tril()
        P = self.order.matrix(features.unsqueeze(1).expand(-1, count, -1, -1), seen)  # (batch, prefix, rank, token)
        P = P * seen[..., None]  # ranks beyond the prefix
        here = torch.arange(count, device=tokens.device)
        y = self.inner.core((P @ tokens.unsqueeze(1)).flatten(0, 1))
        y = y.reshape(batch, count, *y.shape[1:])
        if not self.order.restore:
            moved = gate if gate is None or not self.order.gate else (P[:, here, here] @ gate)
            return self.inner.leave(y[:, here, here], moved)
        back = P[:, here, :, here].transpose(0, 1).unsqueeze(-2)  # (batch, prefix, 1, rank): where the last token went
        if self.order.gate and gate is not None:
            y = self.inner.leave(y, P @ gate.unsqueeze(1))
            return (back @ y).squeeze(-2)
        return self.inner.leave((back @ y).squeeze(-2), gate)


def check_span(options: Mapping[str, Any] | None, tokens: int) -> None:
    """Refuse chunks that no sequence of this length is longer than: nothing would lie wholly before a token.

    >>> check_span({"chunk": 16}, 16)
    Traceback (most recent call last):
    repflow.core.errors.InputError: expected a chunk of reorder below the 16 tokens of a sequence; got 16; choose a ...
    """
    if options is None or options.get("form", "chunks") != "chunks":
        return
    chunk = int(options.get("chunk", CHUNK))
    if chunk >= tokens:
        expected = f"a chunk of reorder below the {tokens} tokens of a sequence"
        raise InputError(teach(expected, str(chunk), "choose a smaller chunk: no token would be reordered"))


def reorder_options(options: object) -> dict[str, Any]:
    """Options of `TokenOrder` from a configuration, refused where one is unknown or of another kind.

    `blocks`, which a stack adds to them, is passed on.

    >>> reorder_options({"chunk": 8})
    {'chunk': 8}
    """
    if not isinstance(options, dict):
        raise InputError(teach("reorder: options by name", repr(options), 'write {"form": "chunks", "chunk": 16}'))
    known = {name: value for name, value in inspect.signature(TokenOrder).parameters.items() if name != "features"}
    own = {name: value for name, value in options.items() if name != "blocks"}
    for name, value in own.items():
        if name not in known:
            raise InputError(teach(f"an option of reorder ({', '.join(known)})", repr(name), nearest(name, known)))
        of_kind(f"{name} of reorder", value, str(known[name].annotation))
    TokenOrder(1, **own)
    return dict(options)
