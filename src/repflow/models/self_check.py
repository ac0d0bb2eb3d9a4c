"""Self-check at load: a model whose states cannot be read reliably is refused, with the check that failed.

Two forward passes over eight tokens. The first runs two prompts that differ in their last token only and records
every block's input and output; the second disturbs a middle block.

What passing does not promise: that `layer_kinds` are right (see `repflow.models.anatomy.token_mixers`), or anything
about lengths, masks and dtypes other than those of the check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from repflow.core.errors import UnsupportedModelError, teach
from repflow.models.anatomy import declared_layers, text_config
from repflow.models.families import DECODERS, sorts_whole
from repflow.models.reading import Reading, hidden_of, input_of

TOKENS = 8
# transformers computes norms and logits in float32 even in a float64 model
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}
JUMP = 1e-2
"""Share of the tolerance below which a state counts as the same in both prompts."""
SOFTCAP_NAMES = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")


@dataclass
class Trace:
    """What one forward pass showed; tensors on the CPU, copied when they appeared."""

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    uncopied: list[Tensor] = field(default_factory=list)
    added: dict[int, list[Tensor]] = field(default_factory=dict)
    after: list[tuple[nn.Module, Tensor, Tensor]] = field(default_factory=list)
    last: Tensor | None = None
    states: tuple[Tensor, ...] | None = None
    head_input: Tensor | None = None
    head_output: Tensor | None = None
    logits: Tensor | None = None


def check(network: PreTrainedModel, reading: Reading, *, doubtful: bool) -> None:
    """Run every check and complete the reading with what was measured.

    Args:
        network: The whole model, head included.
        reading: Blocks and sublayers to verify; final norm, head and flags are filled in.
        doubtful: Non-finite weights were set to zero, so the final norm may be blind to a change.

    Raises:
        UnsupportedModelError: A check failed; the message names it.
    """
    config = text_config(network.config)
    ids = probe_ids(network, int(config.vocab_size))
    trace = record(network, reading, ids)
    tolerance = TOLERANCE.get(_dtype(network), 3e-2)
    _check_blocks(reading, trace, config, ids, tolerance)
    _check_final_norm(reading, trace, tolerance)
    if reading.head is not None:
        _check_head(reading, trace, config, tolerance)
    _measure_flags(reading, trace, tolerance)
    if not reading.causal and not sorts_whole(network.config):
        _check_causal(network, reading, ids, trace, tolerance)
    _check_middle(network, reading, ids, trace, doubtful)


@contextmanager
def short_chunks(network: nn.Module) -> Iterator[None]:
    """Have transformers' Mamba-2 layers cut the check's few tokens into chunks of their number.

    The chunk is how the scan is computed, not what: by default eight tokens are filled up to 256, and a layer of
    Mamba2-2.7B moves gigabytes for them.
    """
    layers = [module for module in network.modules() if hasattr(module, "A_log")]
    sizes = [(layer, size) for layer in layers if isinstance(size := getattr(layer, "chunk_size", None), int)]
    for layer, size in sizes:
        setattr(layer, "chunk_size", min(size, TOKENS))  # noqa: B010  a plain attribute, unknown to nn.Module's types
    try:
        yield
    finally:
        for layer, size in sizes:
            setattr(layer, "chunk_size", size)  # noqa: B010


def probe_ids(network: PreTrainedModel, vocab: int) -> Tensor:
    """Two seeded prompts of eight ids that differ in the last token only."""
    generator = torch.Generator().manual_seed(20251006)
    ids = torch.randint(0, vocab, (TOKENS + 1,), generator=generator)
    second = torch.cat([ids[: TOKENS - 1], ids[TOKENS:]])
    if second[-1] == ids[TOKENS - 1]:
        second[-1] = (second[-1] + 1) % vocab
    return torch.stack([ids[:TOKENS], second]).to(network.device)


def _dtype(network: nn.Module) -> torch.dtype:
    return next(parameter.dtype for parameter in network.parameters() if parameter.is_floating_point())


def copy(tensor: Tensor) -> Tensor:
    """Copy to the CPU in float32 at least, out of reach of later in-place changes."""
    wide = torch.promote_types(tensor.dtype, torch.float32)
    return tensor.detach().to(device="cpu", dtype=wide, copy=True)


def record(network: nn.Module, reading: Reading, ids: Tensor) -> Trace:
    """Run the whole network once and note what every block, the modules after them and the head saw."""
    trace = Trace()
    with ExitStack() as stack, torch.inference_mode():
        for hook in _recorders(reading, trace):
            stack.callback(hook.remove)
        output = network(**{**reading.arguments(ids, None), "output_hidden_states": True})
        logits = getattr(output, "logits", None)
        trace.logits = None if logits is None else copy(logits)
    return trace


def _recorders(reading: Reading, trace: Trace) -> list[Any]:
    def before(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        trace.inputs.append(copy(input_of(args, kwargs)))

    def block_hook(index: int) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            trace.order.append(index)
            trace.outputs.append(copy(hidden_of(output)))
            trace.uncopied.append(hidden_of(output))

        return hook

    def part_hook(index: int, scale: float) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(hidden_of(output), Tensor):
                trace.added.setdefault(index, []).append(copy(hidden_of(output)) * scale)

        return hook

    def after_hook(module: nn.Module, args: tuple, output: Any) -> None:
        if (
            len(trace.order) == len(reading.blocks)
            and args
            and isinstance(args[0], Tensor)
            and isinstance(output, Tensor)
        ):
            trace.after.append((module, copy(args[0]), copy(output)))

    def base_hook(_: nn.Module, __: Any, output: Any) -> None:
        trace.last = copy(output[0] if not hasattr(output, "last_hidden_state") else output.last_hidden_state)
        states = getattr(output, "hidden_states", None)
        trace.states = None if states is None else tuple(copy(state) for state in states)

    def head_hook(_: nn.Module, args: tuple, output: Any) -> None:
        trace.head_input, trace.head_output = copy(args[0]), copy(output)

    hooks = [block.register_forward_pre_hook(before, with_kwargs=True) for block in reading.blocks]
    hooks += [block.register_forward_hook(block_hook(i)) for i, block in enumerate(reading.blocks)]
    hooks += [
        part.module.register_forward_hook(part_hook(i, part.scale))
        for i, parts in enumerate(reading.parts)
        for part in parts
    ]
    hooks += [module.register_forward_hook(after_hook) for module in _outside_blocks(reading)]
    hooks.append(reading.base.register_forward_hook(base_hook))
    if reading.head is not None:
        hooks.append(reading.head.register_forward_hook(head_hook))
    return hooks


def _outside_blocks(reading: Reading) -> list[nn.Module]:
    """Modules of the base model that are neither inside a block nor contain one."""
    inside = {id(module) for block in reading.blocks for module in block.modules()}
    blocks = {id(block) for block in reading.blocks}
    return [
        module
        for module in reading.base.modules()
        if id(module) not in inside and not any(id(part) in blocks for part in module.modules())
    ]


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Equal up to a share of the largest value; NaN equals NaN."""
    if a.shape != b.shape or not torch.equal(torch.isnan(a), torch.isnan(b)):
        return False
    a, b = torch.nan_to_num(a), torch.nan_to_num(b)
    return bool((a - b).abs().max() <= tolerance * b.abs().max())


