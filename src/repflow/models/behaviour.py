"""What blocks do, whatever their names say: how far they look back, and what they keep of a prompt.

| a block that | grows | remembers | reach |
|---|---|---|---|
| attends to all earlier tokens | yes | no | all of them |
| attends within a window | yes, up to it | no | the window |
| has a recurrent state | no | yes | all |
| convolves | no | no | a few tokens |
| does not mix tokens | no | no | 0 |

Measured by passes over a short prompt: one block's input is changed at the first token, and what changes behind it is
looked at, in its output and in what it keeps for the next token (transformers' cache, or tensors on its modules).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from repflow.core.results import Finding
from repflow.models.anatomy import text_config
from repflow.models.reading import Reading, called_with, hidden_of, input_of
from repflow.models.trace import close

CACHES = ("past_key_values", "cache_params", "state")
TOKENS = 24
FEW = (3, 4)
"""Lengths between which any list of past tokens grows, and at which no recurrent state has faded below rounding."""
CHANGE = {torch.float64: 1e-13, torch.float32: 1e-5}
"""Share of the change at the token itself from which on another token counts as reached."""
SAME = {torch.float64: 1e-5, torch.float32: 1e-4}
"""Relative difference up to which two passes over prompts of different length give the same, 3e-2 in half precision."""

UNCACHED = (TypeError, ValueError, AttributeError, LookupError, RuntimeError)
"""What a model raises that does not run with a cache."""

Kept = list[dict[str, Tensor]]


@dataclass(frozen=True)
class Behaviour:
    """What one block does.

    Attributes:
        reach: Tokens back that its output depends on; the whole prompt but one where it sees all.
        keeps: It keeps something of a prompt.
        grows: What it keeps has an entry for every token, up to a window.
        remembers: What it keeps has a fixed size and depends on tokens that a convolution has forgotten.
        cached: Some block of the model keeps something; a model without a cache shows no more than the reach.
    """

    reach: int
    keeps: bool
    grows: bool
    remembers: bool
    cached: bool = True

    @property
    def mixing(self) -> frozenset[str]:
        """How it mixes tokens: attention, recurrence or conv; empty where it does not."""
        kinds = [name for name, does in (("attention", self.grows), ("recurrence", self.remembers)) if does]
        if not kinds and self.reach:
            kinds = ["conv"] if self.keeps else ["attention"]  # keys of another block, as in Gemma 3n's upper half
        return frozenset(kinds)

    def agrees(self, kind: str) -> bool:
        """Whether a layer of a kind would do this."""
        named = named_mixing(kind)
        return named == self.mixing if self.cached else bool(named) == bool(self.reach)

    def words(self) -> str:
        """What it does, as a verb.

        >>> Behaviour(23, True, False, True).words()
        'mixes tokens by recurrence: reaches 23 back, keeps a fixed state'
        """
        if not self.reach:
            return "does not mix tokens"
        kept = "a list of tokens" if self.grows else "a fixed state" if self.remembers else "no more than a few tokens"
        way = f" by {' and '.join(sorted(self.mixing))}" if self.cached else ""
        return f"mixes tokens{way}: reaches {self.reach} back" + (f", keeps {kept}" if self.keeps else "")


def named_mixing(kind: str) -> frozenset[str]:
    """A layer's kind in the words of `Behaviour.mixing`.

    >>> sorted(named_mixing("attention+ssm")), sorted(named_mixing("moe"))
    (['attention', 'recurrence'], [])
    """
    words = {"ssm": "recurrence", "recurrent": "recurrence", "attention": "attention", "conv": "conv"}
    return frozenset(words[part] for part in kind.split("+") if part in words)


def observe(reading: Reading, config: Any, tokens: int = TOKENS, seed: int = 3) -> list[Behaviour]:
    """What every block does; best of a tiny model in float64, in which no state fades below rounding.

    Args:
        reading: Of a loaded model.
        config: Its configuration.
        tokens: Of the prompt; more than its windows and convolutions.
        seed: Of the prompt.
    """
    vocabulary, generator = int(text_config(config).vocab_size), torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocabulary, (1, tokens), generator=generator)
    try:
        kept = [keeping(reading, config, ids[:, :count]) for count in (*FEW, tokens)]
    except UNCACHED:
        kept = [[{} for _ in reading.blocks]] * 3
    cached = any(kept[0])
    plain = _outputs(reading, config, ids, None)[0]
    observed = []
    for index in range(len(reading.blocks)):
        (output,), _ = _outputs(reading, config, ids, index)
        changed = _outputs(reading, config, ids[:, : FEW[1]], index)[1] if cached else kept[0]
        third, fourth, late = (entry[index] for entry in kept)
        states = [name for name in _states(third, fourth) if name in late and late[name].shape == third[name].shape]
        remembers = any(not torch.equal(fourth[name], changed[index][name]) for name in states)
        reach = _reach(plain[index], output)
        observed.append(Behaviour(reach, bool(fourth), _grows(third, fourth), remembers, cached))
    return observed


def _grows(third: Mapping[str, Tensor], fourth: Mapping[str, Tensor]) -> bool:
    """Whether something that is kept of three tokens is larger after four."""
    return any(name in fourth and fourth[name].shape != tensor.shape for name, tensor in third.items())


def _states(third: Mapping[str, Tensor], fourth: Mapping[str, Tensor]) -> list[str]:
    """What is kept in a fixed shape and is not the window of a convolution."""
    same = [name for name in third if name in fourth and third[name].shape == fourth[name].shape]
    return [name for name in same if not _shifts(third[name], fourth[name])]


def _shifts(before: Tensor, after: Tensor) -> bool:
    """Whether a token later the same values stand one place further, as in the window of a convolution."""
    tolerance = SAME.get(before.dtype, 3e-2)
    return any(
        close(after.narrow(axis, 0, size - 1), before.narrow(axis, 1, size - 1), tolerance)
        for axis, size in enumerate(before.shape)
        if size > 1
    )


def settle_kinds(reading: Reading, config: Any, kinds: list[str]) -> list[Finding]:
    """Compare the kinds of a model that no table lists with what its blocks keep of three and of four tokens.

    Where they contradict each other, the block's kind becomes what it does, and its branches are not read by kind.

    Args:
        reading: Of the model.
        config: Its configuration.
        kinds: Of its layers; changed where they are wrong.
    """
    ids = torch.arange(FEW[1])[None] % int(text_config(config).vocab_size)
    try:
        third, fourth = (keeping(reading, config, ids[:, :count]) for count in FEW)
    except UNCACHED as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        words = f"kinds of layers are read from names alone: the model does not run with a cache ({first})"
        return [Finding("kinds_unverified", None, words)]
    wrong = []
    for index, kind in enumerate(kinds):
        attends, recurs = _grows(third[index], fourth[index]), bool(_states(third[index], fourth[index]))
        named = named_mixing(kind)
        if (attends and "attention" not in named) or (recurs and not attends and "recurrence" not in named):
            kinds[index] = "attention" if attends else "recurrent"
            wrong.append(index)
        elif fourth[index] and "recurrence" in named and not recurs:
            kinds[index] = "attention" if attends else "conv"
            wrong.append(index)
    if not wrong:
        return []
    at = ", ".join(str(index + 1) for index in wrong[:8]) + (", ..." if len(wrong) > 8 else "")
    words = f"the kind of block {at} is read from what it keeps of a prompt, which is not what names say"
    reading.sublayer_problem = reading.ablation_problem = (
        f"self-check 'kinds' failed: {words}; read whole blocks (states branch), take out whole blocks (block:K)"
    )
    return [Finding("kinds_observed", wrong[0], words)]


def keeping(reading: Reading, config: Any, ids: Tensor) -> Kept:
    """What each block keeps of a prompt, by name."""
    device = next(reading.base.parameters()).device
    arguments = {**reading.arguments(ids.to(device), None), "use_cache": True}
    with _held(reading) as held, torch.inference_mode():
        output = reading.base(**arguments)
        kept = _kept(reading, output, held)
        if not any(kept) and "past_key_values" in inspect.signature(reading.base.forward).parameters:
            # not every model returns the cache that it makes by itself
            cache = DynamicCache(config=text_config(config))
            reading.base(**arguments, past_key_values=cache)
            kept = _kept(reading, {"past_key_values": cache}, held)
        return kept


def _outputs(reading: Reading, config: Any, ids: Tensor, disturbed: int | None) -> tuple[list[Tensor], Kept]:
    """Outputs of all blocks, or of the one whose input is changed at the first token; and what all blocks keep."""
    outputs: list[Tensor] = []
    streams = reading.streams

    def change(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
        hidden = input_of(args, kwargs)
        changed = (hidden if streams is None else streams.split(hidden)).clone()
        # noise, for a norm takes a common shift or factor out again
        noise = torch.randn(changed[:, 0].shape, generator=torch.Generator().manual_seed(1)).to(changed)
        changed[:, 0] += noise * changed.std()
        return called_with(args, kwargs, changed if streams is None else streams.join(changed))

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        hidden = hidden_of(output)
        outputs.append((hidden if streams is None else streams.split(hidden)).detach().flatten(2).clone())

    watched = reading.blocks if disturbed is None else [reading.blocks[disturbed]]
    with ExitStack() as stack:
        for block in {id(block): block for block in watched}.values():
            stack.callback(block.register_forward_hook(keep).remove)
        if disturbed is not None:
            stack.callback(watched[0].register_forward_pre_hook(change, with_kwargs=True).remove)
        try:
            return outputs, keeping(reading, config, ids)
        except UNCACHED:
            outputs.clear()
            with torch.inference_mode():
                reading.base(**reading.arguments(ids.to(next(reading.base.parameters()).device), None))
            return outputs, []


def _reach(before: Tensor, after: Tensor) -> int:
    """Last token whose output moved when the first token's input did."""
    gaps = (after - before).double().abs().amax((0, 2))
    moved = (gaps > CHANGE[before.dtype] * gaps[0]).nonzero()
    return int(moved.max()) if len(moved) else 0


