"""Influence of tokens on one output: norms of Jacobian rows by one forward pass and a few backward passes.

    influence(s) = ‖∂y_t/∂x_s‖_F

x_s is the input embedding of token s, or a state at token s; y_t the final norm's output, or a state, at token t. With
v of independent ±1, E ‖vᵀ J‖² = ‖J‖_F²: each probe v is one backward pass, and their spread gives the standard error.
With the unit vectors in place of probes the sum is exact. A sum over the entries of y_t would be one direction only,
and after a LayerNorm the one whose gradient is zero.

One pass gives the influence of every state on the output: the gradient is taken at all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from repflow.core.errors import UnsupportedModelError, out_of_memory, teach
from repflow.metrics.meter import on_device
from repflow.models import Model
from repflow.models.fastpath.gpu import gpu_blocks
from repflow.models.fastpath.layer_scan import left_alone
from repflow.models.reading import called_with, hidden_of, input_of
from repflow.models.streams import Streams

FINAL = -1
"""Target that stands for the final norm's output; all others are numbers of states."""
NO_GRADIENT = ("derivative for", "does not require grad", "is not implemented for", "no autograd", "not differentiable")


@dataclass
class Caught:
    """What one forward pass leaves: the embeddings as the leaf, and every state, all in one graph."""

    embedding: list[Tensor] = field(default_factory=list)
    states: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Squares:
    """Squared influence on one target, float64 on the CPU.

    Attributes:
        mean: of ‖vᵀ J‖² over probes, or the exact sum: (source, batch, token); source 0 is the embedding, source 1 + l
            the state l. Zero from a state after the target.
        variance: of the mean over probes, of source 0: (batch, token). Zero where it is exact, NaN with one probe.
    """

    mean: np.ndarray
    variance: np.ndarray


def rademacher(seed: int, sample: int, probe: int, width: int) -> np.ndarray:
    """Signs of one probe, the same whichever prompts run together.

    >>> rademacher(0, 0, 0, 4)
    array([ 1.,  1.,  1., -1.])
    """
    return 2.0 * np.random.default_rng([seed, sample, probe]).integers(0, 2, width) - 1.0


def influence_squares(
    model: Model,
    ids: Tensor,
    mask: Tensor | None,
    *,
    at: Sequence[int],
    targets: Sequence[int] = (FINAL,),
    probes: int | None = None,
    seed: int = 0,
    samples: Sequence[int] | None = None,
    checkpointing: bool = False,
) -> dict[int, Squares]:
    """Squared influence of every token, from the embedding and every state, on the targets at one token per prompt.

    Args:
        model: A loaded model.
        ids: Token ids (batch, token), right-padded.
        mask: (batch, token), True for real tokens; None without padding.
        at: Token t of each prompt.
        targets: States, or FINAL.
        probes: Number of ±1 probes; None for exact Jacobian rows, one backward pass per channel.
        seed: Of the probes.
        samples: Numbers of the prompts, which their probes are drawn by; by default their place in the batch.
        checkpointing: Keep only the blocks' outputs, and compute each block again in every backward pass.

    Raises:
        UnsupportedModelError: A part of the model has no gradient.
    """
    numbers = list(range(len(ids))) if samples is None else list(samples)
    with gradient_graph(model, checkpointing=checkpointing) as caught:
        arguments = model.reading.arguments(on_device(ids, model.device), mask)
        with refusing_no_gradient(model):
            model.reading.base(**arguments)
            squares = {}
            for target in targets:
                state = caught.states[model.n_states if target == FINAL else target]
                y = state if target == FINAL else model.reading.residual(state)
                directions = _directions(y, at, probes, seed, numbers)
                sources = [caught.embedding[0], *(caught.states[s] for s in range(_before(model, target)))]
                squares[target] = _accumulate(
                    model.n_states, model.streams, y, sources, directions, exact=probes is None
                )
    return squares


def _before(model: Model, target: int) -> int:
    """States that a target depends on, itself among them."""
    return model.n_states if target == FINAL else target + 1


def _directions(
    y: Tensor, at: Sequence[int], probes: int | None, seed: int, samples: Sequence[int]
) -> Iterator[Tensor]:
    """Gradients to start from (batch, token, width): zero but for one vector at each prompt's token."""
    rows, places, width = torch.arange(len(y)), torch.tensor(list(at)), y.shape[-1]
    for number in range(width if probes is None else probes):
        if probes is None:
            vectors = torch.zeros(len(y), width)
            vectors[:, number] = 1.0
        else:
            signs = [rademacher(seed, sample, number, width) for sample in samples]
            vectors = torch.from_numpy(np.stack(signs))
        start = torch.zeros_like(y)
        start[rows, places] = vectors.to(device=y.device, dtype=y.dtype)
        yield start


def _accumulate(
    states: int,
    streams: Streams | None,
    y: Tensor,
    sources: Sequence[Tensor],
    directions: Iterator[Tensor],
    *,
    exact: bool,
) -> Squares:
    """Squares by source; a state of several streams is all of them together."""
    total = np.zeros((states + 1, *y.shape[:2]))
    second = np.zeros(y.shape[:2])
    probes = 0
    for start in directions:
        gradients = torch.autograd.grad(y, sources, start, retain_graph=True, allow_unused=True)
        for source, gradient in enumerate(gradients):
            if gradient is not None:
                several = streams if source else None  # source 0 is the embedding
                squares = gradient_norms(gradient if several is None else several.split(gradient).flatten(2)) ** 2
                total[source] += squares
                second += squares**2 if source == 0 else 0.0
        probes += 1
    if exact:
        return Squares(total, np.zeros_like(second))
    mean = total / probes
    spread = np.maximum(second / probes - mean[0] ** 2, 0.0)
    return Squares(mean, spread / (probes - 1) if probes > 1 else np.full_like(spread, np.nan))


