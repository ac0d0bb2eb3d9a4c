"""transformers' growing cache of keys and values, with room to grow into.

transformers concatenates for every new token, which copies all keys and values: at 64 prompts of 1,000 tokens a model
of 2.8 billion parameters moves 42 GB a token for nothing.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

ROOM = 64
"""Tokens that can follow at least before keys and values move."""


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer; `keys` and `values` are the used part of a larger tensor."""

    keys: Tensor
    values: Tensor

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append new ones to those that are there."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys, self._room_keys = _behind(self.keys, getattr(self, "_room_keys", None), key_states)
        self.values, self._room_values = _behind(self.values, getattr(self, "_room_values", None), value_states)
        return self.keys, self.values


def _behind(old: Tensor, room: Tensor | None, new: Tensor) -> tuple[Tensor, Tensor]:
    """The used part (batch, head, token, dim) after the new tokens, and the whole room."""
    used = old.shape[-2] if old.numel() else 0
    end = used + new.shape[-2]
    # rows that were chosen or copied lie elsewhere
    same = room is not None and used > 0 and old.data_ptr() == room.data_ptr() and len(room) == len(new)
    if room is None or not same or room.shape[-2] < end:
        room = new.new_empty(*new.shape[:-2], end + max(ROOM, end // 4), new.shape[-1])
        if used:
            room[..., :used, :] = old
    room[..., used:end, :] = new
    return room[..., :end, :], room


def roomy_cache(config: Any) -> DynamicCache:
    """A cache for a model of this configuration, whose plain layers have room."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def held_bytes(cache: Any) -> int:
    """Bytes of the tensors in what a model keeps; room that is not used yet is not counted."""
    if isinstance(cache, Tensor):
        return cache.nbytes
    if isinstance(cache, dict):
        return sum(held_bytes(value) for name, value in cache.items() if not str(name).startswith("_room_"))
    if isinstance(cache, list | tuple):
        return sum(map(held_bytes, cache))
    return held_bytes(vars(cache)) if hasattr(cache, "__dict__") and not isinstance(cache, type) else 0