def _kept(reading: Reading, output: Any, held: Mapping[tuple[nn.Module, str], Tensor]) -> Kept:
    """What the model returned for the next token, and what its modules hold since, block by block."""
    kept: Kept = [{} for _ in reading.blocks]
    for name in CACHES:
        cache = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        for index, path, tensor in _of_cache(cache, len(reading.blocks)):
            kept[index][f"{name}.{path}"] = tensor
    for index, block in enumerate(reading.blocks):
        for place, module in enumerate(block.modules()):
            for name, value in _tensors_on(module):
                if held.get((module, name)) is not value and value.numel():
                    kept[index][f"module.{place}.{name}"] = value
    return kept


def _of_cache(cache: Any, blocks: int) -> Iterator[tuple[int, str, Tensor]]:
    """Tensors of a cache, each with its block."""
    cache = getattr(cache, "self_attention_cache", cache)
    if isinstance(cache, list | tuple) and all(isinstance(part, Tensor) for part in cache):
        for number, part in enumerate(cache):  # RWKV: (batch, width, layer)
            yield from ((index, str(number), part[..., index]) for index in range(blocks))
        return
    for name, parts in getattr(cache, "__dict__", {}).items():
        entries = parts if isinstance(parts, dict) else dict(enumerate(parts)) if isinstance(parts, list) else {}
        each = max(1, len(entries) // blocks)  # LongCat's blocks attend twice
        for index, entry in entries.items():
            held = entry if isinstance(entry, Tensor) else getattr(entry, "__dict__", entry)
            if isinstance(index, int) and index // each < blocks:
                yield from ((index // each, f"{name}.{index % each}{path}", tensor) for path, tensor in _walk(held))


def _walk(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.numel():
            yield path, value
    elif depth < 4 and isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _walk(entry, f"{path}.{name}", depth + 1)
    elif depth < 4 and isinstance(value, Sequence) and not isinstance(value, str):
        for number, entry in enumerate(value):
            yield from _walk(entry, f"{path}.{number}", depth + 1)


def _tensors_on(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Tensors that a module holds beside weights and buffers; RecurrentGemma keeps its state there."""
    return [(name, value) for name, value in module.__dict__.items() if isinstance(value, Tensor)]


@contextmanager
def _held(reading: Reading) -> Iterator[dict[tuple[nn.Module, str], Tensor]]:
    """What modules hold, put back at the end, so that no later pass starts from what this one left."""
    modules = [module for block in reading.blocks for module in block.modules()]
    held = {(module, name): value for module in modules for name, value in _tensors_on(module)}
    unset = {module: [name for name, value in module.__dict__.items() if value is None] for module in modules}
    try:
        yield held
    finally:
        for module in modules:
            for name, value in _tensors_on(module):
                if (module, name) in held:
                    module.__dict__[name] = held[module, name]
                elif name in unset[module]:
                    module.__dict__[name] = None
                elif value is not None:
                    del module.__dict__[name]
