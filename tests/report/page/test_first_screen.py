"""What a page says first: one sentence, a headline figure and four cards, all from the runs; then its sections."""

import json
from unittest.mock import Mock

import numpy as np
import pytest

from repflow.report.data.model import Figure
from repflow.report.data.text import json_text
from repflow.report.draw.description import alternative, reading
from repflow.report.page.build import build_page
from repflow.report.page.twin import page_json
from tests.report.stored_runs import keep, measured, probed, reached

ORDERED = ["ssm", "ssm", "ssm", "attention"]
CLAIMS = {"findings", "tables"}


def with_similarity(result, curve):
    """The result with the same curve of token similarity for every prompt, a little apart."""
    samples = result["token_similarity"].shape[1]
    noise = np.linspace(-0.01, 0.01, samples)
    result.arrays["token_similarity"] = np.asarray(curve)[:, None] + noise[None]
    return result


def answered(name, share, kinds, parameters=2_000_000):
    """A probed run whose model answers that share of its prompts."""
    result = probed(name, kinds=kinds, parameters=parameters)
    result.arrays["answer_correct"] = (np.arange(10) < 10 * share).astype(float)
    return result


@pytest.fixture
def runs(tmp_path):
    """Three models: one collapses, one does not, one is a hybrid; reach and probes of some."""
    keep(tmp_path, "a", with_similarity(measured("gpt"), [0.1, 0.5, 0.9, 0.6, 0.3]))
    keep(tmp_path, "b", with_similarity(measured("mamba", kinds=["ssm"] * 4), [0.1, 0.15, 0.2, 0.2, 0.2]))
    keep(tmp_path, "c", with_similarity(measured("hybrid", kinds=ORDERED), [0.1, 0.3, 0.4, 0.3, 0.2]))
    keep(tmp_path, "d", reached("gpt", half=21))
    keep(tmp_path, "e", reached("mamba", half=4, kinds=["ssm"] * 4))
    keep(tmp_path, "f", probed("gpt"))
    return tmp_path


def test_four_cards_name_a_model_each_with_its_number_and_what_it_rests_on(runs):
    page = build_page([runs])
    cards = {card.title: card for card in page.cards}
    assert list(cards) == ["Most alike", "Least alike", "Farthest reach", "Best read-out"]
    assert (cards["Most alike"].value, cards["Most alike"].text) == ("0.90", "gpt, after block 2 of 4")
    assert cards["Least alike"].value == "0.20"
    assert cards["Least alike"].text.startswith("mamba, at its highest: ")
    assert cards["Farthest reach"].value == "21 tokens"
    assert cards["Farthest reach"].text.endswith("gpt; in mamba it is 4")
    assert "chance 0.25" in cards["Best read-out"].text
    ids = {block.id for section in page.sections for block in section.blocks}
    for card in page.cards:
        assert card.target in ids, card.title
        assert "prompts" in card.basis
        assert "32 tokens" in card.basis
    assert page.subtitle.startswith("mamba forgets first: half of what moves its last output lies in the last 4 tokens")
    assert page.subtitle.endswith("Based on kvpr, 32 tokens, 3 prompts.")


@pytest.mark.parametrize(("near", "words"), [(10, "a forgets first: half of what moves its last output"), (11, "Half")])
def test_one_model_forgets_first_only_where_another_reaches_twice_as_far(tmp_path, near, words):
    keep(tmp_path, "a", reached("a", half=near))
    keep(tmp_path, "b", reached("b", half=20))
    assert build_page([tmp_path]).subtitle.startswith(words)


def test_equal_parameters_in_another_order_are_the_headline_where_answers_differ(tmp_path):
    keep(tmp_path, "a", answered("last", 1.0, ORDERED))
    keep(tmp_path, "b", answered("first", 0.0, ORDERED[::-1]))
    expected = (
        "Order decides: with the same blocks and 2.0 M parameters, last (attention last) answers 100 % of 10 prompts "
        "and first (attention first) 0 %. Based on kvpr, 32 tokens, 10 prompts."
    )
    assert build_page([tmp_path]).subtitle == expected


@pytest.mark.parametrize(
    ("share", "kinds"), [(0.9, ORDERED[::-1]), (0.0, ["ssm", "ssm", "attention", "attention"]), (0.0, ORDERED)]
)
def test_it_is_not_said_where_answers_are_alike_or_the_models_are_not(tmp_path, share, kinds):
    keep(tmp_path, "a", answered("last", 1.0, ORDERED))
    keep(tmp_path, "b", answered("first", share, kinds))
    assert "Order decides" not in build_page([tmp_path]).subtitle


@pytest.mark.parametrize(("parameters", "said"), [(1_980_000, True), (1_979_000, False)])
def test_models_of_one_size_differ_by_a_hundredth_at_most(tmp_path, parameters, said):
    keep(tmp_path, "a", answered("last", 1.0, ORDERED))
    keep(tmp_path, "b", answered("first", 0.0, ORDERED[::-1], parameters))
    assert ("Order decides" in build_page([tmp_path]).subtitle) is said


def test_a_page_of_one_model_names_states_and_says_how_to_measure_the_rest(tmp_path):
    keep(tmp_path, "a", with_similarity(measured("gpt"), [0.1, 0.5, 0.9, 0.6, 0.3]))
    page = build_page([tmp_path])
    most, least, reach, read = page.cards
    assert (most.value, most.text) == ("0.90", "gpt, after block 2 of 4")
    assert (least.value, least.text) == ("0.10", "gpt, at the embedding")
    assert (reach.value, read.value) == ("", "")
    assert reach.command == "repflow recency models/gpt"
    assert read.command == "repflow probe models/gpt --label answer"
    assert page.subtitle.startswith(
        "In gpt the tokens of a prompt are 0.10 alike at the embedding, most alike after block 2 of 4 (0.90), and 0.30 "
        "alike after the last block."
    )
    assert page.headline == "figure-2"


