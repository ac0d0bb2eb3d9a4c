"""Training several stacks of one shape as one model, each with its own rows, weights and learning rate.

    networks = [StackForCausalLM(config) for seed in seeds]
    source = ReplicaBatches([source_of(seed) for seed in seeds])
    train(ReplicaStack(networks, factors=[1, 2, 4]), source, config, loss=ReplicaLoss())

Losses are summed over the replicas, so that each one's gradient is its own; norms and clipping are of each replica;
its rate is the schedule's times its factor. A replica ends with the weights that it has when trained alone
(`train` with its own stack): the same operations on a CPU; on a GPU the kernels add up in another order than a stack's
own. One whose loss is not finite does not disturb the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from repflow.core.errors import InputError, teach
from repflow.models.stack.replicas import ReplicaStack
from repflow.training.batch import Batch, BatchSource
from repflow.training.losses import Metrics
from repflow.training.optimiser import OptimiserConfig, grouped_names


class ReplicaBatches:
    """Rows of every replica, one after the other; replicas with the same source share its draw.

    Args:
        sources: of each replica; their batches have equal shapes at every step.
    """

    def __init__(self, sources: Sequence[BatchSource]) -> None:
        self.sources = tuple(sources)

    def batch(self, step: int) -> Batch:
        """Batch of a step: (replica · row, ...)."""
        by_source: dict[int, Batch] = {}
        for source in self.sources:
            if id(source) not in by_source:
                by_source[id(source)] = source.batch(step)
        parts = [by_source[id(source)].tensors() for source in self.sources]
        return Batch(**{name: torch.cat([part[name] for part in parts]) for name in parts[0]})

    def facts(self) -> dict[str, Any]:
        """Facts of every source."""
        return {"replicas": [{"source": type(s).__qualname__, **s.facts()} for s in self.sources]}


class ReplicaLoss:
    """Sum over the replicas of their mean cross entropies at the queries, of every next token, or of rows' classes.

    Reports loss and accuracy of each.

    Replicas share no weights, so the gradient of the sum is, in each, that of its own mean.
    """

    def __call__(self, network: nn.Module, batch: Batch) -> tuple[Tensor, Metrics]:
        """Sum (), and by name `loss 0`, `accuracy 0`, ... of every replica."""
        assert isinstance(network, ReplicaStack)
        if network.classifies:
            losses, hits = network.class_losses(batch.inputs, row_labels(batch))
        else:
            losses, hits = network.losses(batch.inputs, *queries(batch))
        loss, accuracy = losses.mean(1), hits.mean(1)
        metrics = {f"loss {number}": value.detach() for number, value in enumerate(loss)}
        metrics |= {f"accuracy {number}": value for number, value in enumerate(accuracy)}
        return finite_sum(loss), metrics

    def weight(self, batch: Batch) -> Tensor:
        """Number of targets."""
        labels = batch.targets if batch.targets is not None and batch.targets.ndim == 1 else queries(batch)[1]
        return torch.tensor(float(labels.numel()), device=batch.inputs.device)

    def facts(self) -> Mapping[str, Any]:
        """Nothing to set."""
        return {}


def row_labels(batch: Batch) -> Tensor:
    """The class of every row."""
    labels = batch.targets
    extra = [name for name in ("weights", "positions", "mask") if getattr(batch, name) is not None]
    if labels is None or labels.ndim != 1 or extra:
        expected = "inputs and a class for each row, of equal weight and without padding"
        raise InputError(teach(expected, ", ".join(batch.tensors()), "train such models one by one"))
    return labels


def queries(batch: Batch) -> tuple[Tensor, Tensor]:
    """Positions whose logits are read and their targets, (row, query) each: by default every token, or every next one.

    >>> [part.tolist() for part in queries(Batch(torch.tensor([[5, 6, 7]])))]
    [[[0, 1]], [[6, 7]]]
    """
    ids, targets = batch.inputs, batch.targets
    beside = targets is not None and targets.shape == (ids if batch.positions is None else batch.positions).shape
    fits = beside if targets is not None else batch.positions is None
    if batch.weights is not None or batch.mask is not None or not fits:
        expected = "targets beside tokens or positions, or token ids alone, of equal weight and without padding"
        raise InputError(teach(expected, ", ".join(batch.tensors()), "train such models one by one"))
    if targets is None:
        targets = ids[:, 1:]
    if batch.positions is not None:
        return batch.positions, targets
    return torch.arange(targets.shape[1], device=ids.device).expand(len(ids), -1), targets


def finite_sum(values: Tensor) -> Tensor:
    """Sum of the finite ones; not finite without any.

    >>> float(finite_sum(torch.tensor([1.0, torch.inf, 2.0, torch.nan]))), float(finite_sum(torch.tensor([torch.nan])))
    (3.0, nan)
    """
    finite = values.isfinite()
    return torch.where(finite | ~finite.any(), values, 0).sum()


class ReplicaAdamW(torch.optim.Optimizer):
    """AdamW over a ReplicaStack, with a learning rate per replica and its gradient scaled by `scales`.

    Moments are kept per parameter as in torch's AdamW, so that checkpoints hold them alike.

    Args:
        network: whose stacked parameters are updated.
        config: constants, decay and what decays, by the names of one stack.
    """

    def __init__(self, network: ReplicaStack, config: OptimiserConfig) -> None:
        self.config = config
        self.scales = torch.ones_like(network.factors)
        settings = []
        for (decays, factor), names in grouped_names(network.networks[0], config).items():
            rates = network.factors * factor
            # rates are tensors, which a CUDA graph reads anew at every step
            own = {"weight_decay": config.decay if decays else 0.0, "lr": rates * config.rate, "factor": rates}
            settings.append({"params": [network.parameter(name) for name in names], **own})
        super().__init__(settings, {"capturable": True})

    @torch.no_grad()
    def clip(self, bound: float | None) -> Tensor:
        """Scale each replica's gradient down to a norm, at the next step; gives the mean of the norms before.

        Replicas that diverged are left out of it; not finite if all did.
        """
        norms = self.gradient_norms()
        if bound is not None:
            self.scales.copy_((bound / (norms + 1e-6)).clamp(max=1))
        return finite_sum(norms) / torch.isfinite(norms).sum().clamp(min=1)

    @torch.no_grad()
    def gradient_norms(self) -> Tensor:
        """Norm of each replica's gradient (replica,)."""
        squares = [
            part.grad.flatten(1).square().sum(1)
            for group in self.param_groups
            for part in group["params"]
            if part.grad is not None
        ]
        return torch.stack(squares).sum(0).sqrt()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None
        used = [part for group in self.param_groups for part in group["params"] if part.grad is not None]
        for part in used:
            if not self.state[part]:
                self.state[part] = {
                    "step": torch.zeros((), device=part.device),
                    "exp_avg": torch.zeros_like(part, memory_format=torch.contiguous_format),
                    "exp_avg_sq": torch.zeros_like(part, memory_format=torch.contiguous_format),
                }
        counts = [self.state[part]["step"] for part in used]
        torch._foreach_add_(counts, 1)
        count = counts[0].double()  # all are equal: every step has a gradient for every parameter
        corrections = torch.stack([1 - beta**count for beta in self.config.betas])
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"], group["weight_decay"], corrections)

    def _update(self, parameter: Tensor, rates: Tensor, decay: float, corrections: Tensor) -> None:
        state, (first, second) = self.state[parameter], self.config.betas
        corrections = corrections.to(parameter.dtype)
        if parameter.is_cuda and parameter.dtype == torch.float32:
            from repflow.mixers.triton.optimiser import Betas, adamw_step

            adamw_step(
                parameter, parameter.grad.contiguous(), state["exp_avg"], state["exp_avg_sq"], rates=rates,  # type: ignore[union-attr]
                scales=self.scales, corrections=corrections, decay=decay, betas=Betas(first, second, self.config.eps),
            )  # fmt: skip
            return
        shape = (-1, *[1] * (parameter.ndim - 1))
        rate, slope = rates.view(shape).to(parameter.dtype), parameter.grad * self.scales.view(shape)  # type: ignore[operator]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(slope, 1 - first)
        square.mul_(second).addcmul_(slope, slope, value=1 - second)
        parameter.mul_(1 - rate * decay)
        root = square.sqrt() / corrections[1].sqrt() + self.config.eps
        parameter.sub_(rate / corrections[0] * mean / root)
