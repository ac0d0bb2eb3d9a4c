"""What a training's history says of one model: its curves, when it was half right, whether it was still learning."""

from __future__ import annotations

import itertools

import numpy as np

POINTS = 100
"""Points of a stored curve of loss or accuracy."""
HALF_WINDOW = 90
"""Steps over which accuracy is averaged, where the step is sought at which it reaches a half."""
FALLING = 0.01
"""Share by which the loss of the last tenth lies below that of the tenth before, where it is still falling."""


def read_curves(loss: np.ndarray, accuracy: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Curves of one model's training, the step at which accuracy reaches a half, whether its loss was still falling.

    Args:
        loss: of every step (step,).
        accuracy: of every step (step,), where it was counted.

    Returns:
        steps, loss and train_accuracy (point,); half_step, loss_drop, and diverged_at, the first step whose loss is
        not finite; NaN where there is none.
    """
    edges = np.linspace(0, len(loss), min(POINTS, len(loss)) + 1).round().astype(int)
    spans = list(itertools.pairwise(edges))
    bad = np.flatnonzero(~np.isfinite(loss))
    tenth = max(1, len(loss) // 10)
    before, last = loss[-2 * tenth : -tenth], loss[-tenth:]
    drop = (before.mean() - last.mean()) / before.mean() if len(before) and before.mean() > 0 else np.nan
    curves = {
        "steps": edges[1:].astype(np.int64),
        "loss": np.array([loss[a:b].mean() for a, b in spans]),
        "loss_drop": np.array(drop),
        "diverged_at": np.array(bad[0] + 1 if len(bad) else np.nan),
    }
    if accuracy is None:
        return curves
    window = min(HALF_WINDOW, len(accuracy))
    smooth = np.convolve(accuracy, np.ones(window) / window, "valid")
    reached = np.flatnonzero(smooth >= 0.5)
    return curves | {
        "train_accuracy": np.array([accuracy[a:b].mean() for a, b in spans]),
        "half_step": np.array(reached[0] + window if len(reached) else np.nan),
    }
