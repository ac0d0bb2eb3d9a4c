"""One set of prompts through one model: features of every state, from the store where they are already."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import dropwhile
from string import punctuation
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError, UnsupportedModelError, teach
from repflow.studies.probe.config import ProbeConfig

if TYPE_CHECKING:
    import numpy as np

    from repflow.capture import Plan
    from repflow.capture.features import FeatureShard
    from repflow.capture.run import Progress
    from repflow.models import Model
    from repflow.studies.engine.feature_sink import PartSink
    from repflow.tasks import Prompts


FUNCTION_WORDS = """
who whom whose what which when where why how is are was were be been do does did has have had can could will would
should may might many much name in on at to of by for from with and or the a an
"""
"""Words that begin most questions: a control task of these would have few and unequal classes."""


def readings(config: ProbeConfig) -> tuple[str, ...]:
    """What is taken of each prompt: the main position first, then those of the sweep."""
    from repflow.spec.request import check_readings

    return check_readings([config.position, *config.sweep])


def check_model(config: ProbeConfig, model: Model, prompts: Prompts) -> None:
    """Refuse what this model cannot do, before anything runs."""
    import torch

    from repflow.tasks import check_fit

    check_fit(prompts, model.max_length, model.vocab_size)
    if model.dtype == torch.float16 and not config.allow_float16:
        got = "float16, whose range ends at 65,504, below the massive activations of many models"
        raise InputError(teach("float32 or bfloat16 for probing", got, "pass --dtype float32 or --allow-float16"))
    states = model.state_count(config.states)
    if config.states.startswith("branch:") and model.reading.sublayer_problem is not None:
        raise UnsupportedModelError(model.reading.sublayer_problem)
    if not states:
        got = f"none in {model.name}"
        raise InputError(teach(f"states of kind {config.states!r}", got, "ask for residual or branch"))


def extract(
    model: Model, prompts: Prompts, config: ProbeConfig, sink: PartSink, progress: Progress | None = None
) -> list[FeatureShard]:
    """Run the prompts once and keep the features of every state; what the sink holds is not run again."""
    from repflow.capture.run import batch_name

    plan = run_features(model, prompts, config, sink, progress)
    return sink.shards([batch_name(batch) for batch in plan.batches])


def run_features(
    model: Model, prompts: Prompts, config: ProbeConfig, sink: PartSink, progress: Progress | None = None
) -> Plan:
    """Run the prompts that the sink does not hold; returns the plan with its splits."""
    from repflow.capture import make_plan, run_plan
    from repflow.capture.features import FeatureMeter

    places = readings(config)
    plan = sink.plan(
        lambda: make_plan(
            prompts.lengths, width=model.width, itemsize=model.dtype.itemsize, batch_size=config.batch_size
        )
    )
    return run_plan(model, prompts, plan, lambda: [FeatureMeter(places)], sink, kind=config.states, progress=progress)


class _Enough(Exception):
    """Not an error: only the embedding was wanted, so the forward pass ends."""


def embedding_rows(model: Model, prompts: Prompts) -> np.ndarray:
    """State 0 at the last token (sample, width): what the prompt's end says before any block has run."""
    import numpy as np

    from repflow.capture.features import FeatureMeter
    from repflow.capture.plan import BATCH_TOKENS
    from repflow.capture.run import pad
    from repflow.metrics.meter import BatchInfo

    rows: list[Any] = []
    size = max(1, 4 * BATCH_TOKENS // max(prompts.lengths))
    for start in range(0, len(prompts), size):
        batch = tuple(range(start, min(start + size, len(prompts))))
        meter = FeatureMeter()
        meter.begin(BatchInfo(batch, tuple(prompts.lengths[s] for s in batch)))
        ids, mask = pad(prompts, batch)

        def stop(state: int, hidden: Any, meter: FeatureMeter = meter) -> None:
            meter.update(state, hidden)
            raise _Enough

        try:
            model.stream(ids, mask, on_state=stop)
        except _Enough:
            meter.close()
            meter.end()
        rows.append(meter.compute()["last"][1][0])
    return np.concatenate(rows)


def key_tokens(prompts: Prompts, model: Model) -> list[int] | None:
    """First content token of each prompt's key, for the control task; None without keys or without a tokenizer."""
    from repflow.tasks.prompt import encode

    keys = [prompt.key for prompt in prompts if prompt.key]
    if model.tokenizer is None or len(keys) < len(prompts):
        return None
    first = {key: int(encode(model.tokenizer, content(key))[0]) for key in set(keys)}
    return [first[key] for key in keys]


def content(key: str) -> str:
    """A key from its first content word on; the whole key where it has none.

    >>> content("who was the first emperor of china"), content("9f-a1"), content("of the")
    ('first emperor of china', '9f-a1', 'of the')
    """
    words, passed = key.split(), FUNCTION_WORDS.split()
    rest = list(dropwhile(lambda word: word.casefold().strip(punctuation) in passed, words))
    return " ".join(rest) or key


def labels_of(prompts: Prompts) -> np.ndarray:
    """Class of each prompt (sample,)."""
    import numpy as np

    return np.array([prompt.label for prompt in prompts], dtype=np.int64)


def counts_of(prompts: Prompts) -> Sequence[int]:
    """Items of each prompt, 0 where the task counts none."""
    return [prompt.items or 0 for prompt in prompts]
