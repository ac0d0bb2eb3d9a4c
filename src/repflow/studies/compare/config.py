"""CompareConfig and what both kinds of comparison share: loading, naming, shards, facts about models."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import InputError, out_of_memory, teach
from repflow.core.tasks import WORDS
from repflow.spec.request import check_least
from repflow.spec.scheme import parse_scheme
from repflow.studies import measure
from repflow.studies.engine.loading import check_loading, identity
from repflow.studies.engine.naming import Names, is_path, model_word, spell
from repflow.studies.engine.parts import (
    Ablation,
    Batches,
    CkaForm,
    FirstToken,
    GoldIndex,
    Init,
    Items,
    Length,
    Machine,
    Permissions,
    Placement,
    Sampling,
    Scans,
    StateKind,
    Task,
    Templates,
    TextFiles,
    ablation_names,
    defaults,
    listed,
    option,
)
from repflow.studies.measure import MeasureConfig

if TYPE_CHECKING:
    from repflow.capture.run import Sink
    from repflow.core.results import Finding
    from repflow.models import Model

TWIN = "twin"
HELD_BYTES = 1 << 30
"""Memory for the states of prompts that run together, where no batch size is named; a prompt alone may take more."""


@dataclass
@defaults(
    {
        "task": f"what the models read: {WORDS}",
        "length": "tokens of the first model per prompt; of both for kvpr and mdqa; 1K is 1,000",
        "init": "weights of the first model: trained, or random as in measure: default, gaussian[:std] ...",
        "ablate": "parts of the first model, and of its twin, taken out: norm-affine, norm, positions, "
        "attention-window:W, attention-uniform, block:N, branch:N.KIND, branch:KIND",
        "tokenizer": "folder or file of a tokenizer for the first model",
        "device_map": "auto spreads a model over devices (extra: accelerate)",
        "batch_size": "prompts per forward pass; default by length and by what their states take",
        "trust_remote_code": "run Python code that comes with a model",
    }
)
class CompareConfig(
    CkaForm,
    StateKind,
    Batches,
    FirstToken,
    Items,
    GoldIndex,
    Templates,
    Sampling,
    Length,
    TextFiles,
    Task,
    Permissions,
    Scans,
    Placement,
    Machine,
    Ablation,
    Init,
):
    """What to compare; the fields are the command line's options and the `config` of the Result."""

    model_a: str = option("", "first model; or several checkpoints: 'MODEL@{step0,step1000}' or a folder of them")
    model_b: str = option("", "second model, or twin: the first with random weights; none for checkpoints")
    init_b: str | None = option(
        None, "weights of the second model, trained unless given; scheme of a twin, else default"
    )
    ablate_b: list[str] = listed("parts of the second model taken out; for a twin instead of --ablate")
    neighbours: int = option(10, "nearest neighbours per token, compared between the two models")
    tokenizer_b: str | None = option(None, "same for the second; one without any takes the first model's")
    reference_memory: int = option(2048, "MiB for the last checkpoint's states, which all others are compared with")

    def __post_init__(self) -> None:
        """Put ablations in their fixed order."""
        self.ablate = ablation_names(self.ablate)
        self.ablate_b = ablation_names(self.ablate_b)


def check_words(config: CompareConfig) -> None:
    """Refuse what is wrong whatever the models are, before anything is loaded."""
    measure.STUDY.check(as_measure(config))
    check_loading(config)
    if config.model_b == TWIN:
        twin_init(config)
    if not config.model_b and config.init_b is not None:
        raise InputError(teach("--init-b with a second model", "checkpoints of one", "pass --init for all of them"))
    if config.cka_form not in ("unbiased", "paper"):
        raise InputError(teach("--cka-form unbiased or paper", repr(config.cka_form), "see repflow compare --help"))
    check_least([("--neighbours", config.neighbours, 1), ("--reference-memory", config.reference_memory, 1)])


def as_measure(config: CompareConfig) -> MeasureConfig:
    """The same request as far as it concerns one model by itself."""
    known = {f.name for f in fields(MeasureConfig)}
    return MeasureConfig(**{name: value for name, value in asdict(config).items() if name in known})


def load_pair(config: CompareConfig) -> tuple[Model, Model]:
    """Load both models; a twin is the first model's architecture with random weights."""
    from repflow.models.tokenizer import open_tokenizer

    a = load_one(config, config.model_a, config.init, config.tokenizer, config.seed, config.ablate)
    if config.model_b == TWIN:
        seed = twin_seed(config, a)
        b = load_one(config, config.model_a, twin_init(config), config.tokenizer, seed, twin_ablations(config))
    else:
        init = config.init_b or "trained"
        b = load_one(config, config.model_b, init, config.tokenizer_b, config.seed, config.ablate_b)
    if b.tokenizer is None and config.tokenizer is not None:
        b.tokenizer = open_tokenizer(config.tokenizer, trust_remote_code=config.trust_remote_code)
    if config.model_b == TWIN:
        b.tokenizer = a.tokenizer
    return a, b


