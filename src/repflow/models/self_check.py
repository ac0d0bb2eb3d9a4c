"""Self-check at load: a model whose states cannot be read reliably is refused, with the check that failed.

Two forward passes over eight tokens. The first runs two prompts that differ in their last token only and records
every block's input and output; the second disturbs a middle block.

What passing does not promise: that `layer_kinds` are right (see `repflow.models.anatomy.token_mixers`), or anything
about lengths, masks and dtypes other than those of the check.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from repflow.core.errors import UnsupportedModelError, teach
from repflow.models.additions import settle_additions
from repflow.models.anatomy import family_of, layer_counts, text_config
from repflow.models.families import DECODERS, sorts_whole
from repflow.models.reading import Reading, hidden_of
from repflow.models.streams import PACKED, find_streams, module_readout
from repflow.models.trace import TOKENS, Trace, close, copy, probe_ids, record

# transformers computes norms and logits in float32 even in a float64 model
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}
JUMP = 1e-2
"""Share of the tolerance below which a state counts as the same in both prompts."""
SOFTCAP_NAMES = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")


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
    _check_final_norm(reading, trace, _read_out(network, reading, trace, tolerance), tolerance)
    if reading.head is not None:
        _check_head(reading, trace, config, tolerance)
    _measure_flags(reading, trace, tolerance)
    settle_additions(reading, trace, ids, tolerance)
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


def _dtype(network: nn.Module) -> torch.dtype:
    return next(parameter.dtype for parameter in network.parameters() if parameter.is_floating_point())


def fail(name: str, detail: str) -> UnsupportedModelError:
    """Error of one failed check."""
    return UnsupportedModelError(
        f"self-check {name!r} failed: {detail}; repflow cannot read this model's states reliably"
    )


def _check_blocks(reading: Reading, trace: Trace, config: Any, ids: Tensor, tolerance: float) -> None:
    layers, counts = len(reading.blocks), layer_counts(config)
    if counts and layers not in counts:
        raise fail("number of blocks", f"expected {counts[0]} as configured, got {layers}")
    if trace.order != list(range(layers)):
        raise fail("block outputs caught", _wrong_order(reading, trace))
    width = int(config.hidden_size)
    shape = (*ids.shape, width)
    reading.streams = find_streams(trace.inputs[0].shape, ids.shape, width)
    for index, hidden in enumerate([trace.inputs[0], *trace.outputs]):
        expected = shape if reading.streams is None else tuple(trace.inputs[0].shape)
        if tuple(hidden.shape) != expected:
            name = "embedding caught" if index == 0 else "block outputs caught"
            raise fail(name, f"expected state {index} of shape {shape}, got {tuple(hidden.shape)}")
    for index in range(1, layers):
        if not close(trace.inputs[index], trace.outputs[index - 1], tolerance):
            raise fail("blocks follow each other", f"the input of block {index + 1} is not the output of block {index}")


def _wrong_order(reading: Reading, trace: Trace) -> str:
    """Which blocks did not run once each in order, and on what."""
    layers, ran = len(reading.blocks), [index + 1 for index in trace.order]
    idle = [f"block {i + 1} ({type(b).__name__})" for i, b in enumerate(reading.blocks) if i not in trace.order]
    if idle and ran == sorted(set(ran)):
        more = f" and {len(idle) - 1} more" if len(idle) > 1 else ""
        return f"expected blocks 1 to {layers} to run on token ids alone, {idle[0]}{more} did not"
    return f"expected blocks 1 to {layers} once each in order, got {ran}"


def _read_out(network: PreTrainedModel, reading: Reading, trace: Trace, tolerance: float) -> Tensor:
    """State (batch, token, width) after the last block; of several streams, by the read-out that is found here."""
    if reading.streams is None:
        return trace.outputs[-1]
    listed = family_of(network.config).readout
    if listed is not None:
        reading.streams = replace(reading.streams, readout=listed(reading.base), name="the model's own read-out")
        with torch.inference_mode():
            return copy(reading.residual(trace.uncopied[-1]))
    shape = (*reading.streams.split(trace.outputs[-1]).shape[:2], trace.outputs[-1].shape[-1])
    if reading.streams.layout == PACKED:
        shape = (*shape[:2], shape[2] // reading.streams.count)
    for module, (entering, *_), leaving in trace.after:
        if tuple(leaving.shape) == shape and close(entering, trace.outputs[-1], tolerance):
            reading.streams = replace(reading.streams, readout=module_readout(module), name=type(module).__name__)
            return leaving
    if reading.streams.layout == PACKED:  # another width than configured looks the same
        got = f"{tuple(trace.inputs[0].shape)}, of which no module after the last block makes such a state"
        raise fail("embedding caught", f"expected state 0 of shape {shape}, got {got}")
    count = reading.streams.count
    raise fail("read-out", f"no module makes one state of the {count} residual streams after the last block")


def _check_final_norm(reading: Reading, trace: Trace, state: Tensor, tolerance: float) -> None:
    """Take the module applied to the last block's state that gives the model's last hidden state."""
    if trace.last is None:
        raise fail("final norm", "the base model was not called by the whole model")
    for module, (entering, *_), leaving in trace.after:
        if close(entering, state, tolerance) and close(leaving, trace.last, tolerance):
            reading.final_norm = module
            return
    if not close(state, trace.last, tolerance):
        raise fail("final norm", "no module applied to the last block's output gives the model's last hidden state")
    reading.final_norm = nn.Identity()


def _check_head(reading: Reading, trace: Trace, config: Any, tolerance: float) -> None:
    """The modules behind the last hidden state, up to factors and a soft cap of the configuration, give the logits."""
    if not trace.behind or trace.logits is None or trace.last is None:
        raise fail("head", "the head was not called")
    chain, raw = _head_chain(reading, trace, tolerance)
    reading.head = chain[0] if len(chain) == 1 else nn.Sequential(*chain)
    logits = trace.logits
    raw = raw[..., : logits.shape[-1]]  # Inkling's table is longer than its vocabulary
    cap = next((float(c) for name in SOFTCAP_NAMES if (c := getattr(config, name, None))), None)
    if cap is not None and close(cap * torch.tanh(raw / cap), logits, tolerance):
        reading.head_softcap = cap
        return
    scale = _factor(raw, logits)
    if not close(raw, logits, tolerance) and not close(raw * scale, logits, tolerance):
        raise fail("head", "its output is not the logits, nor a multiple of them")
    reading.head_scale = 1.0 if close(raw, logits, tolerance) else scale


def _head_chain(reading: Reading, trace: Trace, tolerance: float) -> tuple[list[nn.Module], Tensor]:
    """Modules that lead one after the other from the last hidden state, or a multiple of it, to the end."""
    assert trace.last is not None
    chain: list[nn.Module] = []
    state = trace.last
    for module, (entering, *_), leaving in trace.behind:
        if chain and any(module is inner for inner in chain[-1].modules()):
            continue
        factor = 1.0 if chain or close(entering, state, tolerance) else _factor(state, entering)
        if close(entering, state * factor, tolerance):
            reading.head_input_scale = factor if not chain else reading.head_input_scale
            chain.append(module)
            state = leaving
    if not chain:
        raise fail("head", "the head's input is not the model's last hidden state, nor a multiple of it")
    return chain, state


def _factor(a: Tensor, b: Tensor) -> float:
    """Number by which a is b, in the sense of least squares; 1 for tensors of different shapes."""
    if a.shape != b.shape:
        return 1.0
    wide = a.double().nan_to_num()
    return float((wide * b.nan_to_num()).sum() / (wide * wide).sum().clamp_min(1e-30))


def _measure_flags(reading: Reading, trace: Trace, tolerance: float) -> None:
    states = _by_token(reading, trace)
    reading.causal = all(close(state[0, :-1], state[1, :-1], tolerance) for state in states)
    pairs = zip(trace.uncopied, trace.outputs, strict=True)
    reading.overwrites = not all(torch.equal(copy(now).nan_to_num(), then.nan_to_num()) for now, then in pairs)
    if trace.states is not None and len(states) > 2:
        reading.tuple_skips_embedding = close(trace.states[0], trace.outputs[0], tolerance)


def _by_token(reading: Reading, trace: Trace) -> list[Tensor]:
    """Embedding and block outputs (batch, token, ...), with all their streams."""
    states = [trace.inputs[0], *trace.outputs]
    return states if reading.streams is None else [reading.streams.split(state) for state in states]


def _check_causal(network: nn.Module, reading: Reading, ids: Tensor, trace: Trace, tolerance: float) -> None:
    """Refuse a block that shows tokens what comes after them.

    The two prompts differ in their last token only. Where rounding differs between their rows, and a chaotic model
    makes much of it, the difference grows over blocks; a look ahead makes it in one. So does noise (dropout, a router
    that samples), which another pass shows; measuring says so.
    """
    states = _by_token(reading, trace)
    apart = [_apart(state[0, :-1], state[1, :-1]) for state in states]
    for index in range(1, len(apart)):
        if apart[index] > tolerance and apart[index - 1] <= tolerance * JUMP:
            again = record(network, reading, ids).outputs[index - 1]
            if _apart(again, trace.outputs[index - 1]) > tolerance * JUMP:
                return
            block = f"block {index} ({type(reading.blocks[index - 1]).__name__})"
            raise UnsupportedModelError(
                f"self-check 'causal' failed: {block} shows a token those after it, as an encoder does; {DECODERS}"
            )


def _apart(a: Tensor, b: Tensor) -> float:
    """Largest difference as a share of the largest value."""
    gap, size = (a - b).nan_to_num(0, 0, 0).abs().max(), b.nan_to_num(0, 0, 0).abs().max()
    return float(gap / size.clamp_min(1e-30))


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
