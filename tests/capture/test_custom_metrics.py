"""A user's own metrics: registered in Python or taken from a file, checked, named when they fail."""

import numpy as np
import pytest
import torch

from repflow.capture import collect_states
from repflow.capture.measure import MeasureOptions, measure_prompts, resolve_metric
from repflow.core.errors import InputError, RepflowError
from repflow.metrics.custom import CUSTOM, register_metric
from tests.capture.inputs import LENGTHS, model, prompts


@pytest.fixture(autouse=True)
def clean():
    """Leave no metric behind."""
    before = dict(CUSTOM)
    yield
    CUSTOM.clear()
    CUSTOM.update(before)


def run(*names, **options):
    return measure_prompts(model(dtype="float64"), prompts(), MeasureOptions(metrics=names, batch_size=4, **options))


def states(sample):
    return collect_states(model(dtype="float64"), prompts())[0][:, sample, : LENGTHS[sample]]


def test_a_registered_metric_sees_real_tokens_only():
    shapes = []

    def mean_size(hidden):
        shapes.append(tuple(hidden.shape))
        return hidden.abs().mean((1, 2))

    assert register_metric(mean_size, axes=("state",)) is mean_size
    result = run("mean_size", "token_similarity")
    assert sorted(shapes) == sorted((5, length, 32) for length in LENGTHS)
    assert result.axes["mean_size"] == ("state", "sample")
    for sample in range(9):
        np.testing.assert_allclose(result["mean_size"][:, sample], states(sample).abs().mean((1, 2)), rtol=1e-9)
    assert "token_similarity" in result
    assert "mean_size" in result.bands
    assert set(run("mean_size")) == {"mean_size"}


@pytest.mark.parametrize(
    ("axes", "function", "shape"),
    [
        ((), lambda h: 3.5, (9,)),
        (("layer",), lambda h: (h[1:] - h[:-1]).norm(dim=(1, 2)), (4, 9)),
        (("state", "token"), lambda h: h[..., 0].numpy(), (5, 9, 21)),
        (("state", "state"), lambda h: torch.ones(5, 5), (5, 5, 9)),
        (("state", "rank"), lambda h: h[:, 0, :3], (5, 9, 3)),
        (("width",), lambda h: h.mean((0, 1)), (9, 32)),
    ],
)
def test_axes_of_many_kinds(axes, function, shape):
    register_metric(function, axes=axes, name="own")
    result = run("own")
    assert result["own"].shape == shape
    if "token" in axes:
        assert np.isnan(result["own"][:, 2, 2:]).all()
        assert np.isfinite(result["own"][:, 2, :2]).all()


@pytest.mark.parametrize(
    ("axes", "function", "text"),
    [
        (("state",), lambda h: h.mean(), r"metric 'own' with axes \(state = 5\); got shape \(\); declare the axes"),
        (("state",), lambda h: h.mean((0, 1)), r"with axes \(state = 5\); got shape \(32,\)"),
        (("layer", "token"), lambda h: h[..., 0], r"\(layer = 4, token = \d+\); got shape \(5, "),
    ],
)
def test_wrong_axes_are_named(axes, function, text):
    register_metric(function, axes=axes, name="own")
    with pytest.raises(InputError, match=text):
        run("own")


def test_what_goes_wrong_inside_is_told_with_the_metrics_name():
    def fragile(hidden):
        return hidden.abs().mean((1, 2)) / (hidden.shape[1] // 3) if hidden.shape[1] != 5 else 1 // 0

    register_metric(fragile, axes=("state",))
    text = r"metric 'fragile' failed on sample 5 with hidden \(state, token, width\) = \(5, 5, 32\): ZeroDivisionError"
    with pytest.raises(RepflowError, match=text) as raised:
        run("fragile")
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("name", ["smoothness", "top_tokens", "gram_share_error", "cka_own", "not a name", ""])
def test_taken_and_impossible_names(name):
    with pytest.raises(InputError, match="a new metric name that is a Python identifier"):
        register_metric(lambda hidden: 0.0, axes=(), name=name or "1")


@pytest.mark.parametrize("axis", ["sample", "batch", "time"])
def test_unknown_axes(axis):
    with pytest.raises(InputError, match=f"unknown axis '{axis}' for metric 'own'"):
        register_metric(lambda hidden: 0.0, axes=(axis,), name="own")


def written(path, text):
    path.write_text(text)
    return str(path)


def test_a_metric_from_a_file(tmp_path):
    file = written(tmp_path / "mine.py", "def width_of(hidden):\n    return hidden.abs().amax((1, 2))\n")
    result = run(f"{file}:width_of")
    np.testing.assert_allclose(result["width_of"][:, 3], states(3).abs().amax((1, 2)), rtol=1e-9)


def test_a_file_may_register_with_axes_of_its_own(tmp_path):
    text = (
        "from repflow import register_metric\n\n"
        "def step(hidden):\n    return (hidden[1:] - hidden[:-1]).abs().mean((1, 2))\n"
        "\nregister_metric(step, axes=('layer',))\n"
    )
    result = run(f"{written(tmp_path / 'mine.py', text)}:step")
    assert result.axes["step"] == ("layer", "sample")


def test_a_changed_file_and_another_file_are_read_anew(tmp_path):
    """What the last request used under the same name must not answer this one."""
    one = written(tmp_path / "one.py", "def f(hidden):\n    return hidden[:, 0, 0] * 0 + 1\n")
    other = written(tmp_path / "other.py", "def f(hidden):\n    return hidden[:, 0, 0] * 0 + 2\n")
    assert (run(f"{one}:f")["f"] == 1).all()
    assert (run(f"{other}:f")["f"] == 2).all()
    written(tmp_path / "one.py", "def f(hidden):\n    return hidden[:, 0, 0] * 0 + 33\n")
    assert (run(f"{one}:f")["f"] == 33).all()
    with pytest.raises(InputError, match=r"one function called 'f'; got .*one.py:f and .*other.py:f; rename one"):
        run(f"{one}:f", f"{other}:f")
    assert set(run(f"{one}:f", f"{one}:f", "f")) == {"f"}


@pytest.mark.parametrize(
    ("text", "name", "error"),
    [
        (None, "f", "a Python file at .*mine.py; got none; pass metrics=FILE.py:FUNCTION"),
        ("def f(:\n", "f", "mine.py cannot be imported: SyntaxError"),
        ("raise OSError('no')\n", "f", "mine.py cannot be imported: OSError: no; fix it"),
        ("def mean_sizes(h): pass\n", "mean_size", "mine.py has no 'mean_size'; did you mean mean_sizes?"),
        ("f = 3\n", "f", "a function 'f' in .*mine.py; got something else"),
        ("def smoothness(h): pass\n", "smoothness", "a new metric name"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, text, name, error):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=error):
        resolve_metric(f"{path}:{name}")
