"""Pages of corrupt, attack, recall and trainings: first screen, readings and bases come from the runs."""

import numpy as np
import pytest

from repflow.core.results import Result
from repflow.report.data.model import Figure
from repflow.report.data.runs import StoredRun
from repflow.report.page.build import page_of


def stored(name, study, arrays, facts, axes, **config):
    model = {"name": config.get("model", ""), "spec": f"models/{config.get('model')}", "layers": 2, "init": "trained"}
    provenance = {**facts} | ({"model": model} if "model" in config else {})
    arrays = {key: np.asarray(value, dtype=np.float64) for key, value in arrays.items()}
    result = Result(arrays, axes, {"study": study, **config}, provenance)
    return StoredRun(name, config.get("model", ""), study, result)


def images(model, clean, accuracy, half=0.05):
    """Accuracy (replacement, region) of a classifier, with drops known to ± half."""
    accuracy = np.array(accuracy)
    drop = clean - accuracy
    ends = {"drop": drop, "drop_low": drop - half, "drop_high": drop + half, "relative_drop": drop / clean}
    two = ("replacement", "region")
    arrays = {"clean_accuracy": clean, "accuracy": accuracy, "corrected_drop": drop / (clean - 0.1), **ends}
    arrays |= {"influence": np.arange(1, 65), "examples": np.zeros((3, 1, 8, 8, 3))}
    axes = dict.fromkeys((*ends, "accuracy", "corrected_drop"), two) | {"clean_accuracy": (), "influence": ("token",)}
    axes["examples"] = ("kind", "sample", "row_pixel", "column_pixel", "channel")
    about = {"tokens": 64, "images": 60, "chance": 0.1, "clean": [clean, clean - 0.1, clean + 0.1]}
    about |= {"layout": {"order": "row"}, "source": "drawn:8", "example_region": "48:64"}
    facts = {"regions": ["0:16", "16:32", "48:64"], "replacements": ["normal", "same"], "corrupt": about}
    return stored(f"run-{model}", "corrupt", arrays, facts, axes, model=model, task="pixels", influence=4)


def texts(model, change):
    """Change of log-odds (region,) of every prompt, ± 0.1."""
    noise = np.array([-0.1, 0.0, 0.1, 0.0])
    values = np.array(change)[None, :, None] + noise
    facts = {
        "regions": ["0:8", "8:16"],
        "replacements": ["random"],
        "corrupt": {"tokens": 16, "prompts": 4, "answer": "the answer's first token", "clean": [-1.0, -2.0, 0.0]},
    }
    axes = {"log_odds_change": ("replacement", "region", "sample")}
    return stored(f"run-{model}", "corrupt", {"log_odds_change": values}, facts, axes, model=model, task="kvpr")


def attack(model, success, base=0.05, pairs=(0.1, 0.1)):
    rates = {"success": np.array([success, [0.2, 0.2]]), "random_pair": np.array([pairs] * 2)}
    rates["excess"] = rates["success"] - rates["random_pair"]
    arrays, axes = {}, {}
    for name, value in rates.items():
        for end, shift in (("", 0.0), ("_low", -0.02), ("_high", 0.02)):
            arrays[name + end], axes[name + end] = np.array(value) + shift, ("target", "region")
            arrays[f"mean_{name}{end}"], axes[f"mean_{name}{end}"] = np.mean(value, 0) + shift, ("region",)
    for end, shift in (("", 0.0), ("_low", -0.02), ("_high", 0.02)):
        arrays[f"base_rate{end}"], axes[f"base_rate{end}"] = np.full(2, base + shift), ("target",)
        arrays[f"mean_base_rate{end}"], axes[f"mean_base_rate{end}"] = base + shift, ()
    about = {"tokens": 64, "images": 60, "example_region": "48:64", "example_target": "dots"}
    arrays["examples"] = np.zeros((3, 2, 8, 8, 3), dtype=np.uint8)
    axes["examples"] = ("kind", "sample", "row_pixel", "column_pixel", "channel")
    facts = {"regions": ["0:16", "48:64"], "replacements": [], "targets": ["dots", "two"], "attack": about}
    return stored(f"attack-{model}", "attack", arrays, facts, axes, model=model, task="pixels", images="drawn:8")


def recall(accuracies):
    rows = ["none/4", "both/4"][: len(accuracies)]
    cells = [{"row": row, "layers": 1, "width": 8, "init": "right", "rate": 0.002, "seed": 0} for row in rows]
    facts = {"pairs": [2, 4], "length": 16, "gaps": [1, 2, 4], "steps": [1, 2], "cost": "2 models"}
    by_pairs = np.array(accuracies)
    arrays = {"accuracy": by_pairs, "accuracy_by_distance": np.stack([by_pairs, by_pairs], -1)}
    axes = {"accuracy": ("cell", "pairs"), "accuracy_by_distance": ("cell", "pairs", "gap")}
    for name in ("parameters", "state_bytes", "half_step", "loss_drop", "half_reach"):
        arrays[name], axes[name] = np.ones(len(rows)), ("cell",)
    for name in ("loss", "train_accuracy"):
        arrays[name], axes[name] = np.ones((len(rows), 2)), ("cell", "step")
    config = {"test_rows": 10, "steps": 6}
    return stored("recall-run", "recall", arrays, {"cells": cells, "recall": facts}, axes, **config)


