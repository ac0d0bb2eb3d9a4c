"""Classifiers of texts: folds, padding, differences that the texts could show, what is refused."""

import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console

from repflow.core.errors import InputError
from repflow.core.intervals import corrected_resampled_t, smallest_difference
from repflow.models.stack.network import StackForSequenceClassification
from repflow.report.terminal import view_of
from repflow.studies.classify.config import ClassifyCell, ClassifyConfig
from repflow.studies.classify.difference import compared
from repflow.studies.classify.study import STUDY, texts_of
from repflow.studies.laboratory.evaluation import right_answers
from repflow.studies.laboratory.kept import model_place

SMALL = {
    **{"rows": ["mamba/4", "mamba/4+leaky", "transformer"], "layers": ["1"], "widths": ["8"]},
    **{"length": 16, "seeds": ["0", "1"]},
    **{"steps": 6, "batch": 4, "folds": 2, "rates": ["0.02"], "device": "cpu"},
}


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """Texts of unlike lengths, whose first word is their class."""
    place = tmp_path_factory.mktemp("texts") / "reviews.jsonl"
    lines = [{"text": f"{word} {'so ' * (n % 5)}{n}", "label": word} for n in range(12) for word in ("good", "bad")]
    place.write_text("\n".join(map(json.dumps, lines)))
    return place


