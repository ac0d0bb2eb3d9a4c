"""Several stacks of one shape as one model: parameters stacked along a first axis, (replica, ...).

Replicas are seeds, rates, or models that differ in which decays are fixed. Each computes what its stack computes alone;
none sees another. On a GPU, stacks of gated S6 blocks run in kernels that take all replicas at once
(`repflow.mixers.triton.replicas`); all others, and all stacks on a CPU, run one after another by their own code. For
classifiers see `repflow.models.stack.replica_classifier`.

A free decay rate is a parameter, a fixed one is not, so replicas with different poles have A_log of different widths.
Here A_log has a column for every state, and those of fixed rates get no gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from repflow.core.errors import InputError, teach
from repflow.mixers.eigen import ConstrainedMaps
from repflow.mixers.s6 import S6
from repflow.mixers.triton.launch import obstacle
from repflow.mixers.triton.replicas import NEVER, BlockWeights, row_block
from repflow.models.stack.network import StackForCausalLM, StackForSequenceClassification
from repflow.models.stack.replica_classifier import class_logits, class_obstacle, is_plain, side_by_side

RATES = ".A_log"

Stack = StackForCausalLM | StackForSequenceClassification


class ReplicaStack(nn.Module):
    """Stacks of one shape.

    Args:
        networks: the stacks, of whose weights copies are made.
        factors: learning rate of each by that of the schedule; 1 if left out.

    Attributes:
        networks: the stacks, whose own weights stay as they are until `put_back`.

    Raises:
        InputError: they differ in more than their fixed decays; names the first difference.

    >>> from repflow.models import StackConfig
    >>> made = [StackForCausalLM(StackConfig("s6", hidden_size=8, vocab_size=12)) for _ in range(2)]
    >>> stack = ReplicaStack(made)
    >>> ids, positions, targets = torch.zeros(6, 4).long(), torch.ones(6, 2).long(), torch.ones(6, 2).long()
    >>> loss, hit = stack.losses(ids, positions, targets)
    >>> loss.shape  # 2 replicas, each with 3 rows of 2 queries
    torch.Size([2, 6])
    """

    networks: tuple[Stack, ...]
    factors: Tensor

    def __init__(self, networks: Sequence[Stack], *, factors: Sequence[float] | None = None) -> None:
        super().__init__()
        if not networks:
            raise InputError(teach("at least one stack", "none", "pass a list of networks"))
        rates = [1.0] * len(networks) if factors is None else list(factors)
        if len(rates) != len(networks) or not all(0 < factor < float("inf") for factor in rates):
            expected = f"a factor above 0 for each of {len(networks)} stacks"
            raise InputError(teach(expected, repr(rates), "give one per network"))
        # as a buffer it is part of what a training is resumed by
        self.register_buffer("factors", torch.tensor(rates, dtype=networks[0].dtype))
        # outside the module's own registry: their parameters are not trained, the stacked ones are
        self.__dict__["networks"] = tuple(networks)
        shapes = [shape_facts(network) for network in networks]
        for number, shape in enumerate(shapes[1:], 1):
            if shape != shapes[0]:
                name = next(key for key in {**shapes[0], **shape} if shapes[0].get(key) != shape.get(key))
                got = f"{shape.get(name)} in stack {number} and {shapes[0].get(name)} in stack 0 for {name}"
                raise InputError(teach("stacks of one shape", got, "train them in groups of equal shapes"))
        self.stacked = nn.ParameterDict()
        for name, parameter in networks[0].named_parameters():
            parts = [_full(network, name).detach() for network in networks]
            stacked = nn.Parameter(torch.stack(parts).clone(), requires_grad=parameter.requires_grad)
            self.stacked[_key(name)] = stacked
        for name in self._rate_names():
            free, fixed = zip(*(_columns(network, name) for network in networks), strict=True)
            self.register_buffer(_key(name) + "/free", torch.stack(free)[:, None])
            self.register_buffer(_key(name) + "/fixed", torch.stack(fixed)[:, None])

    def __len__(self) -> int:
        return len(self.networks)

    def _rate_names(self) -> list[str]:
        return [name for name, _ in self.networks[0].named_parameters() if _has_poles(self.networks[0], name)]

    def parameter(self, name: str) -> Tensor:
        """A stacked parameter (replica, ...) by the name that it has in one stack."""
        value: Tensor = self.stacked[_key(name)]
        return value

    @property
    def classifies(self) -> bool:
        """Whether the stacks name classes of sequences."""
        return isinstance(self.networks[0], StackForSequenceClassification)

    def named_single(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Stacked parameters by the names that they have in one stack."""
        for name, _ in self.networks[0].named_parameters():
            yield name, self.stacked[_key(name)]

    def single(self, number: int) -> dict[str, Tensor]:
        """Parameters of one replica, as its stack has them; views with gradients."""
        parts = {}
        for name, value in self.named_single():
            part = value[number]
            if _has_poles(self.networks[0], name):
                part = part[:, self.get_buffer(_key(name) + "/free")[number, 0]]
            parts[name] = part
        return parts

    @torch.no_grad()
    def put_back(self) -> Sequence[Stack]:
        """Write the weights into the stacks, wherever those are."""
        for number, network in enumerate(self.networks):
            own = dict(network.named_parameters())
            for name, value in self.single(number).items():
                own[name].copy_(value)
        return self.networks

    def fused(self, inputs: Tensor) -> str | None:
        """Why the kernels cannot take these stacks and inputs; None if they can."""
        return obstacle(next(iter(self.stacked.values()))) or replica_obstacle(self.networks[0])

    @property
    def _tied(self) -> bool:
        return bool(self.networks[0].config.tie_word_embeddings)

    def losses(self, inputs: Tensor, positions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Cross entropy at the queries (replica, row · query), with its gradient, and 1 where the target was first.

        Args:
            inputs: token ids (replica · row, token), the rows of one replica after those of another.
            positions: tokens whose logits are read (replica · row, query).
            targets: ids that they should name (replica · row, query).
        """
        if len(inputs) % len(self):
            expected = f"a number of rows that {len(self)} replicas share equally"
            raise InputError(teach(expected, str(len(inputs)), "give every replica equally many"))
        if self.fused(inputs) is None:
            return self._fused_losses(inputs, positions, targets)
        pairs = [self._alone(number, *parts) for number, parts in enumerate(self._each(inputs, positions, targets))]
        loss, hit = (torch.stack(values) for values in zip(*pairs, strict=True))
        return loss, hit

    def class_losses(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Cross entropy of every row (replica, row), with its gradient, and 1 where the label was first.

        Args:
            inputs: real inputs (replica · row, token, channel), the rows of one replica after those of another.
            labels: classes (replica · row,).
        """
        if len(inputs) % len(self):
            expected = f"a number of rows that {len(self)} replicas share equally"
            raise InputError(teach(expected, str(len(inputs)), "give every replica equally many"))
        logits = class_logits(self, inputs)
        wide = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
        loss = functional.cross_entropy(wide, labels.long(), reduction="none")
        hit = (wide.detach().argmax(-1) == labels).float()
        return loss.view(len(self), -1), hit.view(len(self), -1)

    def _each(self, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        return zip(*(tensor.chunk(len(self)) for tensor in tensors), strict=True)

    def _alone(self, number: int, inputs: Tensor, positions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """One replica by its own stack's code."""
        network = self.networks[number]
        if network.device != inputs.device:  # its constants, which are not parameters
            network.to(inputs.device)
        logits = functional_call(_Queries(network), _under("network.", self.single(number)), (inputs, positions))
        wide = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
        loss = functional.cross_entropy(wide, targets.flatten().long(), reduction="none")
        return loss, (wide.detach().argmax(-1) == targets.flatten()).float()

    def _fused_losses(self, inputs: Tensor, positions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        from repflow.mixers.triton.loss import row_losses_in_place

        half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else torch.float32
        with torch.autocast("cuda", enabled=False):
            config, table = self.networks[0].config, self.stacked[_key("model.embeddings.weight")]
            replicas, size, width = table.shape
            offset = torch.arange(replicas, device=inputs.device).repeat_interleave(len(inputs) // replicas) * size
            hidden = functional.embedding(inputs + offset[:, None], table.flatten(0, 1))
            for layer in range(config.num_hidden_layers):
                hidden = row_block(hidden, self.block_weights(layer), config.norm_eps, half)
            gathered = _Gathered.apply(hidden, positions).view(replicas, -1, width)  # type: ignore[no-untyped-call]
            weight = self.stacked[_key("model.final_norm.weight")]
            square = gathered.square().mean(-1, keepdim=True)
            normed = gathered * torch.rsqrt(square + config.norm_eps) * weight[:, None]
            head = table if self._tied else self.stacked[_key("lm_head.weight")]
            logits = torch.bmm(normed.to(half), head.to(half).mT)
            loss, hit = row_losses_in_place(logits.flatten(0, 1), targets.flatten().long())
        return loss.view(replicas, -1), hit.view(replicas, -1)

    def block_weights(self, layer: int, mixer: str = "mixer") -> BlockWeights:
        """Parameters of a block with its own mixer, or the one that reads from the last token to the first."""
        at = f"model.blocks.{layer}.{mixer}"
        get = {key: self.stacked[_key(f"{at}.{key}")] for key in _PARTS}
        name = _key(f"{at}.A_log")
        A = torch.where(self.get_buffer(name + "/free"), -torch.exp(get["A_log"]), self.get_buffer(name + "/fixed"))
        return BlockWeights(
            norm=self.stacked[_key(f"model.blocks.{layer}.mixer_norm.weight")],
            in_proj=get["in_proj.weight"],
            conv=get["conv1d.weight"].flatten(2),
            conv_bias=get["conv1d.bias"],
            x_proj=self._x_proj(at),
            dt_proj=get["dt_proj.weight"],
            dt_bias=get["dt_proj.bias"],
            A=A,
            D=get["D"],
            out_proj=get["out_proj.weight"],
        )

    def _x_proj(self, at: str) -> Tensor:
        """Rows of low-rank step size, S_B and S_C (replica, row, channel), whether free or constrained."""
        weight = self.stacked[_key(f"{at}.x_proj.weight")]
        parts = []
        for number, network in enumerate(self.networks):
            mixer: Any = network.get_submodule(at)
            if mixer.signed is None:
                return weight
            if network.device != weight.device:  # its signs, which are not parameters
                network.to(weight.device)
            names = [name for name, _ in mixer.signed.named_parameters()]
            own = {f"maps.{name}": self.stacked[_key(f"{at}.signed.{name}")][number] for name in names}
            maps = functional_call(_Maps(mixer.signed), own, ())
            beyond = (0, 0, 0, mixer.state - mixer.signed.rank)
            parts.append(torch.cat([weight[number], *(functional.pad(part, beyond) for part in maps)]))
        return torch.stack(parts)


_PARTS = (
    *("A_log", "D", "in_proj.weight", "conv1d.weight", "conv1d.bias", "x_proj.weight"),
    *("dt_proj.weight", "dt_proj.bias", "out_proj.weight"),
)


class _Queries(nn.Module):
    """A stack's logits at some positions; `functional_call` wants one module and one call."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor, positions: Tensor) -> Tensor:
        """(row, token) and (row, query) → (row, query, vocabulary)."""
        states = self.network.model(inputs).last_hidden_state
        index = positions.long()[..., None].expand(-1, -1, states.shape[-1])
        logits: Tensor = self.network.lm_head(states.gather(1, index))
        return logits


class _Maps(nn.Module):
    """Constrained maps themselves in place of what they give of an input."""

    def __init__(self, maps: ConstrainedMaps) -> None:
        super().__init__()
        self.maps = maps

    def forward(self) -> tuple[Tensor, Tensor]:
        """S_B and S_C."""
        return self.maps.maps()


class _Gathered(torch.autograd.Function):
    """Rows of hidden (row, token, width) at positions (row, query), no two of a row alike: no sum in the gradient."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, positions: Tensor) -> Tensor:
        start = torch.arange(len(hidden), device=hidden.device)[:, None] * hidden.shape[1]
        index = (start + positions).flatten()
        ctx.save_for_backward(index)
        ctx.shape = hidden.shape
        return hidden.flatten(0, 1)[index]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        gradient = slope.new_zeros(ctx.shape)
        gradient.flatten(0, 1).index_copy_(0, index, slope)
        return gradient, None


def _key(name: str) -> str:
    return name.replace(".", "/")


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in tensors.items()}


def _mixer(network: Stack, name: str) -> Any:
    return network.get_submodule(name.rpartition(".")[0])


def _has_poles(network: Stack, name: str) -> bool:
    """Whether a parameter holds free decay rates, beside which there may be fixed ones."""
    return name.endswith(RATES) and isinstance(_mixer(network, name), S6)


def _full(network: Stack, name: str) -> Tensor:
    """A parameter of a stack; A_log with a column for every state, 0 in those of fixed rates."""
    value = network.get_parameter(name)
    if not _has_poles(network, name):
        return value
    free, _ = _columns(network, name)
    return value.new_zeros(len(value), len(free)).masked_scatter(free, value)


def _columns(network: Stack, name: str) -> tuple[Tensor, Tensor]:
    """Which states (state,) have a rate of their own, and the rates of the others, 0 elsewhere."""
    mixer, value = _mixer(network, name), network.get_parameter(name)
    free, fixed = value.new_ones(mixer.state, dtype=torch.bool), value.new_zeros(mixer.state)
    if mixer.poles.one:
        free[0], fixed[0] = False, mixer.poles.first
    if mixer.poles.zero:
        free[-1], fixed[-1] = False, max(mixer.poles.last, NEVER)
    return free, fixed


def replica_obstacle(network: Any) -> str | None:
    """Why the kernels cannot take stacks of this form side by side; None if they can, on a GPU.

    >>> from repflow.models import StackConfig
    >>> [replica_obstacle(StackForCausalLM(StackConfig(mixer, hidden_size=8))) for mixer in ("s6", "gla")]
    [None, 'blocks other than gated S6 with a short convolution']
    """
    if isinstance(network, StackForSequenceClassification):
        return None if side_by_side(network) else class_obstacle(network)
    if not isinstance(network, StackForCausalLM):
        return "a model that is not a stack"
    config = network.config
    if config.norm != "rms" or not config.final_norm or config.embedding_norm:
        return "other norms than RMS in front of every block and behind the last"
    if config.input_channels is not None or config.max_position_embeddings is not None:
        return "inputs that are not token ids alone"
    if config.share != list(range(config.num_hidden_layers)):
        return "layers that share weights"
    if config.skip != 1 or config.skip_learned or config.neutreno or config.dropout or config.embedding_dropout:
        return "a changed residual stream or dropout"
    blocks: Any = network.model.blocks
    if any(block.has_mlp or not is_plain(block.mixer) for block in blocks):
        return "blocks other than gated S6 with a short convolution"
    return None


def shape_facts(network: Stack) -> dict[str, Any]:
    """What stacks must share: names and shapes of parameters, A_log by all its states, and the frame around them."""
    shapes: dict[str, Any] = {name: tuple(_full(network, name).shape) for name, _ in network.named_parameters()}
    frame = (
        *("norm", "norm_eps", "final_norm", "embedding_norm", "share", "mlp", "tie_word_embeddings", "reorder"),
        *("skip", "skip_learned", "neutreno", "dropout", "embedding_dropout", "channel_dropout"),
        *("max_position_embeddings", "input_channels", "class_token", "bidirectional", "pooling"),
    )
    shapes |= {key: getattr(network.config, key) for key in frame}
    shapes |= {f"mixer {layer}": entry["name"] for layer, entry in enumerate(network.config.mixers)}
    return {**shapes, "dtype": network.dtype}
