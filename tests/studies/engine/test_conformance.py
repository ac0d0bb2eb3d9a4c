"""check_study: built-in studies keep the promises of `Study`, and each broken one is named."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from repflow.core.studies import STUDIES
from repflow.models import load
from repflow.studies import check_study
from repflow.studies.engine.conformance import BrokenPromiseError
from repflow.studies.engine.naming import Names
from repflow.studies.engine.table import study_at
from repflow.studies.memory.study import Memory, MemoryConfig
from repflow.studies.recency.study import STUDY as RECENCY
from repflow.studies.recency.study import RecencyConfig
from tests.models.tiny_configs import tiny_model

SMALL = {"length": 12, "samples": 3, "batch_size": 1}


@pytest.fixture(scope="module")
def models():
    return {"model": load(tiny_model("mamba2"))}


@pytest.mark.parametrize(
    ("study", "config"),
    [(Memory(), MemoryConfig(**SMALL)), (RECENCY, RecencyConfig(**SMALL, probes=1))],
    ids=["memory", "recency"],
)
def test_built_in_studies_keep_them(models, study, config):
    check_study(study, config, models=models)


def test_rows_and_studies_agree():
    for row in STUDIES:
        assert study_at(row).name == row.name


class Unlisted(Memory):
    name = "unlisted"


class OneName(Memory):
    def names(self, config):
        return Names("memory", "memory", "memory")


class Drawn(Memory):
    def compute(self, job, sink, progress):
        result = super().compute(job, sink, progress)
        name = next(iter(result))
        result.arrays[name] = np.random.default_rng().normal(size=result[name].shape)
        return result


class Forgetful(Memory):
    def compute(self, job, sink, progress):
        sink.has = lambda name: False
        return super().compute(job, sink, progress)


@dataclass
class Silent(MemoryConfig):
    depth: int = 3


class Unexplained(Memory):
    config = Silent


@pytest.mark.parametrize(
    ("study", "said"),
    [
        (Unlisted(), "a row in the table of studies; got 'unlisted'"),
        (Unexplained(), "a help text for every option; got none for depth"),
        (OneName(), "a name that changes with every option; got 'memory' for two values of"),
        (Drawn(), "a stored run gives what the same request gives in memory"),
        (Forgetful(), "computes only what is missing; got .* written twice"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Memory) else "",
)
def test_broken_promises_are_named(models, study, said):
    with pytest.raises(BrokenPromiseError, match=said):
        check_study(study, replace(MemoryConfig(**SMALL)), models=models)
