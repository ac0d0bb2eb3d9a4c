"""The relative-depth grid on which several models can be compared: as many steps as the shallowest has blocks."""

from __future__ import annotations

from collections.abc import Sequence

from repflow.core.errors import InputError


def common_grid(models: Sequence[str], kind: str = "residual", *, trust_remote_code: bool = False) -> int | None:
    """Smallest number of blocks over the models, read from their configurations alone.

    Args:
        models: Model specs; one that cannot be read is left out, loading it will say why.
        kind: Kind of state. Branches have no embedding state, and sublayers sit at some depths only: no grid.
        trust_remote_code: Run Python code that comes with a model's configuration.

    Returns:
        Number of steps, None where there is no common grid.
    """
    from repflow.models.anatomy import declared_layers
    from repflow.models.load import find_source, read_config

    if kind.startswith("branch"):
        return None
    counts = []
    for model in models:
        try:
            layers = declared_layers(read_config(find_source(model), trust_remote_code))
        except (InputError, OSError):
            continue
        if layers is not None:
            counts.append(layers)
    return min(counts) if counts else None
