"""What paper 1's findings need of measured runs, in a form small enough to be packaged. No torch.

A reading is of one model from one training: curves over depth, Sm and St, probes. Runs of `repflow measure` and
`repflow probe` are read into it; those of further trainings of the zoo come with the package (seeds.json).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from repflow.core.intervals import LEAST_VALUES
from repflow.core.results import Result
from repflow.spec import zoo

TBM, SSM, HYBRID = "TBM", "SSM", "hybrid"
"""Families as the paper has them: Transformer-based, state-space; and a mixture, which it covers last."""
RECURRENT = ("ssm", "recurrent")
CURVES = ("token_similarity", "layer_cosine")
SCALARS = ("smoothness", "stability", "matched/smoothness", "matched/stability")
FLOWS = ("trained", "random", "branch", "random_branch")
"""Fields of a reading that hold flows."""
SAME = ("model", "layers", "parameters", "data")
"""What trainings of one built-in model share; a zoo of one's own may use the packaged names."""


class Training(NamedTuple):
    """Which training a model comes from: its seed, its steps and a digest of its data; None and "" where not known.

    >>> str(Training(1, 2000)), str(Training(None, None))
    ('seed 1, 2,000 steps', '')
    """

    seed: int | None
    steps: int | None
    data: str = ""

    def __str__(self) -> str:
        words = [
            "" if self.seed is None else f"seed {self.seed}",
            "" if self.steps is None else f"{self.steps:,} steps",
        ]
        return ", ".join(part for part in words if part)


UNKNOWN = Training(None, None)


@dataclass(frozen=True)
class Flow:
    """Flow of representations on one task and length, means over prompts and tokens.

    Attributes:
        token_similarity: by state.
        layer_cosine: by block.
        smoothness: Sm.
        stability: St.
        matched_smoothness: Sm on a grid of relative depth that models of other depths share; NaN without one.
        matched_stability: St on it.
        cka: by state and state; empty where it was not measured.
        prompts: digest of the prompts that were read.
        without: the same with each prompt left out in turn, from which intervals over prompts come; none where fewer
            than three were read. CKA is one number of all prompts together, and not among them.
    """

    token_similarity: list[float]
    layer_cosine: list[float]
    smoothness: float
    stability: float
    matched_smoothness: float = math.nan
    matched_stability: float = math.nan
    cka: list[list[float]] = field(default_factory=list)
    prompts: str = ""
    without: list[Flow] = field(default_factory=list)


@dataclass(frozen=True)
class Probe:
    """Linear probes by state on one task, length and label.

    Attributes:
        accuracy: test accuracy by state, mean over seeds.
        peak: state chosen on validation prompts.
        peak_accuracy: test accuracy there, each seed at its own peak.
        peak_low: lower end of its 95 % interval.
        last_accuracy: test accuracy of the last state.
        drop: peak minus last.
        drop_low: lower end of its interval.
        drop_high: upper end.
        chance: accuracy by chance.
        test: prompts that it was tested on; 0 where that is not known.
    """

    accuracy: list[float]
    peak: int
    peak_accuracy: float
    peak_low: float
    last_accuracy: float
    drop: float
    drop_low: float
    drop_high: float
    chance: float
    test: int = 0

    @property
    def decodable(self) -> bool:
        """Whether the interval of the peak's accuracy lies above chance."""
        return self.peak_low > self.chance

    @property
    def corrected_last(self) -> float:
        """Last state's accuracy on a scale from 0, by chance, to 1: comparable between numbers of classes."""
        return (self.last_accuracy - self.chance) / (1 - self.chance)

    @property
    def corrected_error(self) -> float:
        """Standard error of `corrected_last`, with two prompts of each kind added (Agresti and Coull); NaN unknown."""
        if not self.test:
            return math.nan
        share = (self.last_accuracy * self.test + 2) / (self.test + 4)
        return math.sqrt(share * (1 - share) / (self.test + 4)) / (1 - self.chance)

    @property
    def drop_ends(self) -> tuple[float, float]:
        """95 % interval of the drop.

        Where no test prompt is read differently at the peak and at the last state, the stored interval has no width.
        That many prompts leave open a share of up to 1 - 0.025^(1/n) that are, as the exact binomial interval has it.

        >>> flat = Probe([0.5, 0.5], 1, 0.5, 0.4, 0.5, 0.0, 0.0, 0.0, 0.25, test=60)
        >>> [round(end, 3) for end in flat.drop_ends]
        [-0.06, 0.06]
        """
        if self.drop_high > self.drop_low or not math.isfinite(self.drop_low):
            return self.drop_low, self.drop_high
        if not self.test:
            return math.nan, math.nan
        rest = 1 - 0.025 ** (1 / self.test)
        return self.drop - rest, self.drop + rest


