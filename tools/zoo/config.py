"""How a model of the zoo is trained."""

from __future__ import annotations

from dataclasses import dataclass, field

from tools.zoo.batches import BatchConfig


@dataclass(frozen=True)
class TrainConfig:
    """How to train.

    Attributes:
        name: model of the zoo.
        data: folder that `prepare` wrote.
        out: folder of the model, which is written at the end.
        size: shared sizes, see `tools.zoo.models.SIZES`.
        steps: optimizer steps.
        seed: seed of weights and batches.
        rate: greatest learning rate.
        warmup: steps up to it.
        final: last learning rate by the greatest.
        decay: weight decay of matrices.
        clip: greatest norm of the gradient.
        seconds: stop and save after this many seconds; None for no bound.
        device: cpu or cuda; None takes the GPU where there is one.
        graph: record a step as a CUDA graph and replay it.
        measure: measure the flow at 0, 1, 10 and 100 % of the steps.
        batches: what the batches hold; their seed is this one's.
    """

    name: str
    data: str
    out: str
    size: str = "4m"
    steps: int = 8000
    seed: int = 0
    rate: float = 2e-3
    warmup: int = 400
    final: float = 0.1
    decay: float = 0.1
    clip: float = 1.0
    seconds: float | None = None
    device: str | None = None
    graph: bool = True
    measure: bool = True
    batches: BatchConfig = field(default_factory=BatchConfig)