def training(last):
    """Similarity (step, state, sample) that ends at `last` after the last block."""
    path = np.linspace(0.9, last, 3)
    values = np.stack([np.zeros(3), path / 2, path], 1)[:, :, None].repeat(4, 2)
    arrays = {"step": np.array([10, 20, 30]), "token_similarity": values}
    axes = {"step": ("step",), "token_similarity": ("step", "state", "sample")}
    config = {"model": "live", "task": "random", "length": 16, "prompts": 4, "states": "residual"}
    return stored("history", "training", arrays, {"steps": [10, 20, 30]}, axes, **config)


ALL = [
    images("stack", 0.7, [[0.6, 0.65, 0.2], [0.7, 0.7, 0.6]]),
    attack("stack", [0.3, 0.8]),
    recall([[0.5, 0.1], [0.9, 0.6]]),
    training(0.4),
]


@pytest.mark.parametrize("run", ALL, ids=lambda run: run.study)
def test_a_page_of_one_such_run_opens_with_what_it_says(run):
    page = page_of([run])
    assert page.cards
    assert all(card.value and card.basis and card.target for card in page.cards)
    ids = {block.id for section in page.sections for block in section.blocks}
    assert {card.target for card in page.cards} <= ids
    assert page.headline
    assert "Based on " in page.subtitle
    assert run.name not in page.subtitle, "a reader knows the model, not the folder"


@pytest.mark.parametrize("run", [*ALL, texts("gpt", [0.0, -2.0])], ids=lambda run: f"{run.study}-{run.task}")
def test_every_figure_says_what_it_shows_and_on_what(run):
    for section in page_of([run]).sections:
        for block in section.blocks:
            for variant in block.variants if isinstance(block, Figure) else ():
                assert variant.reading.endswith("."), (block.id, variant.when)
                assert variant.alt, block.id
                names = {trace.get("name", "") for trace in variant.traces}
                assert not any(run.name in name for name in names), block.id
                assert variant.basis or "-examples-" in block.id, block.id


def test_an_attack_at_one_region_has_its_rates_side_by_side():
    run = attack("stack", [0.3, 0.8])
    run.result.provenance["regions"] = ["0:16"]
    for name, axes in run.result.axes.items():
        if "region" in axes:
            run.result.arrays[name] = run.result.arrays[name][..., :1]
    (figure,) = (block for block in page_of([run]).sections[0].blocks if block.id == "attack")
    (trace,) = figure.variants[0].traces
    assert trace["x"] == ["target lends", "another class lends", "no attack"]
    assert trace["y"] == pytest.approx([25, 10, 5])
    assert trace["error_y"]["array"] == trace["error_y"]["arrayminus"] == pytest.approx([2, 2, 2])
    assert figure.variants[0].layout["xaxis"]["title"]["text"] == "who lends tokens 0 to 15"


def test_influence_rests_on_the_images_whose_gradient_was_taken():
    blocks = page_of([images("stack", 0.7, [[0.6, 0.65, 0.2], [0.7, 0.7, 0.6]])]).sections[0].blocks
    (figure,) = (block for block in blocks if block.id == "answer-influence")
    assert figure.variants[0].basis == "drawn:8, 64 tokens in row order, 4 images"


def test_images_before_and_after_an_attack():
    blocks = page_of([attack("stack", [0.3, 0.8])]).sections[0].blocks
    (figure,) = (block for block in blocks if block.id == "attack-examples-1")
    assert figure.caption == "The first test images that are not of dots, with tokens 48 to 63 lent by other images."
    assert [trace["name"] for trace in figure.variants[0].traces] == [
        *("as it is", "pixels of dots", "pixels of another class"),
    ]


def test_the_worst_region_of_images_is_named_with_its_interval():
    page = page_of([images("stack", 0.7, [[0.6, 0.65, 0.2], [0.7, 0.7, 0.6]])])
    assert page.subtitle == (
        "stack names 70.0 % of the images rightly as they are and 20.0 [15.0, 25.0] % with tokens 48 to 63 replaced by "
        "N(0, 1) noise. Based on drawn:8, 64 tokens in row order, 60 images."
    )
    assert [(card.title, card.value) for card in page.cards] == [("As they are", "70 %"), ("Worst region", "20 %")]


def test_a_drop_within_its_interval_is_not_claimed():
    page = page_of([images("stack", 0.7, [[0.68, 0.7, 0.7], [0.7, 0.7, 0.7]])])
    assert page.subtitle.startswith("No region replaced by N(0, 1) noise is shown to lower accuracy")
    page = page_of([texts("gpt", [0.05, 0.4])])
    assert page.subtitle.startswith("No region replaced by random tokens is shown to lower the answer's log-odds")


