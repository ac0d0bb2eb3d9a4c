"""`theory verify`: every corrected form agrees, printed ones are judged, a cut run goes on, a wrong form is caught."""

import numpy as np
import pytest

from repflow import load_result, theory
from repflow.core.errors import InputError
from repflow.papers import values as papers
from repflow.studies.theory import verify as theory_verify
from repflow.studies.theory.verify import VerifyConfig, run, run_name
from repflow.theory.check import bound_check, value_check
from repflow.theory.simulate import FORMS
from repflow.theory.statements.printed_table import data_checks

SMALL = VerifyConfig(samples=4000)


@pytest.fixture(scope="module")
def result():
    return run(SMALL)


def test_every_corrected_form_agrees(result):
    checks = result.provenance["checks"]
    assert [c["statement"] for c in checks if c["kind"] != "data" and not c["passes"]] == []
    assert result.axes == dict.fromkeys(("printed", "corrected", "simulation", "error", "gap"), ("row",))
    named = {c["statement"] for c in checks}
    assert {f"Theorem {n}" for n in (1, 2, 3, 4, 5, 6)} <= named
    assert {"Proposition 1", "Proposition 2", "Proposition 3", "Lemma 1", "Lemma 2"} <= named
    assert {"Theorem 3.1", "Proposition D.4", "Theorem 4.2", "Theorem D.5 (i)", "Lemma D.6"} <= named


def test_known_errata_are_found(result):
    verdicts = {(c["statement"], c["setting"]): c["verdict"] for c in result.provenance["checks"]}
    for statement, setting in (
        ("Theorem 2", "causal attention, n = 32"),
        ("Theorem 4", "n = 8, K = 1"),
        ("Theorem D.5 (i)", "A + Δ = 1, not centred"),
        ("Theorem 6", "zig-zag and straight, L = 10"),
    ):
        assert verdicts[statement, setting].startswith("printed")
    assert verdicts["Theorem 4.2", "A + Δ ≤ 1, centred (ii)"].startswith("as printed")


def test_table_1_disagrees_with_the_theorems(result):
    pair = next(c for c in data_checks() if c.setting == "Pythia-2.8B over Mamba2-2.7B")
    cells = [
        papers.TABLE_1["Pythia-2.8B", n].stability / papers.TABLE_1["Mamba2-2.7B", n].stability
        for n in (300, 1000, 2000)
    ]
    assert pair.simulation == pytest.approx(np.mean(cells))
    assert not pair.passes
    assert pair.verdict == "does not hold: 0 of 3 lengths, St 1.1 against 3.2"
    message = next(f.message for f in result.findings if f.code == "theory_against_data")
    assert "Pythia-2.8B over Mamba2-2.7B" in message
    assert "Mamba-2.8B:" not in message


def test_a_cut_run_goes_on_with_the_next_group(tmp_path, monkeypatch, result):
    groups_run = []
    original = theory_verify._checks

    def cut(group, config, progress):
        groups_run.append(group)
        if group == "mamba" and len(groups_run) == 3:
            raise KeyboardInterrupt
        return original(group, config, progress)

    monkeypatch.setattr(theory_verify, "_checks", cut)
    with pytest.raises(KeyboardInterrupt):
        run(SMALL, out=tmp_path)
    whole = run(SMALL, out=tmp_path)
    assert groups_run == ["attention", "transformer", "mamba", *list(theory_verify.groups())[2:]]
    assert whole.provenance["checks"] == result.provenance["checks"]
    stored = load_result(tmp_path / run_name(SMALL))
    np.testing.assert_array_equal(stored["simulation"], result["simulation"])
    assert run(SMALL, out=tmp_path).provenance["checks"] == result.provenance["checks"]
    assert len(groups_run) == 3 + 7


def test_a_wrong_closed_form_is_caught(monkeypatch):
    right = theory.mamba_trace
    monkeypatch.setitem(FORMS, "mamba_trace", lambda *a, **k: 1.2 * right(*a, **k))
    checks = theory_verify._checks("mamba", VerifyConfig(samples=20_000), None)
    wrong = [c for c in checks if c.statement == "Theorem 4"]
    assert wrong
    assert not any(c.passes for c in wrong)
    assert all(c.verdict == "corrected form off by more than 1 %" for c in wrong)
    assert theory_verify._findings(wrong)[0].code == "closed_form"


def test_records():
    good = value_check("T", "s", 1.5, 1.002, 1.0, 1e-4, "why")
    assert (good.passes, good.verdict) == (True, "printed off by +50%: why")
    assert good.gap == pytest.approx(0.002)
    assert not value_check("T", "s", None, 1.02, 1.0, 1e-4, "why").passes
    assert value_check("T", "s", None, 1.02, 1.0, 0.01, "why").passes  # within the noise of a short simulation
    assert value_check("T", "s", 0.0, 0.0, 1e-4, 1e-3, "").gap is None
    assert bound_check(2, "T", "s", 0, 0, 10, "").verdict == "as printed: no draw breaks it"
    assert not bound_check(2, "T", "s", 3, 1, 10, "").passes


def test_few_draws_are_refused():
    with pytest.raises(InputError, match="samples of at least 1000"):
        run(VerifyConfig(samples=10))
    assert VerifyConfig(quick=True).draws() == 20_000
    assert run_name(VerifyConfig()) == "theory-verify"
    assert run_name(VerifyConfig(quick=True, seed=2)) == "theory-verify-20000-seed2"
