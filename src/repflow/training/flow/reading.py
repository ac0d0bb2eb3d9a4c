"""One reading of a model in training: the chosen metrics over fixed prompts, in one pass without gradients.

Three kinds of metrics: those of the catalogue and registered ones, computed as states stream by; `probe_accuracy`,
fitted on the last token's states of the same pass; `influence_half_life`, which takes backward passes of its own, to
the embeddings alone, so that no gradient of a weight is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from repflow.capture.features import FeatureMeter
from repflow.capture.findings import table_findings
from repflow.capture.influence.batches import InfluenceOptions, default_probes, run_influence
from repflow.capture.measure import MeasureOptions, check_options, measure_plan, meter_factory, resolve_metric
from repflow.capture.plan import Plan
from repflow.capture.run import MemorySink, batch_name, gather, run_plan
from repflow.core.catalogue import METRICS
from repflow.core.errors import InputError, RepflowError, teach
from repflow.core.results import Result
from repflow.metrics.custom import function_name
from repflow.metrics.meter import Meter, Table, position_bins
from repflow.models import Model
from repflow.tasks import Prompts, check_fit
from repflow.theory.influence_curve import exponential_fit, half_reach, logarithms, ragged
from repflow.training.flow.probe import WarmProbe

DEFAULT_METRICS = ("token_similarity", "layer_cosine", "token_norm", "smoothness", "stability")
"""What a meter reads unless asked otherwise: similarity of tokens, change per block, norms, and paper 1's Sm and St."""
INFLUENCE, PROBE = "influence_half_life", "probe_accuracy"
"""Metrics that are not functions of states alone."""
NONFINITE = "nonfinite_state"
NO_GRADIENT = ("does not require grad", "Inference tensors", "inference tensor", "requires_grad")


def known_metrics(metrics: Sequence[str | Callable[..., Any]] | str) -> tuple[str | Callable[..., Any], ...]:
    """Names of metrics, `default` replaced by the default ones, and functions as they are.

    Raises:
        InputError: An unknown name, or none at all.
    """
    entries: list[Any] = [metrics] if isinstance(metrics, str) or callable(metrics) else list(metrics)
    known: list[Any] = []
    for one in entries:
        if one == "default":
            known += DEFAULT_METRICS
        else:
            known.append(one if callable(one) or one in (INFLUENCE, PROBE) else resolve_metric(one))
    if not known:
        raise InputError(teach("at least one metric to watch", "none", "leave metrics out for the default ones"))
    return tuple(dict.fromkeys(known))


def named_metrics(metrics: Sequence[str | Callable[..., Any]]) -> tuple[str, ...]:
    """Names alone; functions are registered under theirs, once they were tried on a few random states."""
    with _saying_gradients():
        return tuple(function_name(one) if callable(one) else one for one in metrics)


@dataclass
class Reading:
    """How a model is read, again and again.

    Attributes:
        model: a copy that shares its tensors with the model in training.
        prompts: fixed.
        metrics: names, see `known_metrics`.
        labels: classes of the prompts for `probe_accuracy`; their own unless given.
        seed: of the probe's split.
        bad_state: first state that was not finite in the last reading; None where all were.
    """

    model: Model
    prompts: Prompts
    metrics: tuple[str, ...]
    labels: Sequence[int] | None = None
    seed: int = 0
    bad_state: int | None = field(default=None, init=False)
    _plan: Plan = field(init=False, repr=False)
    _options: MeasureOptions | None = field(init=False, repr=False)
    _probe: WarmProbe | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse what cannot be read, before the training starts."""
        check_fit(self.prompts, self.model.max_length, self.model.vocab_size)
        streamed = [name for name in self.metrics if name not in (INFLUENCE, PROBE)]
        if set(DEFAULT_METRICS) <= set(streamed):  # a short model lacks some of them; one named alone is refused
            short = {name for name in DEFAULT_METRICS if METRICS[name].states > self.model.n_states}
            streamed = [name for name in streamed if name not in short]
        options = MeasureOptions(tuple(streamed), keep_samples=0, allow_float16=True, check_precision=False)
        self._options = check_options(options, self.model, self.prompts) if streamed else None
        self._plan = measure_plan(self.model, self.prompts, options)
        if PROBE in self.metrics:
            self._probe = WarmProbe.of(self.prompts, self.labels, self.seed)

    def table(self) -> Table:
        """Metrics of the model as it is now, without token axes."""
        table: Table = {}
        if self._options is not None or self._probe is not None:
            table |= self._streamed()
        if INFLUENCE in self.metrics:
            table |= self._influence()
        return table

    def _streamed(self) -> Table:
        options = self._options
        makers: list[Callable[[], Sequence[Meter]]] = []
        if options is not None:
            makers.append(meter_factory(self.model, self.prompts, options, self._plan.group))
        if self._probe is not None:
            makers.append(lambda: [FeatureMeter(readings=("last",))])

        def factory() -> list[Meter]:
            return [meter for maker in makers for meter in maker()]

        sink = MemorySink()
        with _saying_gradients():
            plan = run_plan(self.model, self.prompts, self._plan, factory, sink)
        self._plan = plan  # where memory ran out, the smaller batches stay
        meters = factory()
        for batch in plan.batches:
            gather(meters, sink.read(batch_name(batch)))
        raw: Table = {}
        for meter in meters:
            raw |= meter.compute()
        about = table_findings(raw, self.prompts.lengths, self.model.width)
        self.bad_state = next((finding.layer for finding in about if finding.code == NONFINITE), None)
        table: Table = {}
        if self._probe is not None:
            table |= self._probe.read(raw.pop("last")[1])
        return {**self._by_token(raw), **table}

    def _by_token(self, raw: Table) -> Table:
        """Metrics asked for, each prompt's tokens averaged."""
        wanted = () if self._options is None else self._options.metrics
        entries = {name: raw[name] for name in wanted if name in raw}
        lengths = self.prompts.lengths
        about = {"positions": position_bins(max(lengths)).tolist(), "lengths": list(lengths)}
        arrays, axes = ({name: entry[part] for name, entry in entries.items()} for part in (1, 0))
        result = Result(arrays, axes, {}, about)  # type: ignore[arg-type]
        table: Table = {}
        for name, (named, array) in entries.items():
            if {"token", "sample"} <= set(named):
                table[name] = tuple(axis for axis in named if axis != "token"), result.token_mean(name)
            else:
                table[name] = named, array
        return table

    def _influence(self) -> Table:
        options = InfluenceOptions(probes=default_probes(self.model.width), decays=False)
        records = run_influence(self.model, self.prompts, options, MemorySink())
        squares = ragged([record["mean"][0] for record in records.values()])  # (sample, source, distance)
        curves = logarithms(squares[:, 0])
        try:
            fit = exponential_fit(curves)
            life = fit.half_life[0] if fit.exponential else np.nan
        except InputError:  # prompts of too few tokens have no line
            life = np.nan
        return {INFLUENCE: ((), np.asarray(life)), "influence_half_reach": (("sample",), half_reach(curves))}


@contextmanager
def _saying_gradients() -> Iterator[None]:
    """Say what to do where a metric asks for gradients in a pass that has none."""
    try:
        yield
    except RepflowError as error:
        if not any(words in str(error) for words in NO_GRADIENT):
            raise
        expected = "metrics that need no gradient, since the pass over the prompts has none"
        remedy = f"compute it from hidden.clone() under torch.enable_grad(), ask for {INFLUENCE}, or leave it out"
        raise InputError(teach(expected, str(error), remedy)) from error
