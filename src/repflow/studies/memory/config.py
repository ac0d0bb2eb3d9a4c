"""What `repflow memory` may be asked for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from repflow.spec.request import check_least
from repflow.studies.engine.fields import option, said, same
from repflow.studies.measure import MeasureConfig, ablation_names, length_option

LEAST_TOKENS = 3
"""Tokens from which a prompt has a range of decays: the first token's multiplies nothing, and one has no range."""


@dataclass
class MemoryConfig:
    """What to look at; the fields are the command line's options and the `config` of the Result."""

    model: str = same("model")
    task: str = same("task")
    text: list[str] = field(default_factory=list, metadata=said("text"))
    length: int = length_option(512, "tokens per prompt, at most; 1K is 1000")
    samples: int = option(4, "number of prompts")
    seed: int = same("seed")
    format: str = same("format")
    index: int | None = same("index")
    classes: int | None = same("classes")
    items: int | None = same("items")
    documents: str | None = same("documents")
    distractors: str = same("distractors")
    chat_template: bool = same("chat_template")
    match: str = same("match")
    match_with: list[str] = field(default_factory=list, metadata=said("match_with"))
    init: str = same("init")
    init_seed: int | None = same("init_seed")
    ablate: list[str] = field(default_factory=list, metadata=said("ablate"))
    attention: bool = option(False, "also entropy and mean distance of each layer's (hidden) attention; a second pass")
    units: int = option(16, "channels or heads of a layer that --attention and --maps look at, evenly spread")
    maps: list[int] = field(
        default_factory=list,
        metadata={"help": "layer, from 0, whose (hidden) attention on the first prompt is stored as a run; repeated"},
    )
    bos: str = same("bos")
    tokenizer: str | None = same("tokenizer")
    dtype: str | None = same("dtype")
    device: str | None = same("device")
    device_map: str | None = same("device_map")
    scan: str = same("scan")
    batch_size: int | None = same("batch_size")
    allow_float16: bool = same("allow_float16")
    trust_remote_code: bool = same("trust_remote_code")

    def __post_init__(self) -> None:
        """Ablations in their fixed order, so that the same set makes the same run."""
        self.ablate = ablation_names(self.ablate)

    def measure(self) -> MeasureConfig:
        """The part that loads the model and makes prompts."""
        own = ("attention", "units", "maps")
        return MeasureConfig(**{name: value for name, value in asdict(self).items() if name not in own})


def check_request(config: MemoryConfig, name: str | None = None) -> None:
    """Refuse what can be seen to be wrong before a model is loaded."""
    from repflow.studies import measure

    check_least([("--length", config.length, LEAST_TOKENS), ("--units", config.units, 1)])
    check_least([("--maps", layer, 0) for layer in config.maps])
    measure.check_request(config.measure(), name)


def run_name(config: MemoryConfig) -> str:
    """Folder name of a run."""
    from repflow.studies import measure

    return f"{measure.run_name(config.measure())}-memory{'-attention' if config.attention else ''}"


def stored_config(config: MemoryConfig, model: str, ablations: tuple[str, ...], study: str) -> dict[str, Any]:
    """Config as stored, with the name of the study."""
    from repflow.studies.engine.loading import identity

    asked = identity(config)
    asked.pop("maps")  # a run of its own
    asked["text"] = [str(Path(file)) for file in config.text]
    return {"study": study, **asked, "model": config.model or model, "ablate": list(ablations)}