def load_one(
    config: CompareConfig, spec: str, init: str, tokenizer: str | None, seed: int, ablations: Sequence[str] = ()
) -> Model:
    """Load one model the way the config asks for."""
    from repflow.interventions import ablate
    from repflow.models import load

    extra = {"dtype": config.dtype} if config.dtype else {}
    loaded = load(
        spec,
        init=init,
        tokenizer=tokenizer,
        device=config.device,
        device_map=config.device_map,
        scan=config.scan,
        trust_remote_code=config.trust_remote_code,
        seed=seed,
        **extra,
    )
    return ablate(loaded, ablations)


def twin_init(config: CompareConfig) -> str:
    """Scheme of a twin's weights; trained ones would make no twin."""
    init = config.init_b or "default"
    if parse_scheme(init).name == "trained":
        remedy = "leave --init-b out, name a scheme, or name the model as B, too, to compare it with itself"
        raise InputError(teach("random weights for a twin", f"--init-b {init}", remedy))
    return init


def twin_ablations(config: CompareConfig) -> list[str]:
    """Ablations of a twin: its original's unless others are named."""
    return config.ablate_b or config.ablate


def twin_seed(config: CompareConfig, a: Model) -> int:
    """Seed of a twin's weights: another one if the first model is random by the same scheme, or they would be equal."""
    return config.seed + (a.init == twin_init(config))


def kept_shard(
    sink: Sink, name: str, make: Callable[[], Mapping[str, np.ndarray]], meta: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Arrays that a sink keeps under a name; made if they are not there yet.

    Args:
        sink: where they are kept.
        name: of the arrays.
        make: makes them; it may fill `meta`, which is read after it.
        meta: facts about them.
    """
    if not sink.has(name):
        sink.keep(name, make(), meta)
    return sink.load(name)


def stored_config(config: CompareConfig, task: str, samples: int) -> dict[str, Any]:
    """Config as stored: what was requested, with the name that lists show."""
    label = f"{config.model_a} | {config.model_b}" if config.model_b else config.model_a
    if Path(config.task).name == task:  # a file keeps its folder, so that the request can be repeated
        task = config.task
    stored = identity(config) | {"study": "compare", "model": label, "task": task, "samples": samples}
    if config.batch_size is None:  # runs that were stored before it was an option have no such entry
        del stored["batch_size"]
    return stored


def batches(config: CompareConfig, lengths: Sequence[int], state_bytes: Sequence[int]) -> list[tuple[int, ...]]:
    """Prompts that run together, the same however often a run is resumed.

    Args:
        config: what to do.
        lengths: tokens of each prompt, of the longer side.
        state_bytes: what the states of each prompt take while they are held.
    """
    from repflow.capture.plan import BATCH_TOKENS, make_plan

    size = config.batch_size or max(1, min(BATCH_TOKENS // max(lengths), HELD_BYTES // max(state_bytes)))
    return list(make_plan(lengths, width=1, itemsize=4, batch_size=size).batches)


def in_batches(batch: Sequence[int], work: Callable[[Sequence[int]], list[Any]]) -> list[Any]:
    """What `work` gives for each prompt of a batch, which is halved where memory runs out."""
    try:
        return work(batch)
    except (RuntimeError, MemoryError) as error:
        if len(batch) == 1 or not out_of_memory(error):
            raise
    gc.collect()
    half = len(batch) // 2
    return [*in_batches(batch[:half], work), *in_batches(batch[half:], work)]


def equal_weights(digests: Mapping[str, str]) -> list[Finding]:
    """One finding per set of names that carry the same weights."""
    from repflow.core.results import Finding

    groups: dict[str, list[str]] = {}
    for label, digest in digests.items():
        groups.setdefault(digest, []).append(label)
    return [
        Finding(
            "equal_weights",
            None,
            f"{' and '.join(labels)} have equal weights (digest {digest[:12]}), so nothing can differ between them",
        )
        for digest, labels in groups.items()
        if len(labels) > 1
    ]


def names(config: CompareConfig) -> Names:
    """Names of a run: models, weights, task, length and kind of state."""
    parts = [config.init] if config.init != "trained" else []
    parts += ["ablated", *config.ablate] if config.ablate else []
    parts += ["vs", model_word(config.model_b)] if config.model_b else ["steps"]
    if config.model_b == TWIN:
        parts.append(twin_init(config))
    elif config.init_b not in (None, "trained"):
        parts.append(str(config.init_b))
    parts += ["ablated", *config.ablate_b] if config.ablate_b else []
    parts += [Path(config.task).stem, str(config.length)]
    parts += [config.states] if config.states != "residual" else []
    spelt = ["model_a", "init", "init_b", "ablate", "ablate_b", "task", "length", "states"]
    # a second model in a folder is one of several of its name
    return spell(config, parts, spelt + ([] if is_path(config.model_b) else ["model_b"]), model=config.model_a)
