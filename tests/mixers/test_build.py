"""build: names, aliases and options."""

import inspect
import re

import pytest
import torch

from repflow.core.errors import InputError
from repflow.mixers import Mixer, build, check_mixer, families
from repflow.mixers.build import _ALIASES, _CLASSES, _class, family_name
from tests.docs.pages import DOCS


@pytest.mark.parametrize("family", families())
def test_every_family_is_a_file_with_its_class(family):
    kind = _class(family)
    folder, _, name = _CLASSES[family].rpartition(".")
    assert kind.__module__ == ".".join(filter(None, ("repflow.mixers", folder, family)))
    assert kind.__name__ == name
    assert issubclass(kind, Mixer)
    assert kind.family == family
    width, *options = inspect.signature(kind).parameters.values()
    assert width.name == "width"
    assert all(option.kind is option.KEYWORD_ONLY for option in options)


@pytest.mark.parametrize("family", families())
def test_defaults_build_and_pass_the_check(family):
    torch.manual_seed(0)
    mixer = build(family, 16)
    report = check_mixer(mixer, batch=2, tokens=8, long=70)
    assert report.family == family
    assert report.state_size == mixer.state_size


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Mamba", "s6"),
        ("mamba-2", "ssd"),
        ("RetNet", "retention"),
        ("Griffin", "rg_lru"),
        ("RG-LRU", "rg_lru"),
        ("Attention", "softmax_attention"),
        ("softmax attention", "softmax_attention"),
        ("linear-attention", "linear_attention"),
        ("RWKV-5.2", "rwkv5"),
        ("S4D", "s4d"),
        ("Gated DeltaNet", "gated_delta_net"),
        ("Kimi Delta Attention", "kda"),
        ("minLSTM", "min_lstm"),
        ("xLSTM", "mlstm"),
    ],
)
def test_names_are_spelled_freely(name, family):
    assert family_name(name) == family


def test_aliases_are_no_families_and_lead_to_some():
    assert not set(_ALIASES) & set(_CLASSES)
    assert set(_ALIASES.values()) <= set(_CLASSES)


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(InputError, match=r"expected a mixer among softmax_attention.*got 'retentoin'.*mean retention"):
        build("retentoin", 8)


def test_unknown_option_suggests_the_nearest():
    with pytest.raises(InputError, match=r"an option of gla .*heads.*; got head; did you mean heads"):
        build("gla", 8, head=2)


def test_width_is_no_option_and_must_be_positive():
    with pytest.raises(InputError, match="width of at least 1"):
        build("linear_attention", 0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("attention", {"heads": 3}, "heads that divides the width of 8"),
        ("attention", {"heads": 0}, "heads that divides"),
        ("attention", {"kv_heads": 3}, "kv_heads that divides the number of heads of 4"),
        ("attention", {"heads": 8}, "rotary share .* got 1 of 1 channels"),
        ("attention", {"rotary": 1.5}, "between 0 and 1"),
        ("attention", {"window": 0}, "window of at least 1"),
        ("linear_attention", {"feature_map": "eluu"}, "did you mean elu"),
        ("linear_attention", {"feature_map": "identity", "normalise": True}, "never negative"),
        ("linear_attention", {"state": 0}, "state of at least 1"),
        ("retention", {"state": 3}, "even state"),
        ("retention", {"decay": [0.5]}, "each of 4 heads"),
        ("retention", {"decay": [0.5, 0.5, 0.5, 1.5]}, "above 0 and at most 1"),
        ("retention", {"norm_kind": "layer"}, "norm_kind among rms, group"),
        ("gla", {"rank": 0}, "rank of at least 1"),
        ("gla", {"conv": -1}, "conv of at least 0"),
        ("gla", {"temperature": 0.0}, "a temperature above 0; got 0"),
        ("gla", {"gate": "no"}, "gate of gla to be true or false; got 'no'"),
        ("s6", {"state": 2.5}, "state of s6 to be a whole number; got 2.5"),
        ("s6", {"conv": True}, "conv of s6 to be a whole number; got True"),
        ("s6", {"polarize": 1}, "polarize of s6 to be a word or none; got 1"),
        ("s6", {"dt_min": "x"}, "dt_min of s6 to be a number; got 'x'"),
        ("retention", {"norm": False, "norm_kind": "layer"}, "norm_kind among rms, group"),
        ("rwkv4", {"layer": 2, "layers": 2}, "a layer from 0 to 1; got 2"),
        ("rwkv5", {"layer": -1}, "a layer from 0 to 0; got -1"),
        ("s4d", {"state": 3}, "even state, of conjugate pairs"),
        ("s4d", {"discretisation": "euler"}, "discretisation among zoh, bilinear"),
        ("s4d", {"init": "line"}, "did you mean lin"),
        ("s4d", {"dt_min": 1.0}, "dt_min <= dt_max"),
        ("s4d", {"dropout": 1.0}, "dropout from 0 to below 1"),
        ("h3", {"head_dim": 3}, "head_dim that divides the width of 8"),
        ("rg_lru", {"heads": 3}, "heads that divides the recurrent width of 8"),
        ("rg_lru", {"a_max": 1.0}, "a_max < 1"),
        ("delta_net", {"heads": 3}, "heads that divides the width of"),
        ("gated_delta_net", {"heads": 4, "value_heads": 6}, "heads that divides the number of value_heads of 6"),
        ("kda", {"rank": 0}, "rank of at least 1"),
        ("hgrn2", {"lower": 1.0}, "a lower bound from 0 to below 1; got 1"),
        ("min_gru", {"expand": 0}, "expand of at least 1"),
        ("min_lstm", {"positive": "yes"}, "positive of min_lstm to be true or false"),
        ("mlstm", {"cap": 0.0}, "a cap above 0"),
    ],
)
def test_wrong_options_teach(name, options, message):
    with pytest.raises(InputError, match=message):
        build(name, 8, **options)


@pytest.mark.parametrize("family", families())
@pytest.mark.parametrize(
    "bad", [torch.ones(3, 16), torch.ones(1, 0, 16), torch.ones(1, 3, 8), torch.ones(1, 3, 16).int()]
)
def test_wrong_inputs_teach(family, bad):
    with pytest.raises(InputError, match=r"floats \(batch, token, width\) with at least one token and width 16"):
        build(family, 16)(bad)


def test_attention_has_no_transition():
    with pytest.raises(InputError, match=r"expected a mixer with a recurrence; got softmax_attention"):
        build("attention", 8).transition(torch.ones(1, 2, 8))


@pytest.mark.parametrize("family", families())
def test_options_and_defaults_are_documented(family):
    """The site's page takes signature and docstring of the class; the docstring says what each option means."""
    page = (DOCS / "api" / "mixers.md").read_text(encoding="utf-8")
    mixer = _class(family)
    assert f"::: {mixer.__module__}.{mixer.__name__}\n" in page
    options = [name for name in inspect.signature(mixer).parameters if name != "width"]
    named = {word for line in re.findall(r"^ +([\w, ]+): ", mixer.__doc__, re.MULTILINE) for word in line.split(", ")}
    assert [name for name in options if name not in named] == []


@pytest.mark.parametrize("family", families())
def test_family_has_a_row_in_the_theory_page(family):
    assert re.search(rf"^\| `{family}` \|", (DOCS / "theory.md").read_text(encoding="utf-8"), re.MULTILINE)
