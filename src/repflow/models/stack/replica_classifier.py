"""Classifiers of one shape side by side: logits of all replicas at once.

| form | for | how |
|---|---|---|
| fused | gated S6 blocks with RMS norms, on a GPU | kernels over all rows (`repflow.mixers.triton.replicas`) |
| batched | mixers of plain torch operations, on a GPU | torch.vmap: every operation takes all replicas |
| alone | all others, and a CPU | one after another by their own code |

Kernels walk tokens in fours: rows are filled up behind their end, where nothing before it can see it. A layer that
mixes both ways is two blocks over the rows as they are and turned round, whose own changes are added.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from repflow.mixers.s6 import S6
from repflow.mixers.triton.launch import obstacle
from repflow.mixers.triton.replicas import BlockWeights, row_block

BATCHED = ("softmax_attention", "h3", "s4d", "rwkv4")
"""Mixers whose fastest form on a GPU is made of torch operations, which torch.vmap batches."""
FOUR = 4


def class_logits(stack: Any, inputs: Tensor, *, form: str | None = None) -> Tensor:
    """Logits (replica, row, class).

    Args:
        stack: classifiers, a `repflow.models.stack.replicas.ReplicaStack`.
        inputs: real inputs (replica · row, token, channel), the rows of one replica after those of another.
        form: in place of the one that fits.
    """
    form = form or class_form(stack, inputs)
    if form == "fused":
        return _fused(stack, inputs)
    replicas = len(stack)
    rows = _apart(inputs, replicas)
    if form == "batched":
        template = stack.networks[0]
        if template.device != inputs.device:  # its constants, which are not parameters
            template.to(inputs.device)
        template.train(stack.training)

        def one(parameters: dict[str, Tensor], part: Tensor) -> Tensor:
            logits: Tensor = functional_call(template, parameters, (part,)).logits
            return logits

        named: dict[str, Tensor] = {name: value for name, value in stack.named_single()}  # noqa: C416
        batched: Tensor = torch.vmap(one, randomness="different")(named, rows)
        return batched
    return torch.stack([_alone(stack, number, rows[number]) for number in range(replicas)])


def _apart(tensor: Tensor, replicas: int) -> Tensor:
    """(replica · row, ...) → (replica, row, ...)."""
    return tensor.reshape(replicas, -1, *tensor.shape[1:])


def _alone(stack: Any, number: int, inputs: Tensor) -> Tensor:
    network = stack.networks[number]
    if network.device != inputs.device:
        network.to(inputs.device)
    network.train(stack.training)
    logits: Tensor = functional_call(network, stack.single(number), (inputs,)).logits
    return logits


def class_form(stack: Any, inputs: Tensor) -> str:
    """Which of the forms takes these classifiers and inputs."""
    network = stack.networks[0]
    if obstacle(stack.stacked["score/weight"]) is None and class_obstacle(network) is None:
        return "fused"
    return "batched" if inputs.is_cuda and _batches(network) else "alone"


def class_obstacle(network: Any) -> str | None:
    """Why the kernels cannot take classifiers of this form; None if they can, on a GPU."""
    config = network.config
    if config.norm != "rms" or not config.final_norm or config.embedding_norm:
        return "other norms than RMS in front of every block and behind the last"
    if config.input_channels is None:
        return "token ids"
    if config.share != list(range(config.num_hidden_layers)):
        return "layers that share weights"
    if config.skip != 1 or config.skip_learned or config.neutreno or config.reorder is not None:
        return "a changed residual stream or order of tokens"
    if config.channel_dropout:
        return "dropout of whole channels"
    if any(kind == "rwkv" for kind in config.mlp):
        return "a feed-forward layer that looks at the token before"
    if any(not is_plain(block.mixer) for block in network.model.blocks):
        return "mixers other than gated S6 with a short convolution"
    return None


def is_plain(mixer: Any) -> bool:
    """Whether a mixer is gated S6 with a short convolution, as the kernels have it."""
    if not isinstance(mixer, S6):
        return False
    convolution, parts = mixer.conv1d, mixer.gate and mixer.D is not None and mixer.in_proj.bias is None
    return bool(parts) and convolution is not None and convolution.bias is not None and 2 <= mixer.state <= 64


def _batches(network: Any) -> bool:
    return all(entry["name"] in BATCHED for entry in network.config.mixers)


def side_by_side(network: Any) -> bool:
    """Whether classifiers of this form gain by being trained together on a GPU."""
    return class_obstacle(network) is None or _batches(network)


def _fused(stack: Any, inputs: Tensor) -> Tensor:
    half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else torch.float32
    config, replicas, tokens = stack.networks[0].config, len(stack), inputs.shape[1]
    place = config.class_place(tokens)
    with torch.autocast("cuda", enabled=False):
        hidden = _entering(stack, inputs.float(), place)
        count = tokens + (place is not None)
        for layer in range(config.num_hidden_layers):
            hidden = _block(stack, hidden, layer, count, half)
        if place is None:
            real = hidden[:, :count]
            read = _rms(stack, "model.final_norm", real if config.pooling == "mean" else real[:, -1:]).mean(1)
        else:
            read = _rms(stack, "model.final_norm", hidden[:, place : place + 1])[:, 0]
        return torch.bmm(_apart(read, replicas), stack.parameter("score.weight").mT)


def _entering(stack: Any, inputs: Tensor, place: int | None) -> Tensor:
    """Stream before the first block (replica · row, token, width), filled up to tokens in fours."""
    config, replicas = stack.networks[0].config, len(stack)
    parts = (stack.parameter(f"model.input_projection.{part}") for part in ("weight", "bias"))
    weight, bias = (part.repeat_interleave(len(inputs) // replicas, 0) for part in parts)
    hidden = torch.baddbmm(bias[:, None], inputs, weight.mT)  # a product a row, as `project_rows` says
    if config.max_position_embeddings is not None:
        places = stack.parameter("model.position_embeddings.weight")[:, : inputs.shape[1]]
        hidden = (_apart(hidden, replicas) + places[:, None]).flatten(0, 1)
    pieces = [hidden]
    if place is not None:
        token = stack.parameter("model.class_token").repeat_interleave(len(inputs) // replicas, 0)[:, None]
        pieces = [hidden[:, :place], token, hidden[:, place:]]
    count = inputs.shape[1] + (place is not None)
    pieces.append(hidden.new_zeros(len(hidden), -count % FOUR, hidden.shape[2]))
    return functional.dropout(torch.cat(pieces, 1), config.embedding_dropout, stack.training)


def _block(stack: Any, hidden: Tensor, layer: int, count: int, half: torch.dtype) -> Tensor:
    """One block of all replicas, with its feed-forward layer."""
    config = stack.networks[0].config
    eps, share = config.norm_eps, config.dropped(layer) if stack.training else 0.0
    weights = stack.block_weights(layer)
    if not config.both_ways(layer):
        behind = row_block(hidden, weights, eps, half)
        behind = hidden + functional.dropout(behind - hidden, share) if share else behind
    else:
        back = stack.block_weights(layer, "backward_mixer")
        joined = BlockWeights(*(torch.cat(pair) for pair in zip(weights, back, strict=True)))
        both = row_block(torch.cat([hidden, turned(hidden, count)]), joined, eps, half)
        there, round_ = both.chunk(2)
        mixed = there - hidden + turned(round_, count) - hidden
        behind = hidden + functional.dropout(mixed, share) if share else hidden + mixed
    return behind if config.mlp[layer] is None else behind + _fed(stack, behind, layer, share, half)


def turned(hidden: Tensor, count: int) -> Tensor:
    """The first `count` tokens (row, token, width) from the last to the first; what fills rows up stays at the end.

    >>> turned(torch.arange(4.0).view(1, 4, 1), 3).flatten().tolist()
    [2.0, 1.0, 0.0, 3.0]
    """
    return torch.cat([hidden[:, :count].flip(1), hidden[:, count:]], 1)


def _fed(stack: Any, hidden: Tensor, layer: int, share: float, half: torch.dtype) -> Tensor:
    """What the feed-forward layer of a block adds."""
    at, replicas = f"model.blocks.{layer}.mlp", len(stack)
    normed = _apart(_rms(stack, f"model.blocks.{layer}.mlp_norm", hidden), replicas).flatten(1, 2).to(half)

    def linear(x: Tensor, name: str) -> Tensor:
        weight = stack.parameter(f"{at}.{name}.weight").to(half).mT
        if stack.networks[0].config.mlp[layer] != "gelu":
            return torch.bmm(x, weight)
        return torch.baddbmm(stack.parameter(f"{at}.{name}.bias").to(half)[:, None], x, weight)

    up = linear(normed, "up_proj")
    gelu = stack.networks[0].config.mlp[layer] == "gelu"
    inner = functional.gelu(up) if gelu else functional.silu(linear(normed, "gate_proj")) * up
    out = linear(inner, "down_proj").float().view_as(hidden)
    return functional.dropout(out, share) if share else out


def _rms(stack: Any, name: str, hidden: Tensor) -> Tensor:
    """RMS norm of (replica · row, token, width), each replica with its own weight."""
    weight = stack.parameter(f"{name}.weight").repeat_interleave(len(hidden) // len(stack), 0)[:, None]
    square = hidden.square().mean(-1, keepdim=True)
    return hidden * torch.rsqrt(square + stack.networks[0].config.norm_eps) * weight