@dataclass(frozen=True)
class Reading:
    """One model from one training.

    Attributes:
        model: its name.
        family: TBM, SSM or hybrid.
        kind: transformers' model type.
        seed: training seed, None where it is not known.
        layers: blocks.
        parameters: number of parameters.
        trained: "task/length" → flow of the trained weights.
        random: "scheme/task/length" → flow of random weights.
        probes: "label/task/length" → probes.
        branch: "task/length" → flow of what each block adds, trained weights.
        random_branch: "scheme/task/length" → the same of random weights.
        steps: of its training, None where they are not known.
        data: digest of what it was trained on.
        size_of: built-in model of which it is another size, which is asked about sizes and about nothing else; "" for
            all others.
    """

    model: str
    family: str
    kind: str
    seed: int | None
    layers: int
    parameters: int
    trained: dict[str, Flow] = field(default_factory=dict)
    random: dict[str, Flow] = field(default_factory=dict)
    probes: dict[str, Probe] = field(default_factory=dict)
    branch: dict[str, Flow] = field(default_factory=dict)
    random_branch: dict[str, Flow] = field(default_factory=dict)
    steps: int | None = None
    data: str = ""
    size_of: str = ""

    @property
    def training(self) -> Training:
        """Its training. Models of one belong together: same seed, same batches, same number of steps."""
        return Training(self.seed, self.steps, self.data)

    def again(self, other: Reading) -> bool:
        """Whether another reading is of the same built-in model, possibly from another training on the same data."""
        known = self.seed is not None and self.data != ""
        return known and all(getattr(self, name) == getattr(other, name) for name in SAME)

    def sized(self, other: Reading) -> bool:
        """Whether another reading is of another size of this built-in model, trained on the same data."""
        return self.seed is not None and self.data != "" and (other.size_of, other.data) == (self.model, self.data)

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is not finite becomes null."""
        content: dict[str, Any] = _plain(asdict(self))
        return {name: value for name, value in content.items() if name != "size_of" or value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reading:
        """Inverse of `to_json`."""
        kinds: dict[str, Any] = {**dict.fromkeys(FLOWS, _restored_flow), "probes": _restored_probe}
        parts: dict[str, Any] = {
            name: {key: restore(entry) for key, entry in data.get(name, {}).items()} for name, restore in kinds.items()
        }
        plain: dict[str, Any] = {name: value for name, value in data.items() if name not in kinds}
        return cls(**plain, **parts)


def read_results(results: Sequence[Result], *, training: Training | None = None) -> list[Reading]:
    """Readings of any mix of runs, in the order in which their models come.

    Runs of other studies, of other kinds of state than the stream and what a block or its mixer adds to it, and with
    parts taken out are ignored.

    Args:
        results: runs, loaded.
        training: of all of them; by default what the runs say, as those of the zoo's models do.
    """
    readings: dict[tuple[str, Training], Reading] = {}
    for result in results:
        about = result.provenance.get("model")
        probed = "probe_accuracy" in result
        if not about or about.get("ablate") or not (probed or "token_similarity" in result):
            continue
        if _kept(result) is None or "task" not in result.config:
            continue
        own = Training(**(about.get("training") or UNKNOWN._asdict())) if training is None else training
        key = (str(about["name"]), own)
        reading = readings.get(key) or _start(about, own)
        readings[key] = _with(reading, result, about)
    return list(readings.values())


def training_of(record: Mapping[str, Any]) -> Training:
    """Training that a record of `tools.zoo.make train` describes, with the steps that were run; unknown without one."""
    files = record.get("data", {}).get("digests")
    data = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16] if files else ""
    return Training(record.get("config", {}).get("seed"), record.get("steps"), data)


def _start(about: Mapping[str, Any], training: Training) -> Reading:
    return Reading(
        model=str(about["name"]),
        family=family(about["layer_kinds"]),
        kind=str(about["type"]),
        layers=about["layers"],
        parameters=about["parameters"],
        **training._asdict(),
    )


def family(kinds: Sequence[str]) -> str:
    """Family of a model by the kinds of its blocks.

    >>> family(["attention", "attention"]), family(["ssm"] * 4), family(["ssm", "attention"])
    ('TBM', 'SSM', 'hybrid')
    """
    attending = any("attention" in kind for kind in kinds)
    recurrent = any(kind in RECURRENT or any(part in kind for part in RECURRENT) for kind in kinds)
    return HYBRID if attending and recurrent else TBM if attending else SSM


def _kept(result: Result) -> str | None:
    """What a run's states are to a reading: "" the stream, "branch" what blocks add; None of other kinds."""
    kind = str(result.config.get("states", "residual"))
    if kind == "residual":
        return ""
    mixer = kind.partition(":")[2] in ("", *RECURRENT)
    return "branch" if kind.startswith("branch") and mixer and "probe_accuracy" not in result else None


