"""What a stack keeps of the tokens it has seen, in the form that transformers' `generate` hands on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.mixers.scan.carry import Carry


@dataclass
class StackCache:
    """A carry for every mixer, and one for every feed-forward layer that looks back.

    Attributes:
        mixers: Per layer.
        mlps: Per layer.
    """

    mixers: list[Carry] = field(default_factory=list)
    mlps: list[Carry] = field(default_factory=list)

    @classmethod
    def start(cls, layers: int) -> StackCache:
        """Nothing seen yet."""
        return cls([Carry() for _ in range(layers)], [Carry() for _ in range(layers)])

    @classmethod
    def of(cls, cache: Any, layers: int) -> StackCache:
        """The cache given to a forward pass; transformers' own, as long as nothing is in it, stands for a new one."""
        if isinstance(cache, cls):
            return cache
        if cache is not None and cache.get_seq_length() > 0:
            got = f"a {type(cache).__name__} with {cache.get_seq_length()} tokens"
            raise InputError(teach("a StackCache", got, "pass on what this model returned"))
        return cls.start(layers)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens seen, under transformers' name."""
        return self.mixers[layer_idx].seen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep these rows of the batch, in this order, under transformers' name."""
        for carry in (*self.mixers, *self.mlps):
            carry.select(beam_idx)
