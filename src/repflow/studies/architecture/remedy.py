"""Remedies of a row: terms beside the loss, and norms whose gains stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repflow.spec.architecture import Architecture

if TYPE_CHECKING:
    from repflow.training.losses import HoldAt, Penalty

GAIN = 1.0
"""Growth of a token's norm in a block that costs nothing, in attention alone."""


def supervised_depths(layers: int) -> tuple[int, ...]:
    """States at a quarter, half and three quarters of depth, neither the embedding nor the last block.

    >>> supervised_depths(8), supervised_depths(2)
    ((2, 4, 6), (1,))
    """
    return tuple(sorted({min(max(1, round(layers * part / 4)), layers - 1) for part in (1, 2, 3)}))


def penalties_of(row: Architecture, layers: int, limit: float) -> list[Penalty]:
    """Terms beside the loss of a row.

    Args:
        row: the architecture.
        layers: its blocks.
        limit: decay that costs nothing.
    """
    from repflow.training.losses import (
        BlockGain,
        DecayBound,
        ExcessSimilarity,
        HoldAt,
        IntermediateSupervision,
        SmoothnessPenalty,
        StabilityPenalty,
        TokenDiversity,
    )

    def weight(part: str) -> float | HoldAt:
        value = row.strength(part)
        assert value is not None
        return HoldAt(value) if "held" in row.parts else value

    recurrent = set(row.families) != {"softmax_attention"}
    build: dict[str, Any] = {
        "diversity": TokenDiversity,
        "excess": ExcessSimilarity,
        "smooth": SmoothnessPenalty,
        "stable": StabilityPenalty,
        "supervision": lambda own: IntermediateSupervision(own, supervised_depths(layers)),
        "contract": lambda own: DecayBound(own, limit) if recurrent else BlockGain(own, GAIN),
    }
    return [build[part](weight(part)) for part in row.penalties]


def freeze_norms(network: Any) -> None:
    """Leave the gains of all norms of a stack at what they are: 1."""
    norms = [
        network.model.final_norm,
        *(getattr(block, name, None) for block in network.model.blocks for name in NORMS),
    ]
    for norm in norms:
        for parameter in () if norm is None else norm.parameters():
            parameter.requires_grad_(False)


NORMS = ("mixer_norm", "mlp_norm")
