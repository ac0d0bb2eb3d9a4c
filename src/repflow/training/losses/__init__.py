"""Losses of a training: cross entropy, and penalties on the states that lie between embedding and head.

A penalty is a term beside the loss: `weight` times a mean over chosen states of one training pass. All are
differentiable, need memory for a slice of the states at a time, and never wait for the GPU, so that a step with them
can be a CUDA graph.

| penalty | lowers | reference |
|---|---|---|
| `TokenDiversity` | cosines between tokens of a prompt above 1 - margin | Su et al. 2022, arXiv 2202.06417 |
| `ExcessSimilarity` | similarity within prompts beyond that between prompts | paper 1's advice, on our excess |
| `SmoothnessPenalty` | bends of a token's path over depth (Sm) | paper 1, Eq. 3 |
| `StabilityPenalty` | spread of a token's path over depth (St) | paper 1, Eq. 4 |
| `IntermediateSupervision` | cross entropy of heads at chosen depths | Lee et al. 2015, arXiv 1409.5185 |
| `BlockGain` | growth of a token's norm in a block | paper 1, contractive dynamics |
| `DecayBound` | decays of recurrent mixers above a bound | paper 1, contractive dynamics |

    train(network, source, config, loss=Penalised([TokenDiversity(0.1)]))            # repflow.training
    PenalisedTrainer(model, args, train_dataset=rows, penalties=[TokenDiversity(0.1)])  # transformers
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repflow.training.losses.cross_entropy import (
    IGNORED,
    CrossEntropy,
    Loss,
    Metrics,
    Stateful,
    batch_targets,
    next_tokens,
    read_logits,
    rows_at,
    token_accuracy,
    token_cross_entropy,
    weighted_mean,
)
from repflow.training.losses.decay import DecayBound
from repflow.training.losses.depth import BlockGain, SmoothnessPenalty, StabilityPenalty
from repflow.training.losses.penalised import Penalised
from repflow.training.losses.states import Pass, Penalty
from repflow.training.losses.supervision import IntermediateSupervision, attach_heads, detach_heads
from repflow.training.losses.tokens import ExcessSimilarity, TokenDiversity
from repflow.training.losses.weight import HoldAt

if TYPE_CHECKING:
    from repflow.training.losses.trainer import PenalisedTrainer

__all__ = [
    "IGNORED",
    "BlockGain",
    "CrossEntropy",
    "DecayBound",
    "ExcessSimilarity",
    "HoldAt",
    "IntermediateSupervision",
    "Loss",
    "Metrics",
    "Pass",
    "Penalised",
    "PenalisedTrainer",
    "Penalty",
    "SmoothnessPenalty",
    "StabilityPenalty",
    "Stateful",
    "TokenDiversity",
    "attach_heads",
    "batch_targets",
    "detach_heads",
    "next_tokens",
    "read_logits",
    "rows_at",
    "token_accuracy",
    "token_cross_entropy",
    "weighted_mean",
]


def __getattr__(name: str) -> Any:
    """Import transformers' Trainer, which takes seconds, where it is used."""
    if name != "PenalisedTrainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from repflow.training.losses.trainer import PenalisedTrainer

    return PenalisedTrainer