def test_the_headline_opens_with_the_run_that_the_sentence_and_the_cards_speak_of(tmp_path):
    """Runs of several lengths: the longest, in all three."""
    for length, top in ((16, 0.5), (64, 0.9), (32, 0.7)):
        result = with_similarity(measured("gpt"), [0.1, 0.2, top, 0.3, 0.3])
        result.config["length"] = length
        keep(tmp_path, f"run-{length}", result)
    page = build_page([tmp_path])
    (figure,) = [block for section in page.sections for block in section.blocks if block.id == page.headline]
    assert "64 tokens" in figure.variants[0].basis
    assert page.subtitle.startswith(figure.variants[0].reading)
    assert page.cards[0].value == "0.90"


def test_models_of_other_lengths_are_not_compared_with_those_that_most_share(runs):
    """A tiny checkpoint read at another length was "least alike", and "forgot first" where its prompts were shorter."""
    short = with_similarity(measured("short"), [0.0, 0.01, 0.01, 0.01, 0.01])
    near = reached("short", half=1)
    for name, result in (("s", short), ("t", near)):
        result.config["length"] = 16
        keep(runs, name, result)
    page = build_page([runs])
    cards = {card.title: card for card in page.cards}
    assert cards["Least alike"].text.startswith("mamba, at its highest: ")
    assert cards["Farthest reach"].text.endswith("gpt; in mamba it is 4")
    assert page.subtitle.startswith("mamba forgets first")


def test_weights_that_end_alike_are_not_called_changed():
    from repflow.report.data.runs import StoredRun
    from repflow.report.data.summary import Summary, twin_sentence

    def entry(label, own, random):
        twin = with_similarity(measured(label), [0.1, 0.2, 0.2, 0.2, random])
        run = Mock(spec=StoredRun, result=twin, facts={"init": "default"})
        return Mock(spec=Summary, label=label, curve=np.array([0.1, own]), twin=run)

    assert twin_sentence([entry("a", 0.301, 0.304)]).startswith("Training hardly changes")
    assert twin_sentence([entry("a", 0.3, 0.5)]).startswith("Tokens of a end 0.30 alike. With random weights (default)")
    assert twin_sentence([entry("a", 0.3, 0.5), entry("b", 0.3, 0.9)]).startswith("Training changes most in b")


def test_a_page_of_ones_own_runs_makes_no_claims_of_the_paper(runs):
    own, asked = build_page([runs]), build_page([runs], papers=True)
    assert not CLAIMS & {section.id for section in own.sections}
    assert [section.id for section in asked.sections][-2:] == ["findings", "tables"], "and last"
    assert "paper" not in json_text([own.subtitle, [section.lead for section in own.sections]])


def test_tokens_and_reach_come_before_everything_else(runs):
    assert [section.id for section in build_page([runs]).sections][:2] == ["prompts", "recency"]


def test_every_figure_has_a_reading_an_alternative_and_its_basis_from_the_data(runs):
    page = build_page([runs])
    for section in page.sections:
        for block in section.blocks:
            for variant in block.variants if isinstance(block, Figure) else ():
                assert variant.reading.endswith("."), (block.id, variant.when)
                assert any(model.label in variant.alt for model in page.models), block.id
                assert "32 tokens" in variant.basis, block.id
                assert "prompts" in variant.basis, block.id


def test_words_of_a_chart_follow_its_traces():
    from repflow.report.data.model import Variant

    lines = [
        {"name": "a", "x": [0, 1, 2], "y": [0.1, 0.9, None]},
        {"name": "b", "x": [0, 1, 2], "y": [0.5, 0.25, 0.125]},
        {"name": "b, peak", "x": [0], "y": [0.5], "showlegend": False},
        {"x": [0, 1], "y": [1, 1], "hoverinfo": "skip"},
    ]
    drawn = Variant({}, lines, {"yaxis": {"title": {"text": "norm"}}})
    assert alternative(drawn) == "a from 0.1 to 0.9; b from 0.5 to 0.125."
    assert reading(drawn) == "Norm at the end: highest in a (0.9), lowest in b (0.125)."
    heat = {"type": "heatmap", "name": "m", "x": [0, 1], "y": [5, 6], "z": [[0.5, 0.1], [None, 1.0]]}
    assert alternative(Variant({}, [heat])) == "m: 2 by 2 cells from 0.1 at depth 1, row 5 to 1 at depth 1, row 6."
    assert reading(Variant({}, [])) == ""


def test_the_json_twin_holds_every_number_of_the_page(runs):
    page = build_page([runs])
    twin = json.loads(json.dumps(page_json(page), allow_nan=False))
    assert twin["sentence"] == page.subtitle
    assert [card["value"] for card in twin["cards"]] == [card.value for card in page.cards]
    blocks = {block["id"]: block for section in twin["sections"] for block in section["blocks"]}
    assert set(blocks) == {block.id for section in page.sections for block in section.blocks}
    figure = next(b for s in page.sections for b in s.blocks if b.id == "figure-2")
    assert blocks["figure-2"]["variants"][0]["rows"] == [list(row) for row in figure.variants[0].rows]
    assert blocks["prompts-explorer"]["samples"][0]["tokens"][0] == "t0"
