"""Every decoder of the installed transformers: its kinds are what its layers do, or it is refused for its true reason.

The rows are those of docs/decoders.md. CI surveys the architectures whose rows say something,
a third of the other rows, and a sixth of what has none; `make test-all` the rest.
"""

import runpy

import pytest

from repflow.models import load
from repflow.models.behaviour import Behaviour, named_mixing, observe
from repflow.models.families import FAMILIES, Family
from tests.docs.pages import DOCS
from tests.sample import chosen
from tools.decoders.options import CONFIGS
from tools.decoders.survey import UNBUILT, survey
from tools.decoders.tiny import decoders, tiny_model

MAKER = runpy.run_path(str(DOCS / "make_decoders.py"))
PAGE = (DOCS / "decoders.md").read_text(encoding="utf-8")
NAMED = [model_type for model_type in decoders() if model_type in FAMILIES]
USUAL = [model_type for model_type in NAMED if FAMILIES[model_type] == Family() and model_type not in CONFIGS]
IN_CI = [model_type for model_type in NAMED if model_type not in USUAL] + USUAL[::3]
"""Every row that says something of its own, and a third of the usual ones."""
OTHERS = [model_type for model_type in decoders() if model_type not in FAMILIES]


def test_the_page_has_every_decoder_once():
    rows = [line.split(" | ")[0].removeprefix("| ") for line in PAGE.splitlines() if line.startswith("| ")]
    assert sorted(row for row in rows if row != "model type") == decoders()
    assert PAGE.count("| by name |") == len(FAMILIES) == len(NAMED) >= 40


@pytest.mark.parametrize("model_type", chosen(NAMED, IN_CI))
def test_named_architecture(model_type):
    """Kinds, tuple, and the page's row; measured, ablated, and read where its memory can be."""
    row = survey(model_type)
    assert not row.wrong, row.wrong
    assert row.done[:2] == ["measured", "ablated"]
    assert ("read" in row.done) == bool(row.memory[1])
    assert row.lacks == (None if FAMILIES[model_type].streams else FAMILIES[model_type].missing)
    assert MAKER["line"](row) in PAGE, "run python -m docs.make_decoders"


@pytest.mark.parametrize("model_type", chosen(OTHERS, OTHERS[::6]))
def test_other_decoder(model_type):
    row = survey(model_type)
    assert not row.wrong, row.wrong
    assert MAKER["line"](row) in PAGE, "run python -m docs.make_decoders"


def test_an_inverted_kind_would_be_seen():
    """The comparison itself can fail: kinds of a hybrid, each called by the other's name."""
    model = load(tiny_model("kimi_linear"), dtype="float64")
    does = observe(model.reading, model.network.config)
    assert model.layer_kinds == ["recurrent", "attention"] * 2
    assert [one.agrees(kind) for one, kind in zip(does, model.layer_kinds, strict=True)] == [True] * 4
    assert not any(one.agrees(kind) for one, kind in zip(does, ["attention", "recurrent"] * 2, strict=True))
    assert not any(one.agrees(kind) for one in does for kind in ("mlp", "moe", "conv"))


@pytest.mark.parametrize(
    ("model_type", "reach"),
    [
        ("gemma2", [7, 23, 7, 23]),  # windows of eight tokens in turn
        ("gpt_neo", [23, 3, 23, 3]),  # of four
        ("lfm2", [2, 23, 2, 23]),  # convolutions over three tokens
        ("nemotron_h", [23, 0, 23, 0, 23, 0]),  # blocks of an MLP or experts alone
    ],
)
def test_how_far_back_a_block_reaches(model_type, reach):
    model = load(tiny_model(model_type), dtype="float64")
    assert [does.reach for does in observe(model.reading, model.network.config)] == reach


@pytest.mark.parametrize(
    ("does", "mixing"),
    [
        (Behaviour(23, True, True, False), {"attention"}),
        (Behaviour(23, True, False, True), {"recurrence"}),
        (Behaviour(23, True, True, True), {"attention", "recurrence"}),
        (Behaviour(3, True, False, False), {"conv"}),
        (Behaviour(23, False, False, False), {"attention"}),  # of another block's keys
        (Behaviour(0, False, False, False), set()),
    ],
)
def test_ways_to_mix_tokens(does, mixing):
    assert does.mixing == mixing
    names = {"attention": "attention", "recurrence": "recurrent", "conv": "conv"}
    assert does.agrees("+".join(sorted(names[word] for word in mixing)) or "mlp")
    assert named_mixing("attention+ssm") == {"attention", "recurrence"}


def test_a_model_without_a_cache_shows_its_reach_alone():
    does = Behaviour(5, False, False, False, cached=False)
    assert does.agrees("recurrent")
    assert does.agrees("attention")
    assert not does.agrees("mlp")


def test_a_configuration_that_stays_large_is_not_built():
    with pytest.raises(UNBUILT, match=r"aria_text is not tiny: .* parameters"):
        tiny_model("aria_text", vocab_size=200_000)
