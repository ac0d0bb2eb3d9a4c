"""The zoo's loss: cross entropy of the next token, in which answers weigh more than prose.

loss = Σ wₜ · cross entropyₜ / Σ wₜ        weights: see `tools.zoo.kvpr`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from repflow.training import Batch


@dataclass(frozen=True)
class ZooLoss:
    """Weighted loss of the next token, with the losses of prose and of answers beside it.

    Attributes:
        prose: rows of prose, which come first.
    """

    prose: int

    def __call__(self, network: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of a batch with weights."""
        from repflow.training.losses import read_logits

        assert batch.weights is not None
        loss, prose, answers = weighted_loss(read_logits(network, batch), batch.inputs, batch.weights, self.prose)
        return loss, {"prose_loss": prose, "answer_loss": answers}

    def weight(self, batch: Batch) -> Tensor:
        """Sum of the weights of all tokens that are predicted."""
        assert batch.weights is not None
        return batch.weights[:, 1:].sum()


def weighted_loss(logits: Tensor, ids: Tensor, weights: Tensor, prose: int) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, and without gradient the mean over prose (the first rows) and over answers.

    Args:
        logits: (batch, token, vocabulary).
        ids: the tokens (batch, token).
        weights: weight of each token as the one to be predicted (batch, token).
        prose: rows of prose.
    """
    import torch

    from repflow.training.losses import next_tokens, token_cross_entropy, weighted_mean

    targets, weight = next_tokens(ids, weights)
    each = token_cross_entropy(logits, targets)
    loss = weighted_mean(each, weight)
    with torch.no_grad():
        answers = weighted_mean(each, (weight > 1).float())
        text = weighted_mean(each[:prose], weight[:prose])
    return loss, text, answers