@pytest.fixture(scope="module")
def trained(reviews, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    config = ClassifyConfig(**SMALL, labelled=str(reviews), keep_models=True, flow_samples=2)
    return out, config, STUDY.run(config, out=out, name="c")


def test_every_text_is_tested_once_by_models_that_never_saw_it(trained):
    _, config, result = trained
    data = texts_of(config)
    assert result["right"].shape[0] == 6
    assert np.isfinite(result["right"]).sum() == 3 * len(data)  # three rows
    for cell in config.grid()[:2]:
        own = {tuple(row) for row in data.split(cell.seed)[1].inputs.tolist()}
        source = STUDY.source(cell, config, torch.device("cpu"))
        seen = {tuple(row) for step in range(12) for row in source.batch(step).inputs.tolist()}
        assert seen
        assert not seen & own


def test_the_kept_model_gives_the_stored_answers(trained):
    out, config, result = trained
    data = texts_of(config)
    for place, cell in enumerate(config.grid()):
        network = StackForSequenceClassification.from_pretrained(model_place(out / "c.models", cell)).eval()
        _, test = data.split(cell.seed)
        right = []
        for ids, mask, label in zip(test.inputs, test.mask, test.targets, strict=True):  # one by one, without padding
            with torch.no_grad():
                right.append(float(network(ids[mask.bool()][None]).logits.argmax() == label))
        assert result["right"][place][: len(right)].tolist() == right
        assert result["accuracy"][place] == pytest.approx(np.mean(right))
        assert result["accuracy_on_the_way"][place, -1] == pytest.approx(np.mean(right))


def test_what_is_said_of_a_run(trained):
    _, _, result = trained
    codes = [finding.code for finding in result.findings]
    assert "smallest_effect" in codes
    assert "difference" in codes
    assert "leaky" not in codes  # the class is of the whole text
    assert np.isfinite(result["token_similarity"][:2]).all()
    assert np.isnan(result["token_similarity"][2:4]).all()
    console = Console(width=200, record=True, file=io.StringIO())
    for part in view_of("classify").view(result):
        console.print(part)
    assert "guessing the largest class gives 50.0 %" in console.export_text()


def test_a_grid_whose_models_all_diverged_is_shown(monkeypatch, reviews):
    built = STUDY.network

    def broken(cell, config):
        network = built(cell, config)
        with torch.no_grad():
            network.model.blocks[0].mixer_norm.weight.fill_(torch.nan)
        return network

    monkeypatch.setattr(STUDY, "network", broken)
    result = STUDY.run(ClassifyConfig(**{**SMALL, "rows": ["mamba/4", "transformer"]}, labelled=str(reviews)))
    assert (result["diverged_at"] == 1).all()
    assert np.isnan(result["right"]).all()
    assert {finding.code for finding in result.findings} == {"diverged"}
    console = Console(width=200, record=True, file=io.StringIO())
    for part in view_of("classify").view(result):
        console.print(part)
    assert "nan" not in console.export_text()


def _cells(rows, rates=(0.01,), seeds=5):
    return [ClassifyCell(row, 2, 64, rate, seed) for row in rows for rate in rates for seed in range(seeds)]


def _said(cells, accuracy, tested=2000):
    return [text for code, text in compared(cells, {"accuracy": accuracy}, tested, 5) if code == "difference"]


def test_differences_below_what_the_texts_could_show_stay_open():
    base = np.array([0.79, 0.80, 0.81, 0.80, 0.80])
    least = smallest_difference(0.8, 2000)
    cells = _cells(("a", "b"))
    assert _said(cells, np.concatenate([base, base + 0.002]))[0].endswith("open")  # steady, but too small
    assert least > 0.03
    assert _said(cells, np.concatenate([base, base + 0.1]))[0].endswith("better")
    assert _said(cells, np.concatenate([base, base - 0.1]))[0].endswith("worse")
    noisy = base + np.array([0.3, -0.2, 0.3, -0.2, 0.1])
    assert _said(cells, np.concatenate([base, noisy]))[0].endswith("open")  # large, but not at every seed
    band = corrected_resampled_t(noisy - base, train=4, test=1)
    assert f"[{100 * band.low:+.1f}, {100 * band.high:+.1f}]" in _said(cells, np.concatenate([base, noisy]))[0]


def test_rows_are_compared_at_their_best_rates_and_without_models_that_diverged():
    cells = _cells(("a", "b"), (0.01, 0.02), 3)
    accuracy = np.array([0.5, 0.5, 0.5, 0.7, 0.7, 0.7, 0.9, 0.9, 0.9, 0.6, 0.6, 0.6])
    assert "+20.0 points" in _said(cells, accuracy)[0]
    assert "2 rates" in _said(cells, accuracy)[0]
    assert "over 2 seeds: open" in _said(cells[:3] + cells[6:9], np.array([0.5, 0.5, np.nan, 0.9, 0.9, 0.9]))[0]
    assert not list(compared(cells, {"accuracy": np.full(12, np.nan)}, 100, 5))


def test_a_classifier_without_finite_logits_is_neither_right_nor_wrong(trained):
    _, config, _ = trained
    network = STUDY.build(config.grid()[0], config).eval()
    with torch.no_grad():
        network.score.weight.fill_(torch.nan)
    _, test = texts_of(config).split(0)
    assert np.isnan(right_answers(network, test.inputs, test.targets, mask=test.mask)).all()


def test_a_size_is_that_of_the_built_model(reviews):
    config = ClassifyConfig(**{**SMALL, "layers": ["5"]}, labelled=str(reviews))
    sizes = [sum(part.numel() for part in STUDY.build(cell, config).parameters()) for cell in config.grid()]
    assert STUDY.size(config).parameters == max(sizes)


BAD = {
    "nowhere": ({"labelled": "nowhere.jsonl"}, "does not exist"),
    "pooling": ({"pooling": "max"}, "mean or last"),
    "folds": ({"folds": 100}, "choose fewer folds, or longer rows"),
    "batch": ({"batch": 5000}, "texts for one batch"),
    "chunk": ({"rows": ["mamba+chunks"], "chunk": 16}, "chunk below the 16 tokens"),
    "penalty": ({"rows": ["mamba+diversity"]}, r"by their classes alone; got \+diversity"),
    "temperature": ({"rows": ["mamba+leaky"], "sort_temperature": 0.0}, r"\+hard for a temperature of 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_requests_are_refused_and_leave_nothing(tmp_path, reviews, case):
    changes, words = BAD[case]
    with pytest.raises(InputError, match=words):
        STUDY.run(ClassifyConfig(**{**SMALL, "labelled": str(reviews), **changes}), out=tmp_path)
    assert not list(tmp_path.iterdir())