def gradient_norms(gradient: Tensor) -> np.ndarray:
    """Norm over the last axis, in float64: squares of small gradients would underflow in float32."""
    norms = torch.linalg.vector_norm(gradient.detach(), dim=-1, dtype=torch.float64)
    return np.asarray(norms.cpu().numpy())


@contextmanager
def gradient_graph(model: Model, *, checkpointing: bool = False, embedding: Tensor | None = None) -> Iterator[Caught]:
    """Run the model inside with gradients to the embeddings, and to nothing else; everything is put back.

    Args:
        model: A loaded model.
        checkpointing: Compute each block again in every backward pass.
        embedding: Embeddings (batch, token, width) in place of the tokens' own.
    """
    caught = Caught()
    with ExitStack() as stack:
        stack.enter_context(_frozen(model.network))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(fast_layers(model))
        if checkpointing:
            stack.enter_context(_checkpointed(model.blocks))
        for handle in _hooks(model, caught, embedding):
            stack.callback(handle.remove)
        yield caught


def fast_layers(model: Model) -> AbstractContextManager[object]:
    """Whole Mamba and Mamba-2 blocks on the Triton kernels, which have gradients, where the check at load passed them.

    A model with parts taken out keeps its own forward, which knows of them.
    """
    settings = [layer for layer in model.scans.layers if layer.kind in ("s6", "ssd")]
    refused = any(layer.whole is not None or layer.refused for layer in settings)
    if not settings or refused or model.ablations:
        return nullcontext()
    weight = next(model.network.parameters())
    return nullcontext() if left_alone(model.scans.setting, (weight,)) else gpu_blocks(model.network)


@contextmanager
def _frozen(network: nn.Module) -> Iterator[None]:
    """No gradients of weights: they would double the work of a backward pass."""
    wanted = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for parameter in wanted:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_(True)


@contextmanager
def _checkpointed(blocks: Sequence[nn.Module]) -> Iterator[None]:
    changed: list[tuple[nn.Module, Any]] = []
    for block in {id(block): block for block in blocks}.values():
        changed.append((block, block.__dict__.get("forward")))
        object.__setattr__(block, "forward", _recomputed(block.forward))
    try:
        yield
    finally:
        for block, own in changed:
            if own is None:
                object.__delattr__(block, "forward")
            else:
                object.__setattr__(block, "forward", own)


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return run


def _hooks(model: Model, caught: Caught, embedding: Tensor | None) -> list[Any]:
    """Hooks that make the embeddings the leaf and keep every state; state n_states is the final norm's output."""
    reading = model.reading
    copies = reading.overwrites  # what is kept must not be changed by the model afterwards

    def leaf(output: Tensor) -> Tensor:
        start = output if embedding is None else embedding.to(output)
        caught.embedding.append(start.detach().requires_grad_())
        return caught.embedding[0].clone()  # a model may scale it in place

    def enter(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
        hidden = input_of(args, kwargs)
        if not caught.embedding:  # inputs that are no tokens have no embedding: the stream's start stands for it
            caught.states[0] = leaf(hidden)
            return called_with(args, kwargs, caught.states[0].clone())
        caught.states[0] = hidden
        return called_with(args, kwargs, hidden.clone()) if copies else None

    def leave(state: int) -> Callable[..., Any]:
        def hook(_: nn.Module, __: Any, output: Any) -> Any:
            caught.states[state] = hidden_of(output)
            return _with_hidden(output, caught.states[state].clone()) if copies else None

        return hook

    def mixed(_: nn.Module, __: Any, output: Any) -> None:
        caught.states[model.n_states] = reading.residual(hidden_of(output))

    def embed(_: nn.Module, __: Any, output: Tensor) -> Any:
        return None if caught.embedding else leaf(output)

    table = model.reading.base.get_input_embeddings()  # type: ignore[operator]
    handles = [table.register_forward_hook(embed)] if isinstance(table, nn.Module) else []
    handles.append(reading.blocks[0].register_forward_pre_hook(enter, with_kwargs=True))
    handles += [block.register_forward_hook(leave(number + 1)) for number, block in enumerate(reading.blocks)]
    if isinstance(reading.final_norm, nn.Identity) and reading.streams is not None:
        return [*handles, reading.blocks[-1].register_forward_hook(mixed)]
    last = reading.blocks[-1] if isinstance(reading.final_norm, nn.Identity) else reading.final_norm
    return [*handles, last.register_forward_hook(leave(model.n_states))]


def _with_hidden(output: Any, hidden: Tensor) -> Any:
    return hidden if isinstance(output, Tensor) else (hidden, *output[1:])


@contextmanager
def refusing_no_gradient(model: Model) -> Iterator[None]:
    """Turn autograd's complaint about a part without gradients into an error that says what to do."""
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        known = isinstance(error, NotImplementedError) or any(part in str(error) for part in NO_GRADIENT)
        if out_of_memory(error) or not known:
            raise
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise no_gradient(model, f"a part that cannot be ({first})") from error


def no_gradient(model: Model, what: str) -> UnsupportedModelError:
    """The error for a model, or a part of one, that cannot be differentiated."""
    return UnsupportedModelError(
        teach(
            f"a model that can be differentiated by its inputs, which influence needs of {model.name}",
            what,
            "load the checkpoint unquantised (float32 or bfloat16); pass --scan reference if a kernel is in the way",
        )
    )