def test_of_several_models_the_one_that_loses_most_and_least_are_named():
    runs = [images(name, 0.7, [[0.7, 0.7, low], [0.7] * 3]) for name, low in (("a", 0.1), ("b", 0.6), ("c", 0.5))]
    reading = page_of(runs).subtitle
    assert reading.startswith("a loses most: it names 70.0 %")
    assert "b loses least: from 70.0 % to 60.0 [55.0, 65.0] %." in reading


def test_runs_of_one_model_are_told_by_their_names():
    twice = [images("stack", 0.7, [[0.7, 0.7, low], [0.7] * 3]) for low in (0.1, 0.2)]
    other = StoredRun("again", "stack", "corrupt", twice[1].result)
    (section, *_) = page_of([twice[0], other]).sections
    lines = {trace["name"]: trace["line"] for trace in section.blocks[0].variants[0].traces if "name" in trace}
    assert lines["stack (run-stack)"]["color"] != lines["stack (again)"]["color"]


def test_an_attack_is_read_beside_its_base_rates():
    page = page_of([attack("stack", [0.3, 0.8])])
    assert page.subtitle.startswith(
        "stack names the target for 50.0 [48.0, 52.0] % of other images once the target lends tokens 48 to 63. It does "
        "so for 10.0 [8.0, 12.0] % if another class lends them, and for 5.0 [3.0, 7.0] % without an attack."
    )
    assert "(5 % without)" in page.cards[0].text


def test_an_attack_is_read_where_it_does_most_beyond_random_pairs():
    """The greatest success is that of a region whose pixels break every answer, or of a model that names one class."""
    steered, fixed = attack("steered", [0.7, 0.1], pairs=(0.1, 0.1)), attack("fixed", [0.9, 0.95], pairs=(0.6, 0.6))
    assert "steered names the target for 45.0" in page_of([fixed, steered]).subtitle
    reading = page_of([attack("fixed", [0.9, 0.95], pairs=(0.7, 0.7))]).subtitle
    assert reading.startswith("No attack is shown to do more than pixels of any other class. fixed names the target")


def test_recall_names_the_best_and_the_worst_row():
    page = page_of([recall([[0.5, 0.1], [0.9, 0.6]])])
    expected = "With 4 pairs, both/4 (1 layer) answers 60.0 % of the queries rightly and none/4 (1 layer) 10.0 %."
    assert page.subtitle.startswith(expected)
    assert [card.value for card in page.cards] == ["60 %", "10 %"]
    alone = page_of([recall([[0.5, 0.1]])])
    assert [card.title for card in alone.cards] == ["Best recall"]


def test_a_training_is_read_at_its_first_and_its_last_step():
    page = page_of([training(0.4)])
    assert page.subtitle.startswith(
        "The tokens of a prompt are 0.9 alike at step 10 and 0.4 alike at step 30 (after the last block)."
    )
    assert page.cards[0].value == "0.40"


def test_cards_of_such_runs_stand_before_what_was_not_measured():
    """A page of measure and corrupt has no reach and no probe."""
    from tests.report.stored_runs import measured

    flow = StoredRun("flow", "gpt", "measure", measured("gpt"))
    page = page_of([flow, images("stack", 0.7, [[0.6, 0.65, 0.2], [0.7, 0.7, 0.6]])])
    assert [card.title for card in page.cards] == ["Most alike", "Least alike", "As they are", "Worst region"]


@pytest.mark.parametrize(
    ("kind", "study", "titles"),
    [
        ("recency_runs", "needle", ["Needles found"]),
        ("recency_runs", "memory", ["Nearly fixed decays", "Half-life"]),
        ("recency_runs", "hidden_attention", []),
        ("theory_runs", "theory-verify", ["Corrected"]),
        ("theory_runs", "theory-apply", ["Theory's factor", "Theory's factor"]),
        ("dynamics_runs", "dynamics-simulate", ["Scenario", "Scenario"]),
        ("dynamics_runs", "dynamics-figure", ["Statements that hold"]),
        ("dynamics_runs", "dynamics-apply", ["Token norm"]),
    ],
)
def test_pages_of_other_studies_open_with_a_sentence_and_cards_of_their_own(kind, study, titles):
    from tests.report import study_runs

    runs = [run for run in study_runs.read(getattr(study_runs, kind)()) if run.study == study]
    page = page_of(runs)
    assert [card.title for card in page.cards] == titles
    assert all(card.value and card.basis for card in page.cards)
    figures = {block.id: block for section in page.sections for block in section.blocks if isinstance(block, Figure)}
    assert {card.target for card in page.cards} <= set(figures)
    first = figures[page.headline].variants[0]
    assert page.subtitle == f"{first.reading} Based on {first.basis}."
    assert " runs from " not in first.reading, "a reading that was made from the traces alone"