def fail(name: str, detail: str) -> UnsupportedModelError:
    """Error of one failed check."""
    return UnsupportedModelError(
        f"self-check {name!r} failed: {detail}; repflow cannot read this model's states reliably"
    )


def _check_blocks(reading: Reading, trace: Trace, config: Any, ids: Tensor, tolerance: float) -> None:
    layers, declared = len(reading.blocks), declared_layers(config)
    if declared is not None and declared != layers:
        raise fail("number of blocks", f"expected {declared} as configured, got {layers}")
    if trace.order != list(range(layers)):
        caught = [index + 1 for index in trace.order]
        raise fail("block outputs caught", f"expected blocks 1 to {layers} once each in order, got {caught}")
    shape = (*ids.shape, int(config.hidden_size))
    for index, hidden in enumerate([trace.inputs[0], *trace.outputs]):
        if tuple(hidden.shape) != shape:
            name = "embedding caught" if index == 0 else "block outputs caught"
            raise fail(name, f"expected state {index} of shape {shape}, got {tuple(hidden.shape)}")
    for index in range(1, layers):
        if not close(trace.inputs[index], trace.outputs[index - 1], tolerance):
            raise fail("blocks follow each other", f"the input of block {index + 1} is not the output of block {index}")


def _check_final_norm(reading: Reading, trace: Trace, tolerance: float) -> None:
    """Take the module applied to the last block's output that gives the model's last hidden state."""
    if trace.last is None:
        raise fail("final norm", "the base model was not called by the whole model")
    for module, before, after in trace.after:
        if close(before, trace.outputs[-1], tolerance) and close(after, trace.last, tolerance):
            reading.final_norm = module
            return
    if not close(trace.outputs[-1], trace.last, tolerance):
        raise fail("final norm", "no module applied to the last block's output gives the model's last hidden state")
    reading.final_norm = nn.Identity()


def _check_head(reading: Reading, trace: Trace, config: Any, tolerance: float) -> None:
    """The head, up to one factor and a soft cap of the configuration, must give the logits."""
    if trace.head_input is None or trace.head_output is None or trace.logits is None or trace.last is None:
        raise fail("head", "the head was not called")
    if not close(trace.head_input, trace.last, tolerance):
        raise fail("head", "the head's input is not the model's last hidden state")
    raw, logits = trace.head_output, trace.logits
    cap = next((float(c) for name in SOFTCAP_NAMES if (c := getattr(config, name, None))), None)
    if cap is not None and close(cap * torch.tanh(raw / cap), logits, tolerance):
        reading.head_softcap = cap
        return
    wide = raw.double().nan_to_num()
    scale = float((wide * logits.nan_to_num()).sum() / (wide * wide).sum().clamp_min(1e-30))
    if not close(raw, logits, tolerance) and not close(raw * scale, logits, tolerance):
        raise fail("head", "its output is not the logits, nor a multiple of them")
    reading.head_scale = 1.0 if close(raw, logits, tolerance) else scale


