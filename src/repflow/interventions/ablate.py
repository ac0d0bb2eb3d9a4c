"""Ablate: a copy of a model with parts taken out. The model itself stays as it is.

The copy shares every weight that the ablation does not change, so it costs no memory; do not train it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from repflow.core.errors import UnsupportedModelError
from repflow.core.results import Finding
from repflow.interventions.attention import check_served, restrict_attention
from repflow.interventions.branches import silence
from repflow.interventions.norms import bypass, reset_affine
from repflow.interventions.positions import remove_positions
from repflow.models import Model
from repflow.models.identity.live import shared_copy
from repflow.spec.ablation import ABLATIONS, WINDOW, Ablation, parse_ablations


def ablate(model: Model, ablations: str | Sequence[str]) -> Model:
    """Copy a model without some of its parts.

    Args:
        model: A loaded model; it is not changed.
        ablations: Names from `repflow.interventions.ABLATIONS`, such as `("norm-affine", "attention-window:64")`.

    Returns:
        The copy, through the self-check again; `ablations` names what was done to it, `findings` what it touched.

    Raises:
        InputError: An unknown ablation.
        UnsupportedModelError: The model lacks the part, or its states can no longer be read; the message says why.
    """
    wanted = parse_ablations(ablations)
    earlier = parse_ablations(model.ablations)
    whole = parse_ablations([str(ablation) for ablation in (*earlier, *wanted)])  # refuses one that was done before
    if not wanted:
        return model
    network = shared_copy(model.network)
    changed = _apply(model, network, earlier, wanted)
    names = tuple(str(ablation) for ablation in whole)
    copy = _checked(model, network, names)
    if any(ablation.kind.startswith("attention") for ablation in wanted):
        check_served(copy, network)
    copy.findings += [_finding(copy, name, parts) for name, parts in changed.items()]
    return copy


def _apply(
    model: Model, network: PreTrainedModel, earlier: tuple[Ablation, ...], wanted: tuple[Ablation, ...]
) -> dict[str, list[str]]:
    """Change the copy; returns the names of the changed parts by ablation."""
    changed = {}
    for ablation in wanted:
        if ablation.kind == "norm-affine":
            changed[str(ablation)] = reset_affine(model, network, ablation.scope)
        elif ablation.kind == "norm":
            changed[str(ablation)] = bypass(model, network, ablation.scope)
        elif ablation.kind == "positions":
            changed[str(ablation)] = remove_positions(model, network)
        elif ablation.kind in ("block", "branch"):
            changed[str(ablation)] = silence(model, network, ablation)
    if any(ablation.kind.startswith("attention") for ablation in wanted):
        # all at once: the copy has one name in the registry
        of_attention = [ablation for ablation in (*earlier, *wanted) if ablation.kind.startswith("attention")]
        window = next((ablation.window for ablation in of_attention if ablation.kind == WINDOW), None)
        uniform = any(ablation.kind == "attention-uniform" for ablation in of_attention)
        parts = restrict_attention(model, network, window=window, uniform=uniform)
        changed |= {str(ablation): parts for ablation in of_attention if ablation in wanted}
    return changed


def _checked(model: Model, network: PreTrainedModel, names: tuple[str, ...]) -> Model:
    """Run the self-check on the copy; where it fails, say whether the states overflowed."""
    try:
        return Model(
            network,
            spec=model.spec,
            name=model.name,
            init=model.init,
            drawn_on=model.drawn_on,
            revision=model.revision,
            tokenizer=model.tokenizer,
            ablations=names,
            scan=model.scans.setting,
        )
    except UnsupportedModelError as error:
        why = _overflow(model, network)
        raise UnsupportedModelError(f"{model.name} with {', '.join(names)}: {why or error}") from error


def _overflow(model: Model, network: nn.Module) -> str | None:
    from repflow.models.trace import probe_ids

    with torch.inference_mode():
        output = network(**model.reading.arguments(probe_ids(model.network, model.vocab_size), None))
    values = output[0]
    if bool(torch.isfinite(values).all()):
        return None
    return (
        "the self-check does not apply: without these parts the states overflow on its eight tokens; "
        "ablate fewer parts (norm:inner or norm:final alone) or use weights of a smaller scale"
    )


def _finding(model: Model, name: str, parts: list[str]) -> Finding:
    kind = name.partition(":")[0]
    first = ", ".join(parts[:3]) + (", ..." if len(parts) > 3 else "")
    message = f"{name}: {ABLATIONS[kind]}; {len(parts)} changed ({first})"
    if kind.startswith("attention"):
        layers = [index for index, kinds in enumerate(model.layer_kinds) if "attention" in kinds]
        if len(layers) < model.n_layers:
            message += f"; {model.n_layers - len(layers)} of {model.n_layers} layers have no attention and stay"
    return Finding("ablated", None, message)
