"""What is inside a trained model: flow by depth, reach of influence, decays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from repflow.tasks.prompt import Prompts

FLOW = ("token_similarity",)


def look_into(
    network: Any, prompts: Prompts, *, metrics: Sequence[str] = FLOW, tokenizer: Any = None
) -> dict[str, np.ndarray]:
    """Flow by depth, influence half-life and decays of a trained model, means over prompts.

    Args:
        network: a causal stack or a model of transformers, in eval mode.
        prompts: what it reads.
        metrics: of the flow, by their names in the catalogue; those of a state or a layer.
        tokenizer: of the model, where it has one.

    Returns:
        token_similarity (state,) and other metrics; half_reach and kappa of influence; half_life and A_range (layer,)
        where a layer has decays.
    """
    import repflow
    from repflow.studies import measure
    from repflow.studies.engine.study import ONE
    from repflow.studies.memory.study import STUDY, MemoryConfig
    from repflow.studies.recency.study import influence

    loaded = repflow.load(network) if tokenizer is None else repflow.load(network, tokenizer=tokenizer)
    flow = measure.run(measure.MeasureConfig(samples=len(prompts), metrics=list(metrics)), model=loaded, given=prompts)
    curve = influence(loaded, prompts)
    readings = {name: flow.mean(name) for name in metrics}
    readings |= {name: np.array(np.nanmean(curve[name])) for name in ("half_reach", "kappa")}
    if not _remembers(network):
        return readings
    memory = STUDY.run(MemoryConfig(samples=len(prompts)), models={ONE: loaded}, given=prompts)
    if "half_life" in memory:
        readings["half_life"] = np.median(memory["half_life"], 1)
        readings["A_range"] = memory["A_range"].mean(1)
    return readings


def _remembers(network: Any) -> bool:
    """Whether a layer of a stack has decays; models of other classes are asked by the study of memory itself."""
    mixers = getattr(network.config, "mixers", None)
    return mixers is None or any(entry["name"] != "softmax_attention" for entry in mixers)
