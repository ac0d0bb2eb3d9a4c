"""The check of types that tests run under finds what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from repflow.core.intervals import student_interval
from repflow.core.results import Result
from repflow.metrics import linear_cka
from tests.typecheck import checked


@checked
def total(x: Float[Tensor, "batch token"], y: Float[Tensor, "batch token"], names: list[str] | None = None) -> Tensor:
    return x + y


@checked
def ones(count: int) -> Iterator[int]:
    yield from [1] * count


@checked
@dataclass(frozen=True)
class Box:
    width: int
    label: str = ""


def test_wrong_types_are_refused():
    with pytest.raises(TypeError):
        Box("wide")
    with pytest.raises(TypeError):
        total(torch.ones(2, 3), torch.ones(2, 3), [1])
    with pytest.raises(TypeError):
        list(ones("two"))
    assert Box(3).width == 3
    assert list(ones(2)) == [1, 1]


def test_axes_of_one_name_have_one_size():
    assert total(torch.ones(2, 3), torch.ones(2, 3)).shape == (2, 3)
    with pytest.raises(TypeError):
        total(torch.ones(2, 3), torch.ones(2, 4))


def test_metrics_run_under_it():
    with pytest.raises(TypeError):
        linear_cka([1.0], [2.0])


def test_all_of_repflow_runs_under_it_where_it_is_asked_for(request):
    packages = request.config.getoption("jaxtyping_packages").split(",")
    if "repflow" not in packages:
        pytest.skip("only metrics are checked; make test-all checks every call")
    with pytest.raises(TypeError):
        Result([1.0], {})
    with pytest.raises(TypeError):
        student_interval([1.0, 2.0, 3.0], level="high")


def test_annotations_stay_as_they_were_written():
    assert total.__annotations__["return"] == "Tensor"
    assert Box.__init__.__annotations__["width"] == "int"
