"""The facade: lazy names, states, and results that draw themselves."""

import importlib
import subprocess
import sys

import numpy as np
import pytest

NAMES = {
    "load",
    "load_result",
    "states",
    "measure",
    "compare",
    "diagnose",
    "dynamics",
    "probe",
    "from_hidden_states",
    "needle",
    "influence",
    "hidden_attention",
    "register_metric",
    "metrics",
    "mixers",
    "theory",
    "training",
    "Result",
    "Finding",
}


def test_import_needs_no_torch():
    code = "import repflow, sys; print([n for n in ('torch', 'numpy', 'transformers', 'plotly') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_are_listed_and_found():
    import repflow

    assert NAMES | {"errors", "__version__"} == set(dir(repflow))
    for name in dir(repflow):
        assert getattr(repflow, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'mesure'"):
        _ = repflow.mesure


@pytest.fixture(scope="module")
def model():
    import torch

    import repflow
    from tests.models.tiny_configs import tiny_model

    torch.set_num_threads(1)
    return repflow.load(tiny_model("gpt_neox"))


def test_states_are_those_that_measure_sees(model):
    import torch

    import repflow

    ids = torch.randint(0, 128, (3, 12), generator=torch.Generator().manual_seed(0))
    hidden, mask, tokens = repflow.states(model, ids)
    assert hidden.shape == (5, 3, 12, 32)
    assert mask.shape == (3, 12)
    assert bool(mask.all())
    assert tokens[0] == [str(i) for i in ids[0].tolist()]
    expected = repflow.metrics.token_similarity(hidden)
    result = repflow.measure(model, ids)
    np.testing.assert_allclose(result["token_similarity"], expected.numpy(), rtol=1e-5, atol=1e-6)


def test_states_of_ragged_ids_are_right_padded(model):
    import torch

    import repflow

    rows = [[1, 2, 3, 4, 5], [6, 7]]
    together = repflow.states(model, rows)
    alone = repflow.states(model, [[6, 7]])
    assert together.mask.tolist() == [[True] * 5, [True, True, False, False, False]]
    assert [len(row) for row in together.tokens] == [5, 2]
    torch.testing.assert_close(together.hidden[:, 1, :2], alone.hidden[:, 0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [[], [1, 2, 3], 7, [[1]], [[1, 999]]])
def test_bad_states_requests_are_refused(model, bad):
    import repflow

    with pytest.raises(repflow.core.errors.InputError):
        repflow.states(model, bad)


def test_results_draw_themselves(model):
    import torch

    import repflow

    result = repflow.measure(model, torch.randint(0, 128, (3, 12)))
    line = result.plot("token_similarity")
    assert len(line.data) == 3  # both edges of the band and the line
    np.testing.assert_allclose(line.data[2].y, result.mean("token_similarity"))
    heat = result.plot("layer_cosine")
    assert np.asarray(heat.data[0].z).shape == (4, 12)
    dots = result.plot("smoothness")
    np.testing.assert_allclose(np.sort(np.asarray(dots.data[0].y, dtype=float)), np.sort(result["smoothness"]))
    with pytest.raises(KeyError, match="no metric"):
        result.plot("nothing")
    result.findings.append(repflow.Finding("x", None, "<script>alert(1)</script>"))
    page = result._repr_html_()
    assert "token_similarity" in page
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_old_module_names_leave_namespace_packages_alone(tmp_path, monkeypatch):
    """Python hands a finder the path of a namespace package, which is iterable but not a sequence."""
    importlib.import_module("repflow")  # registers the finder
    (tmp_path / "spread_out").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r"spread_out\.part"):
        importlib.import_module("spread_out.part")


def test_a_module_in_a_package_is_not_called_moved():
    """`from repflow.report.page import render` asks the package's `__getattr__` before it imports the module."""
    import warnings

    from repflow.report import page
    from repflow.studies import probe

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert page.__getattr__("render").__name__ == "repflow.report.page.render"
    with pytest.warns(DeprecationWarning, match=r"repflow\.studies\.probe\.ProbeConfig has moved to"):
        assert probe.__getattr__("ProbeConfig").__name__ == "ProbeConfig"
