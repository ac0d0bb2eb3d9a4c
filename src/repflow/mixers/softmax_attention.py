"""Softmax attention (Vaswani et al. 2017), causal, with rotary positions and shared key heads as options.

Glossary: q, k, v query, key, value of a head; w attention weights. Parameter names are those of Llama in transformers.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.core.errors import InputError, teach
from repflow.mixers.base import Mixer
from repflow.mixers.option import at_least, divides
from repflow.mixers.parts.matrix_state import split_heads
from repflow.mixers.parts.rotary import BASE, rotate, starting_at
from repflow.mixers.scan.carry import Carry
from repflow.mixers.triton.transforms import batch_first, only_batched


class SoftmaxAttention(Mixer):
    """Causal multi-head attention.

        w_ts = softmax_{s ≤ t}(q_t · k_s / √head_dim)        o_t = Σ_s w_ts v_s

    It has no transition: the past is kept token by token.

    Args:
        width: Channels in and out.
        heads: Query heads.
        kv_heads: Key and value heads, each shared by heads / kv_heads consecutive queries; `heads` if left out.
        head_dim: Channels of a head; width / heads if left out.
        rotary: Share of each head that turns with the position; 0 leaves attention without positions.
        rotary_base: Base of the rotary frequencies.
        window: Tokens a query sees, itself included; all if left out.
        bias: Whether the projections have biases.

    >>> mixer = SoftmaxAttention(8, heads=2)
    >>> mixer.state_size is None, tuple(mixer.weights(torch.ones(1, 3, 8)).shape)
    (True, (1, 2, 3, 3))
    """

    family: ClassVar[str] = "softmax_attention"
    recurrent: ClassVar[bool] = False

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        rotary: float = 1.0,
        rotary_base: float = BASE,
        window: int | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(width)
        self.heads = heads
        self.head_dim = divides(width, heads, "width", "heads") if head_dim is None else head_dim
        self.kv_heads = heads if kv_heads is None else kv_heads
        divides(heads, self.kv_heads, "number of heads", "kv_heads")
        at_least(1, heads=heads, head_dim=self.head_dim, window=1 if window is None else window)
        self.turned = _turned(self.head_dim, rotary)
        self.rotary_base, self.window = rotary_base, window
        self.q_proj = nn.Linear(width, heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * self.head_dim, width, bias=bias)

    @property
    def state_size(self) -> None:
        """None: the past is kept token by token."""
        return

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens, by torch's fused attention."""
        self.check_input(x)
        queries, keys, values = self._project(x)
        transformed = torch._C._functorch.peek_interpreter_stack() is not None
        if transformed and (self.window is not None or not only_batched()):
            # inside a torch.func transform, which cannot take every fused kernel apart
            mixed = self._weights(queries, keys) @ self._per_head(values)
        elif transformed:
            mixed = _Folded.apply(queries, keys, values, self.kv_heads != self.heads)  # type: ignore[no-untyped-call]
        else:
            seen = None if self.window is None else self._seen(x.shape[1], x.device)
            mixed = functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=seen, is_causal=seen is None, enable_gqa=self.kv_heads != self.heads
            )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def core_behind(self, past: Tensor, tokens: Tensor, size: int) -> Tensor:
        """Keys of `past` where they lie in earlier chunks, of `tokens` in a query's own chunk.

        Nothing but the positions of keys depends on the order: without rotary positions and a window it changes nothing
        as long as the order is hard.
        """
        queries, keys, values = self._project(tokens)
        _, old_keys, old_values = self._project(past)
        at, before = (torch.arange(part.shape[1], device=part.device) for part in (tokens, past))
        near = self._seen(len(at), at.device) & (at // size == at[:, None] // size)
        far = before // size < at[:, None] // size
        if self.window is not None:
            far &= before > at[:, None] - self.window
        mixed = functional.scaled_dot_product_attention(
            queries,
            torch.cat([old_keys, keys], 2),
            torch.cat([old_values, values], 2),
            attn_mask=torch.cat([far, near], 1),
            enable_gqa=self.kv_heads != self.heads,
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def advance(self, x: Tensor, carry: Carry) -> Tensor:
        """Mix tokens that follow those of `carry`, which keeps keys and values: all, or a window's."""
        self.check_input(x)
        with starting_at(carry.seen):
            queries, keys, values = self._project(x)
        if carry.state is not None:
            keys, values = (torch.cat([carry.state[n], new], 2) for n, new in (("keys", keys), ("values", values)))
        carry.seen += x.shape[1]
        first = carry.seen - keys.shape[2]
        at = torch.arange(first, carry.seen, device=x.device)
        query_at = at[-x.shape[1] :, None]
        seen = (at <= query_at) if self.window is None else (at <= query_at) & (at > query_at - self.window)
        mixed = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=seen, enable_gqa=self.kv_heads != self.heads
        )
        oldest = 0 if self.window is None else max(0, keys.shape[2] - self.window + 1)
        carry.state = {"keys": keys[:, :, oldest:], "values": values[:, :, oldest:]}
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def weights(self, x: Tensor) -> Tensor:
        """Attention weights (batch, head, token, token); row t sums to 1 over the tokens that t sees."""
        self.check_input(x)
        queries, keys, _ = self._project(x)
        return self._weights(queries, keys)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (batch, head, token, dim), positions turned in."""
        queries, keys = split_heads(self.q_proj(x), self.heads), split_heads(self.k_proj(x), self.kv_heads)
        if self.turned:
            queries, keys = (rotate(part, size=self.turned, base=self.rotary_base) for part in (queries, keys))
        values = split_heads(self.v_proj(x), self.kv_heads)
        return queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)

    def _weights(self, queries: Tensor, keys: Tensor) -> Tensor:
        scores = queries @ self._per_head(keys).mT * self.head_dim**-0.5
        return scores.masked_fill(~self._seen(queries.shape[2], queries.device), -torch.inf).softmax(-1)

    def _per_head(self, shared: Tensor) -> Tensor:
        """Keys or values (batch, kv head, token, dim), repeated for the heads that share them."""
        return shared.repeat_interleave(self.heads // self.kv_heads, dim=1)

    def _seen(self, tokens: int, device: torch.device) -> Tensor:
        """Which tokens (second axis) a token sees (first axis)."""
        seen = torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()
        return seen if self.window is None else seen.triu(1 - self.window)


class _Folded(torch.autograd.Function):
    """Causal attention inside torch.vmap by one call of the fused kernel: the batched axis becomes rows."""

    @staticmethod
    def forward(queries: Tensor, keys: Tensor, values: Tensor, shared: bool) -> Tensor:
        """Only ever reached through `vmap`."""
        raise NotImplementedError

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: torch's own kernel keeps what its gradient needs."""

    @staticmethod
    def vmap(info: Any, dims: Any, queries: Tensor, keys: Tensor, values: Tensor, shared: bool) -> tuple[Tensor, int]:
        """(batched, row, head, token, dim) → same."""
        parts = [part.flatten(0, 1) for part in batch_first(info, dims[:3], queries, keys, values)]
        q, k, v = (part.to(parts[2].dtype) for part in parts)  # autocast does not reach in here
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)
        return mixed.reshape(info.batch_size, -1, *mixed.shape[1:]), 0


def _turned(head_dim: int, rotary: float) -> int:
    """Channels of a head that turn."""
    turned = round(head_dim * rotary)
    if not 0 <= rotary <= 1 or turned % 2:
        raise InputError(
            teach(
                "a rotary share between 0 and 1 that turns an even number of channels",
                f"{rotary:g} of {head_dim} channels",
                "choose an even head_dim, another share, or rotary=0",
            )
        )
    return turned