def _with(reading: Reading, result: Result, about: Mapping[str, Any]) -> Reading:
    """The reading with one run more; of two runs of one kind the later one counts."""
    place = f"{result.config['task']}/{result.config['length']}"
    init = str(about.get("init", "trained"))
    if "probe_accuracy" in result:
        if init != "trained":
            return reading
        return replace(reading, probes={**reading.probes, f"{result.config['label']}/{place}": _probe(result)})
    trained, random = ("branch", "random_branch") if _kept(result) else ("trained", "random")
    name, key = (trained, place) if init == "trained" else (random, f"{init}/{place}")
    changes: dict[str, Any] = {name: {**getattr(reading, name), key: _flow(result)}}
    return replace(reading, **changes)


def _flow(result: Result) -> Flow:
    sums = {name: _sums(result, name) for name in (*CURVES, *SCALARS) if name in result}
    cka = result["cka_pooled"].tolist() if "cka_pooled" in result else []
    prompts = str(result.provenance.get("digests", {}).get("prompts", ""))
    count = min((total.shape[1] for total, _ in sums.values()), default=0)
    without = [_means(sums, leave) for leave in range(count)] if count >= LEAST_VALUES else []
    return replace(_means(sums), cka=cka, prompts=prompts, without=without)


def _sums(result: Result, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Sum and number of finite values by depth and prompt, every token counted once; padding is NaN."""
    axes, values = result.axes[name], np.asarray(result[name], dtype=np.float64)
    counts = result.token_counts(name) if "token" in axes else np.isfinite(values).astype(np.float64)

    def summed(array: np.ndarray) -> np.ndarray:
        rows = np.moveaxis(array, axes.index("sample"), -1) if "sample" in axes else array[..., None]
        return np.asarray(rows.reshape(1 if rows.ndim == 1 else len(rows), -1, rows.shape[-1]).sum(1))

    return summed(np.where(counts > 0, values, 0.0) * counts), summed(counts)


def _means(sums: Mapping[str, tuple[np.ndarray, np.ndarray]], leave: int | None = None) -> Flow:
    """Means over prompts and tokens, one prompt left out where asked."""
    means: dict[str, list[float]] = {}
    for name, (total, count) in sums.items():
        others = np.arange(total.shape[1]) != leave
        with np.errstate(invalid="ignore"):
            mean = total[:, others].sum(1) / count[:, others].sum(1)
        means[name] = [float(value) for value in mean]
    fields: dict[str, Any] = {name: means.get(name, []) for name in CURVES}
    fields |= {name.replace("/", "_"): means[name][0] if name in means else math.nan for name in SCALARS}
    return Flow(**fields)


def _by_depth(values: np.ndarray) -> list[float]:
    """Mean over all axes but the first, without NaN."""
    rows = values.reshape(len(values), -1).astype(np.float64)
    present = np.isfinite(rows)
    with np.errstate(invalid="ignore"):
        mean = np.where(present, rows, 0.0).sum(1) / present.sum(1)
    return [float(value) for value in mean]


def _probe(result: Result) -> Probe:
    about, drop = result.provenance["probe"], result.bands["probe_drop"]
    top = result.bands.get("probe_peak_accuracy")
    return Probe(
        accuracy=_by_depth(result["probe_accuracy"]),
        peak=int(about["peak"]),
        peak_accuracy=_number(about["peak_accuracy"]),
        peak_low=math.nan if top is None else float(top.low),
        last_accuracy=_number(about["last_accuracy"]),
        drop=float(drop.mean),
        drop_low=float(drop.low),
        drop_high=float(drop.high),
        chance=float(about["chance"]),
        test=min((int(sizes[-1]) for sizes in about.get("split_sizes", ())), default=0),
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def known_readings() -> list[Reading]:
    """Packaged readings of the zoo's models: every further training that was measured."""
    return [Reading.from_json(entry) for entry in zoo.seed_records()]


def merge(own: Sequence[Reading], known: Sequence[Reading]) -> list[Reading]:
    """Own readings, with what else is known of the same models: other lengths and labels, other trainings, other sizes.

    Own values win. A model that was not measured here, or whose training is not known, gets nothing.
    """
    kept = [other for other in known if any(reading.again(other) or reading.sized(other) for reading in own)]
    stored = {(other.model, other.training): other for other in kept}
    merged = []
    for reading in own:
        other = stored.pop((reading.model, reading.training), None)
        merged.append(reading if other is None else _joined(reading, other))
    return [*merged, *stored.values()]


def further_trainings(own: Reading, known: Sequence[Reading], place: str) -> list[Reading]:
    """Readings of the same built-in model from other trainings that have a flow at "task/length"."""
    return [
        other for other in known
        if own.again(other) and other.training != own.training and place in other.trained
    ]  # fmt: skip


def further_words(readings: Sequence[Reading]) -> str:
    """Further trainings in words.

    >>> one = Reading("m", "SSM", "mamba2", 1, 2, 9, steps=2000)
    >>> further_words([one]), further_words([one, replace(one, seed=2)]), further_words([one, replace(one, steps=9)])
    ('1 further training of 2,000 steps', '2 further trainings of 2,000 steps', '2 further trainings')
    """
    steps = {reading.steps for reading in readings}
    length = f" of {steps.pop():,} steps" if len(steps) == 1 and None not in steps else ""
    return f"{len(readings)} further training{'s' if len(readings) > 1 else ''}{length}"


def _joined(own: Reading, other: Reading) -> Reading:
    return replace(
        own,
        trained=other.trained | own.trained,
        random=other.random | own.random,
        probes=other.probes | own.probes,
        branch=other.branch | own.branch,
        random_branch=other.random_branch | own.random_branch,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def _restored_flow(entry: Mapping[str, Any]) -> Flow:
    fields = _restored(entry)
    return Flow(**{**fields, "without": [Flow(**one) for one in fields.get("without", ())]})


def _restored_probe(entry: Mapping[str, Any]) -> Probe:
    return Probe(**_restored(entry))


def _restored(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _restored(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_restored(entry) for entry in value]
    return math.nan if value is None else value
