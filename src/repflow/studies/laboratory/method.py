"""What a laboratory says: its models, batches, losses and tests. No torch before it is asked for something.

    network     the model of a cell at its initialisation
    source      the batches that it is trained on
    step_tokens how many tokens a step has
    loss        what is lowered; cross entropy by default
    evaluate    what a trained model can do: arrays, whose axes `tested` names
    prompts     what the flow through it is read on; None for no reading

All others have a default.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from repflow.studies.laboratory.config import LaboratoryConfig
from repflow.studies.laboratory.reading import FLOW
from repflow.studies.laboratory.volume import fills_a_device

if TYPE_CHECKING:
    import torch

    from repflow.core.results import Finding
    from repflow.tasks.prompt import Prompts
    from repflow.training import Batch, BatchSource, Loss, OptimiserConfig, Schedule

C = TypeVar("C", bound=LaboratoryConfig)
LEARNING = {
    **{"half_step": (), "loss_drop": (), "diverged_at": ()},
    **{"loss": ("step",), "train_accuracy": ("step",)},
}
"""Axes of what every training gives."""
INSIDE = {
    **{"half_reach": (), "kappa": (), "parameters": ()},
    **{"token_similarity": ("state",), "half_life": ("layer",), "A_range": ("layer",)},
}
"""Axes of what is read of every trained model."""


class Method(ABC, Generic[C]):
    """How the models of a grid are made, trained and tested.

    Attributes:
        tested: axes of the arrays that `evaluate` and `sizes` give, without the cell; () for a number.
        flow: metrics of the flow by depth, of the catalogue.
        stacked: whether all models of one shape train side by side; False for those alone that kernels take so.
    """

    tested: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    flow: ClassVar[Sequence[str]] = FLOW
    stacked: ClassVar[bool] = False

    @abstractmethod
    def network(self, cell: Any, config: C) -> Any:
        """The model of a cell; torch's generator is seeded."""

    @abstractmethod
    def source(self, cell: Any, config: C, device: torch.device) -> BatchSource:
        """The batches that a cell is trained on."""

    @abstractmethod
    def step_tokens(self, cell: Any, config: C) -> float:
        """Tokens of a step of one model, for the cost; no torch."""

    def row_tokens(self, cell: Any, config: C) -> float:
        """Tokens of a row."""
        return self.step_tokens(cell, config) / config.batch

    @abstractmethod
    def evaluate(self, network: Any, cell: Any, config: C) -> dict[str, np.ndarray]:
        """Test a trained model, which is on its device and in eval mode; the axes stand in `tested`."""

    def loss(self, cell: Any, config: C) -> Loss:
        """What is lowered; models with another loss than this one are trained alone."""
        from repflow.training import CrossEntropy

        return CrossEntropy(accuracy=True)

    def sizes(self, network: Any, cell: Any, config: C) -> dict[str, np.ndarray]:
        """Sizes of a model, whether it was trained well or not; their axes stand in `tested` too."""
        return {}

    def prompts(self, cell: Any, config: C) -> Prompts | None:
        """What flow, influence and memory are read on; None for no reading."""
        return None

    def measured(self, cell: Any, config: C) -> Sequence[str]:
        """Metrics of the flow that a cell's model is read by."""
        return self.flow

    def tokenizer(self, config: C) -> Any:
        """Of the models, kept beside each; None for token ids without one."""
        return None

    def build(self, cell: Any, config: C) -> Any:
        """The model of a cell at its initialisation; the same weights on every machine."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.weight_seed(cell, config))
            return self.network(cell, config)

    def outline(self, cell: Any, config: C) -> Any:
        """The model of a cell for its shapes and counts, without numbers where it can be built so."""
        from repflow.studies.laboratory.outline import outlined

        return outlined(lambda: self.build(cell, config))

    def weight_seed(self, cell: Any, config: C) -> int:
        """Seed of a cell's weights."""
        return int(cell.seed)

    def source_key(self, cell: Any, config: C) -> Hashable:
        """Cells with equal keys are trained on the same batches, which are drawn once."""
        return (cell.seed,)

    def optimiser(self, cell: Any, config: C) -> OptimiserConfig:
        """AdamW's settings, without the rate."""
        from repflow.training import OptimiserConfig

        return OptimiserConfig(decay=config.decay)

    def schedule(self, config: C) -> Schedule:
        """Rate by step: warm-up, then a cosine to 0."""
        from repflow.training import Schedule

        return Schedule("cosine", warmup=round(config.warmup * config.steps))

    def training_options(self, config: C) -> dict[str, Any]:
        """Further fields of `TrainingConfig`, such as accumulate."""
        return {}

    @property
    def within(self) -> Callable[[Any], AbstractContextManager[Any]] | None:
        """Context of a model in which steps of a training alone run, such as faster kernels."""
        return None

    def finished(self, network: Any, cell: Any, config: C) -> Any:
        """The trained model as it is tested and kept, such as without heads that only training needed."""
        return network

    def watched(self, config: C) -> Sequence[int]:
        """Steps after which `watch` reads each model."""
        return ()

    def watch(self, network: Any, cell: Any, config: C) -> dict[str, float]:
        """Numbers on the way, such as perplexity; in the Result as NAME_on_the_way, at `provenance[...]["watched"]`."""
        return {}

    def facts(self, config: C) -> dict[str, Any]:
        """What a reader of the arrays needs, in the Result's provenance under the laboratory's name."""
        return {}

    def assembled(
        self, cells: Sequence[Mapping[str, np.ndarray]], config: C
    ) -> tuple[dict[str, np.ndarray], dict[str, tuple[str, ...]]]:
        """Arrays over all cells, `cell` first, and their axes."""
        from repflow.studies.laboratory.result import gathered

        flow = dict.fromkeys(self.flow, ("state",))
        return gathered(cells, {**LEARNING, **INSIDE, **flow, **self.tested}, self.always(config))

    def always(self, config: C) -> Mapping[str, tuple[int, ...]]:
        """Arrays of `tested` that are in every Result, with their shape where all models diverged."""
        return {}

    def findings(self, config: C, arrays: Mapping[str, np.ndarray]) -> list[Finding]:
        """What a reader should know beside models that diverged or were still learning."""
        return []

    def shape(self, network: Any, cell: Any, config: C) -> Hashable | None:
        """What models must share to be trained side by side; None for one that is trained alone."""
        from repflow.models.stack.replicas import replica_obstacle, shape_facts

        plain = self.loss(cell, config) == Method.loss(self, cell, config)
        large = fills_a_device(self.step_tokens(cell, config), network)
        if not plain or large or (not self.stacked and replica_obstacle(network)):
            return None
        facts = {**shape_facts(network), "rates by name": dict(self.optimiser(cell, config).rates)}
        return tuple(sorted((key, str(value)) for key, value in facts.items()))

    def longest_row(self, cell: Any, config: C) -> Batch:
        """One row of the longest batch among the first ones, by which memory is estimated."""
        import torch

        source = self.source(cell, config, torch.device("cpu"))
        batches = [source.batch(step) for step in range(min(config.steps, 8))]
        return max(batches, key=lambda batch: batch.token_count).rows(slice(0, 1))
