"""Size of a model of a grid: parameters, work of a step, memory; counted on the model at its initialisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from repflow.core.errors import InputError, teach
from repflow.studies.laboratory.volume import batch_parts, step_volume

if TYPE_CHECKING:
    from repflow.studies.laboratory.cell import Cell
    from repflow.studies.laboratory.config import LaboratoryConfig
    from repflow.studies.laboratory.method import Method

WIDTH, STATE = 64, 16
COPIES = 4
"""Weights, gradient and two moments."""
KEPT = 3
"""Of these a checkpoint keeps all but the gradient."""
FLOAT = 4
HEADROOM = 1.5
"""What a backward pass takes at most beside what the forward pass has kept, by that."""


class StepWork(NamedTuple):
    """Work of a step.

    Attributes:
        volume: layer-tokens at width 64 and, in scans of S6, 16 states.
        walk: tokens of a row, summed over layers whose scan takes them one after another.
    """

    volume: float
    walk: float


@dataclass(frozen=True)
class ModelCost:
    """What one model takes: parameters, work of a step, bytes kept for the gradient."""

    parameters: int
    work: StepWork
    activations: float

    @property
    def bytes(self) -> float:
        """Weights with their gradient and moments, and what the passes keep."""
        return COPIES * FLOAT * self.parameters + HEADROOM * self.activations


def model_cost(lab: Method[Any], cell: Cell, config: LaboratoryConfig, network: Any = None) -> ModelCost:
    """Cost of one model, counted on one row of its longest batch; `network` is the model where it is built already."""
    network = lab.build(cell, config) if network is None else network
    parameters = sum(part.numel() for part in network.parameters())
    work, loss = step_work(lab, cell, config, network), lab.loss(cell, config)
    rows = config.batch // batch_parts(step_volume(lab.step_tokens(cell, config), network), config.batch)
    return ModelCost(parameters, work, rows * saved_bytes(network, lab.longest_row(cell, config), loss))


def step_work(lab: Method[Any], cell: Cell, config: LaboratoryConfig, network: Any) -> StepWork:
    """What a step of a model is; needs no pass."""
    from repflow.mixers.s6 import S6

    scans, layers = [part for part in network.modules() if isinstance(part, S6)], network.config.num_hidden_layers
    deeper = sum(max(1.0, scan.state / STATE) for scan in scans) + max(0, layers - len(scans))
    volume = step_volume(lab.step_tokens(cell, config), network) / WIDTH * deeper / layers
    return StepWork(volume, len(scans) * lab.row_tokens(cell, config))


def saved_bytes(network: Any, batch: Any, loss: Any) -> float:
    """Bytes that a forward pass keeps for the gradient of a row, beside the parameters."""
    import torch

    own = {part.untyped_storage().data_ptr() for part in network.parameters()}
    seen: dict[int, int] = {}

    def note(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        value, _ = loss(network.train(), batch)
    del value
    return sum(seen.values()) / len(batch.inputs)


def byte_words(count: float) -> str:
    """Bytes with their unit.

    >>> byte_words(2.5e6), byte_words(712e6), byte_words(3e9)
    ('2.5 MB', '710 MB', '3 GB')
    """
    return f"{two_digits(count / 1e9)} GB" if count >= 1e9 else f"{two_digits(count / 1e6)} MB"


def two_digits(value: float) -> str:
    """Rounded to two digits, without powers of ten where it is large.

    >>> two_digits(0.314), two_digits(9.96), two_digits(1234)
    ('0.31', '10', '1,200')
    """
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"


def fitting(lab: Method[Any], cell: Cell, config: LaboratoryConfig) -> int:
    """Models like a cell's that fit into the memory asked for, at most `together`.

    Raises:
        InputError: not even one fits.
    """
    if config.memory is None:
        return config.together
    each = model_cost(lab, cell, config).bytes
    count = int(config.memory * 1e9 / each)
    if count < 1:
        expected = f"--memory that holds one model of {cell}, about {byte_words(each)}"
        raise InputError(teach(expected, f"{config.memory:g} GB", "pass more, a smaller --batch, or a smaller model"))
    return min(count, config.together)