def _measure_flags(reading: Reading, trace: Trace, tolerance: float) -> None:
    states = [trace.inputs[0], *trace.outputs]
    reading.causal = all(close(state[0, :-1], state[1, :-1], tolerance) for state in states)
    pairs = zip(trace.uncopied, trace.outputs, strict=True)
    reading.overwrites = not all(torch.equal(copy(now).nan_to_num(), then.nan_to_num()) for now, then in pairs)
    if trace.states is not None and len(states) > 2:
        reading.tuple_skips_embedding = close(trace.states[0], states[1], tolerance)
    reading.sublayer_problem = _sublayer_problem(reading, trace, tolerance)


def _check_causal(network: nn.Module, reading: Reading, ids: Tensor, trace: Trace, tolerance: float) -> None:
    """Refuse a block that shows tokens what comes after them.

    The two prompts differ in their last token only. Where rounding differs between their rows, and a chaotic model
    makes much of it, the difference grows over blocks; a look ahead makes it in one. So does noise (dropout, a router
    that samples), which another pass shows; measuring says so.
    """
    states = [trace.inputs[0], *trace.outputs]
    apart = [_apart(state[0, :-1], state[1, :-1]) for state in states]
    for index in range(1, len(apart)):
        if apart[index] > tolerance and apart[index - 1] <= tolerance * JUMP:
            again = record(network, reading, ids).outputs[index - 1]
            if _apart(again, states[index]) > tolerance * JUMP:
                return
            block = f"block {index} ({type(reading.blocks[index - 1]).__name__})"
            raise UnsupportedModelError(
                f"self-check 'causal' failed: {block} shows a token those after it, as an encoder does; {DECODERS}"
            )


def _apart(a: Tensor, b: Tensor) -> float:
    """Largest difference as a share of the largest value."""
    gap, size = (a - b).nan_to_num(0, 0, 0).abs().max(), b.nan_to_num(0, 0, 0).abs().max()
    return float(gap / size.clamp_min(1e-30))


def _sublayer_problem(reading: Reading, trace: Trace, tolerance: float) -> str | None:
    """Sublayers are trusted when they sum up to what their block adds."""
    for index, (before, after) in enumerate(zip(trace.inputs, trace.outputs, strict=True)):
        if hasattr(reading.blocks[index], "pre_ln"):  # RWKV's first block norms the stream itself before adding to it
            continue
        added = trace.added.get(index, [])
        total = sum((part.reshape(after.shape) for part in added), start=torch.zeros_like(after))
        # the sum is compared within the stream: there the rounding of the block's own additions is the same
        if not added or not close(before + total, after, tolerance):
            return (
                f"self-check 'sublayers' failed: expected the known sublayers of block {index + 1} "
                f"({type(reading.blocks[index]).__name__}) to sum to what it adds; got another sum; "
                "ask for kind='branch'"
            )
    return None


def _check_middle(network: nn.Module, reading: Reading, ids: Tensor, trace: Trace, doubtful: bool) -> None:
    """A disturbed middle block must change the output: it is on the path."""
    seen: list[Tensor] = []

    def disturb(_: nn.Module, __: Any, output: Any) -> Any:
        hidden = hidden_of(output)
        noise = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1)).to(hidden)
        changed = hidden + noise * hidden.float().nan_to_num().std().clamp_min(1e-3).to(hidden)
        return changed if isinstance(output, Tensor) else (changed, *output[1:])

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        seen.append(copy(hidden_of(output)))

    watched = reading.blocks[-1] if doubtful or isinstance(reading.final_norm, nn.Identity) else reading.final_norm
    expected = trace.outputs[-1] if watched is reading.blocks[-1] else trace.last
    with ExitStack() as stack, torch.inference_mode():
        stack.callback(reading.blocks[len(reading.blocks) // 2].register_forward_hook(disturb).remove)
        stack.callback(watched.register_forward_hook(keep).remove)
        reading.base(**reading.arguments(ids, None))
    if expected is not None and torch.equal(seen[-1].nan_to_num(), expected.nan_to_num()):
        _blame_overflow(trace, _dtype(network))
        raise fail("middle layer", "a change in the middle block does not change the output")


def _blame_overflow(trace: Trace, dtype: torch.dtype) -> None:
    """States that are not finite hide every change; where half precision ends is the usual cause."""
    bad = [block for block, state in enumerate(trace.outputs, start=1) if not torch.isfinite(state).any()]
    if bad:
        name = str(dtype).removeprefix("torch.")
        got = f"no finite value after block {bad[0]} of {len(trace.outputs)} in {name}"
        remedy = (
            "load it in bfloat16 or float32" if dtype == torch.float16 else "load it in float32, or look at its weights"
        )
        raise UnsupportedModelError(teach("finite states in the check's forward pass", got, remedy))
