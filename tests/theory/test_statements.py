"""A theorem is a module and a row: its checks, closed forms and simulations are found by name."""

from types import ModuleType

import numpy as np
import pytest

from repflow import theory
from repflow.studies.theory import verify
from repflow.theory import statements
from repflow.theory.check import Session, bound_check, form_check
from repflow.theory.hypotheses import Hypothesis, report
from repflow.theory.simulate import FORMS, TWINS, Twin


def second_moment(sigma2, *, form="corrected"):
    """E[x²] of a centred Gaussian; printed without the square."""
    report("Toy theorem", [Hypothesis("σ² ≥ 0", sigma2 >= 0, f"σ² is {sigma2:g}")])
    return float(np.sqrt(sigma2)) if form == "printed" else float(sigma2)


def draw(sigma2):
    return lambda rng, count: sigma2 * rng.standard_normal(count) ** 2, 1


def checks(session):
    check = form_check(session, "Toy theorem", "σ² = 4", "the square is missing", "second_moment", 4.0)
    return [check, bound_check(1, "Toy lemma", "x² ≥ 0", 0, 0, 10, "")]


@pytest.fixture
def toy(monkeypatch):
    module = ModuleType("toy")
    module.CHECKS, module.FORMS = {"toy": checks}, {"second_moment": second_moment}
    module.TWINS = {"second_moment": Twin(draw, lambda moments: (float(moments.mean), float(moments.mean_error)))}
    monkeypatch.setattr(statements, "MODULES", (*statements.MODULES, module))
    statements.register()
    yield
    FORMS.pop("second_moment")
    TWINS.pop("second_moment")


def test_a_module_and_a_row_make_a_theorem(toy):
    assert list(verify.groups())[-1] == "toy"
    assert theory.second_moment(4.0) == 4.0
    assert theory.hypotheses("second_moment", 4.0).all_hold
    assert abs(theory.simulate("second_moment", 4.0, samples=20_000).gap) < 0.05
    value, bound = verify.groups()["toy"](Session(20_000, 0))
    assert value.passes
    assert value.verdict == "printed off by -50%: the square is missing"
    assert bound.passes


def test_parts_keep_their_order_and_have_one_home_each():
    names = [name for module in statements.MODULES for name in module.CHECKS]
    assert names == [
        *("attention", "transformer", "mamba", "ordering", "depth", "recency", "smoothing", "delta rule", "table-1"),
    ]
    assert list(statements.groups()) == names
    assert tuple(sorted(FORMS)) == theory.CLOSED_FORMS
    assert TWINS.keys() <= FORMS.keys()
    with pytest.raises(AttributeError, match="has no attribute 'second_moment'"):
        _ = theory.second_moment
