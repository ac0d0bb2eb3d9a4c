"""Grids of language models: orders of blocks, remedies, recall beside text, depths of one size, fits of each factor."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import t

import repflow
from repflow.core.errors import InputError
from repflow.core.results import Result
from repflow.spec.architecture import parse_architecture
from repflow.studies.architecture import study
from repflow.studies.architecture.config import ArchitectureConfig
from repflow.studies.architecture.fit import _fit, best_cells, factors, fits, independent, onset_depth, outcomes
from repflow.studies.architecture.remedy import penalties_of
from repflow.studies.architecture.study import STUDY, text_of
from repflow.studies.engine.loading import identity
from repflow.studies.engine.prompts import drawn_prompts, make_prompts
from repflow.studies.laboratory.group import groups
from repflow.studies.measure import MeasureConfig
from repflow.tasks.recall import recall_prompts, recall_rows
from repflow.training import train
from repflow.training.batch import step_seed
from repflow.training.losses import HoldAt

SMALL = {
    **{"layers": ["2"], "widths": ["16"], "lengths": ["16"], "steps": 4, "batch": 2, "readings": 0, "heads": 2},
    **{"flow_samples": 2, "recall_share": 0.5, "recall_ids": 32, "recall_rows": 10, "device": "cpu"},
}
ROWS = ["mamba2", "mamba2.attention+diversity@0.1", "mamba2+poles"]


def small(**changes):
    return ArchitectureConfig(**{**SMALL, "rows": ROWS, **changes})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    config = small(seeds=["0", "1", "2"], keep_models=True)
    folder = tmp_path_factory.mktemp("runs")
    return folder, config, STUDY.run(config, out=folder, name="a")


def test_kept_models_are_asked_for_recall_with_the_ids_they_learned_it_with(trained):
    """Behind those of the text; prompts of all ids would be rows that no model has seen."""
    folder, config, _ = trained
    model = repflow.load(str(folder / "a.models" / "mamba2_2_16_16_0.002_0"))
    first = text_of(config).vocabulary
    assert (model.recall_first, model.vocab_size) == (first, first + 32)
    made = make_prompts(MeasureConfig(task="recall", length=16, samples=4), model)
    plain = recall_prompts(32, length=16, samples=4, bos="never")
    assert [prompt.ids for prompt in made] == [tuple(i + first for i in prompt.ids) for prompt in plain]
    assert [prompt.label for prompt in made] == [prompt.label for prompt in plain]
    elsewhere = repflow.load(str(folder / "a.models" / "mamba2+poles_2_16_16_0.002_0"))
    elsewhere.network.config.recall_first = 7
    with pytest.raises(InputError, match="models whose ids for recall begin at the same number"):
        drawn_prompts(MeasureConfig(task="recall", length=16, samples=4), [model, elsewhere])


def test_every_reading_is_there_with_its_axes(trained):
    _, _, result = trained
    assert result.axes["recall"] == ("cell", "pairs")
    assert result["recall"].shape == (9, 3)
    for name in ("perplexity", "loss_by_place", "token_similarity", "token_similarity_excess", "half_reach"):
        assert np.isfinite(result[name]).all(), name
    for name in ("smoothness", "stability", "relative_smoothness", "relative_stability", "onset_depth"):
        assert result.axes[name] == ("cell",)
    assert result.provenance["architecture"]["pairs"] == {"16": [1, 2, 4]}


def test_recall_is_that_of_the_kept_model_on_the_ids_behind_the_text(trained):
    """A plain loop over the same rows: every query's answer from the logits of a whole pass."""
    import repflow

    folder, config, result = trained
    behind = text_of(config).vocabulary
    for place in (0, 4):
        network = repflow.load(str(folder / "a.models" / str(config.grid()[place]).replace(":", "_"))).network
        assert network.config.vocab_size == behind + 32
        for kind, setting in enumerate(config.recall_settings(16)):
            rows = recall_rows(setting, 10, torch.Generator().manual_seed(step_seed(1_000_003 + kind, 0)))
            with torch.no_grad():
                answers = network(rows.ids + behind).logits.argmax(-1)
            right = [
                int(answers[row, at]) == int(target) + behind
                for row in range(10)
                for at, target in zip(rows.positions[row], rows.targets[row], strict=True)
            ]
            assert result["recall"][place, kind] == pytest.approx(np.mean(right))


def test_numbers_of_pairs_may_be_named_and_runs_without_them_stay_the_same_request(trained):
    _, config, result = trained
    assert "recall_pairs" not in result.config
    assert "recall_pairs" not in identity(config)  # of which names of recipes' runs are made
    named = replace(config, recall_pairs=["3", "1"])
    assert [kind.pairs for length in (16, 64) for kind in named.recall_settings(length)] == [1, 3, 1, 3]
    assert "--recall-pairs 3,1" in named.command(named.grid()[0])


def test_a_command_of_short_windows_has_the_rows_they_were_trained_with():
    config = ArchitectureConfig(rows=["mamba"], lengths=["64", "256"], batch=4)
    short, long = config.grid()
    assert " --batch 16" in config.command(short)
    assert " --batch 4" in config.command(long)
    assert " --batch 4" in config.command(short, long)
    again = ArchitectureConfig(cells=[str(short)], batch=16)
    assert again.rows_of(64) == config.rows_of(64) == 16


def test_half_of_the_steps_train_recall_and_the_text_goes_on(trained):
    _, config, _ = trained
    source = STUDY.source(config.grid()[0], config, torch.device("cpu"))
    plain = STUDY.source(config.grid()[0], small(recall_share=0.0), torch.device("cpu"))
    kinds = [source.batch(step).positions is not None for step in range(6)]
    assert kinds == [False, True] * 3
    assert torch.equal(source.batch(2).inputs, plain.batch(1).inputs)
    assert int(source.batch(1).inputs.min()) >= text_of(config).vocabulary
    assert source.batch(1).inputs.shape == source.batch(0).inputs.shape


def test_mambas_train_side_by_side_with_those_of_their_window(tmp_path):
    config = small(rows=["mamba"], lengths=["8", "16"], seeds=["0", "1"], flow_samples=0)
    assert groups(STUDY, config) == [[0, 1], [2, 3]]
    result = STUDY.run(config)
    assert [cell["beside"] for cell in result.provenance["cells"]] == [2] * 4
    alone = STUDY.run(small(rows=["mamba"], lengths=["8", "16"], seeds=["1"], flow_samples=0))
    assert result["perplexity"][[1, 3]] == pytest.approx(alone["perplexity"], rel=1e-5)


def test_a_row_trains_with_its_penalty(trained):
    _, config, _ = trained
    cell = config.grid()[3]
    assert "diversity" in cell.row
    loss = STUDY.loss(cell, config)
    assert [(type(one).__name__, one.weight) for one in loss.penalties] == [("TokenDiversity", 0.1)]
    assert STUDY.shape(STUDY.build(cell, config), cell, config) is None


KINDS = {
    "mamba2+contract@2": ("DecayBound", 2.0),
    "transformer+contract": ("BlockGain", 1.0),
    "mamba2.attention+contract": ("DecayBound", 1.0),
    "mamba2+supervision@0.5": ("IntermediateSupervision", 0.5),
    "mamba2+excess+held": ("ExcessSimilarity", HoldAt(0.1)),
    "transformer+smooth": ("SmoothnessPenalty", 0.1),
    "transformer+stable": ("StabilityPenalty", 0.1),
}


@pytest.mark.parametrize("word", KINDS)
def test_every_penalty_lowers_a_loss_of_its_own(word):
    config = small(rows=[word], recall_share=0.0)
    penalty = penalties_of(parse_architecture(word), 2, 0.9)[0]
    assert (type(penalty).__name__, penalty.weight) == KINDS[word]
    cell = config.grid()[0]
    network, batch = STUDY.build(cell, config), STUDY.source(cell, config, torch.device("cpu")).batch(0)
    value, metrics = STUDY.loss(cell, config)(network, batch)
    value.backward()
    name = f"penalty/{penalty.name}"
    weight = penalty.weight.start if isinstance(penalty.weight, HoldAt) else penalty.weight
    assert float(value.detach()) == pytest.approx(float(metrics["task_loss"]) + weight * float(metrics[name]), rel=1e-5)


def test_frozen_norms_stay_where_they_are_and_all_else_moves():
    config = small(rows=["transformer+frozen"], recall_share=0.0)
    cell = config.grid()[0]
    network = STUDY.build(cell, config)
    before = {name: value.detach().clone() for name, value in network.named_parameters()}
    from repflow.studies.laboratory.group import _how

    how = _how(STUDY, [cell], config, torch.device("cpu"), None, network)
    train(network, STUDY.source(cell, config, torch.device("cpu")), how, loss=STUDY.loss(cell, config))
    moved = {name for name, value in network.named_parameters() if not torch.equal(value, before[name])}
    norms = {name for name in before if "norm" in name}
    assert len(norms) == 5
    assert moved == set(before) - norms


def test_depths_have_the_parameters_of_one_depth():
    config = small(rows=["mamba", "transformer"], layers=["2", "6"], widths=["96"], match_row="mamba", match_layers=4)
    goal = sum(
        p.numel()
        for p in STUDY.build(small(rows=["mamba"], layers=["4"], widths=["96"]).grid()[0], small()).parameters()
    )
    for cell in config.grid():
        count = sum(part.numel() for part in STUDY.build(cell, config).parameters())
        assert count == pytest.approx(goal, rel=0.1)


@pytest.mark.parametrize("row", ["mamba2", "3xmamba2.attention"])
def test_mamba2_is_matched_by_widths_that_it_can_have(row):
    config = small(rows=[row], layers=["4"], widths=["96"], match_row="mamba", head_dim=16)
    plain = small(rows=["mamba"], layers=["4"], widths=["96"])
    count, goal = STUDY.count(config.grid()[0], config), STUDY.count(plain.grid()[0], plain)
    assert count == pytest.approx(goal, rel=0.1)
    network = STUDY.build(config.grid()[0], config)
    assert sum(part.numel() for part in network.parameters()) == count
    assert network.model.blocks[0].mixer.head_dim == 16


def test_onset_is_where_similarity_is_halfway():
    assert onset_depth(np.array([0.1, 0.1, 0.5, np.nan])) == pytest.approx(0.75)
    assert onset_depth(np.array([0.0, 1.0, 0.2, 0.2, 0.2])) == pytest.approx(0.125)
    assert np.isnan(onset_depth(np.array([0.2, 0.21, 0.2])))
    assert np.isnan(onset_depth(np.array([0.3])))


def test_onset_behind_a_fall_is_where_the_rise_behind_it_is_halfway():
    """Trained Mambas are most alike at the embedding, then apart, then alike again: the onset is that of the end."""
    late = np.array([0.44, 0.2, 0.08, 0.04, 0.04, 0.04, 0.08, 0.16, 0.28])
    assert onset_depth(late) == pytest.approx(7 / 8)
    assert onset_depth(late - 0.04) == pytest.approx(7 / 8)
    early = np.array([0.3, 0.9, 0.1, 0.1, 0.5])  # the greater of two rises, that of the first block
    assert onset_depth(early) == pytest.approx(0.5 / 4)
    assert np.isnan(onset_depth(np.array([0.9, 0.5, 0.3, 0.34])))


def made(effects, seeds=3, noise=0.0):
    """A result whose log perplexity is a sum of known effects."""
    rng, cells, loss = np.random.default_rng(0), [], []
    for row in ("mamba2", "mamba2+poles", "3xmamba2.attention", "3xmamba2..attention", "attention..3xmamba2"):
        for layers in (4, 8):
            for length in (16, 32):
                for rate in (0.001, 0.01):
                    for seed in range(seeds):
                        cells.append(
                            {"row": row, "layers": layers, "width": 8, "length": length, "rate": rate, "seed": seed}
                        )
                        parsed = parse_architecture(row)
                        at = parsed.attention_at(layers)
                        value = 1 + effects["depth"] * np.log2(layers) + effects["poles"] * ("poles" in parsed.parts)
                        value += effects["share"] * len(at) / layers + effects["seed"] * seed + (rate == 0.001)
                        value += effects["cross"] * (np.log2(layers) - 2.5) * (np.log2(length) - 4.5)
                        place = (np.mean(at) + 0.5 - layers / 2) / layers / 0.75 if at else 0
                        loss.append(value + effects["later"] * place + noise * rng.standard_normal())
    arrays = {"perplexity": np.exp(np.array(loss))[:, None]}
    return Result(arrays, {"perplexity": ("cell", "text")}, {}, {"cells": cells, "architecture": {"pairs": {}}})


TRUE = {"depth": -0.2, "poles": 0.3, "share": 0.5, "later": -0.7, "cross": 0.05, "seed": 0.4}


def test_fits_give_back_what_was_put_in_at_the_best_rate():
    result = made(TRUE)
    assert {result.provenance["cells"][place]["rate"] for place in best_cells(result)} == {0.01}
    fit = fits(result, 500)["loss"]
    means = {name: effect["mean"] for name, effect in fit["effects"].items()}
    names = {"layers doubled": "depth", "+poles": "poles", "attention in all layers": "share"}
    names |= {"attention from first to last": "later", "layers and window doubled": "cross"}
    assert {name: means[name] for name in names} == pytest.approx({name: TRUE[key] for name, key in names.items()})
    assert means["window doubled"] == pytest.approx(0)
    assert (fit["models"], fit["seeds"], fit["intervals"]) == (60, 3, "seeds")


def test_log_odds_of_recall_count_every_answer(trained, monkeypatch):
    """Half an answer is added to each side of all that were asked: rows times pairs, of which there are few or many."""
    _, config, result = trained
    asked = config.recall_rows * config.recall_settings(16)[-1].pairs
    right = np.arange(len(result["recall"])) % 3
    shares = np.repeat((right / asked)[:, None], result["recall"].shape[1], axis=1)
    monkeypatch.setitem(result.arrays, "recall", shares)
    expected = np.log((right + 0.5) / (asked - right + 0.5))
    np.testing.assert_allclose(outcomes(result, config.recall_rows)["recall"], expected)
    seen = []
    monkeypatch.setattr(study, "fits", lambda result, rows: seen.append(rows) or {})
    STUDY.run(small(rows=["mamba2"], recall_rows=7, flow_samples=0))
    assert seen == [7]


def test_intervals_come_from_seeds_or_from_the_scatter_as_numpy_has_them():
    for seeds in (2, 3):
        result = made(TRUE, seeds, noise=0.1)
        fit, chosen = fits(result, 500)["loss"], best_cells(result)
        cells = [result.provenance["cells"][place] for place in chosen]
        y, columns = np.log(result["perplexity"][chosen, 0]), independent(factors(cells))
        own = np.array([cell["seed"] for cell in cells])
        table = np.stack([*columns.values(), *((own == seed).astype(float) for seed in range(seeds))], 1)
        best, rest, *_ = np.linalg.lstsq(table, y, rcond=None)
        got = fit["effects"]["layers doubled"]
        assert got["mean"] == pytest.approx(best[0])
        if seeds == 2:
            error = np.sqrt(rest[0] / (len(y) - table.shape[1]) * np.linalg.inv(table.T @ table)[0, 0])
            assert got["high"] - got["mean"] == pytest.approx(t.ppf(0.975, len(y) - table.shape[1]) * error)
        else:
            design = np.stack([np.ones(len(y)), *columns.values()], 1)
            parts = [np.linalg.lstsq(design[own == seed], y[own == seed], rcond=None)[0][1] for seed in range(3)]
            assert got["high"] - got["mean"] == pytest.approx(t.ppf(0.975, 2) * np.std(parts, ddof=1) / np.sqrt(3))


def test_as_many_models_as_factors_show_no_effect():
    cells = [{"row": "mamba", "layers": layers, "width": 16, "length": 32, "seed": 0} for layers in (2, 4)]
    fit = _fit(np.array([1.0, 2.0]), cells)
    assert "effects" not in fit
    assert "leave no scatter" in fit["reason"]


def test_models_without_a_value_are_left_out_and_counted():
    result = made(TRUE)
    cells, values = result.provenance["cells"], np.random.default_rng(0).random(len(result.provenance["cells"]))
    result.arrays["onset_depth"] = np.where([cell["layers"] == 8 for cell in cells], values, np.nan)
    fit = fits(result, 500)["onset_depth"]
    assert (fit["models"], fit["left_out"]) == (30, 10)
    assert "layers doubled" not in fit["effects"]


BAD = {
    "share": ({"recall_share": 1.0}, "recall_share from 0 to below 1"),
    "ids": ({"recall_ids": 8}, "two ids for every pair, and two more; got 8 ids for up to 4 pairs"),
    "pairs": ({"recall_pairs": ["2", "5"]}, "from 1 to 4 pairs in 16 tokens"),
    "no pairs": ({"recall_pairs": ["two"]}, "numbers in recall_pairs"),
    "limit": ({"decay_limit": 1.0}, "decay_limit between 0 and 1"),
    "match": ({"match_layers": 2}, "match_row with match_layers"),
    "stretch": ({"rows": ["9xmamba2..attention"]}, "layers for every stretch"),
    "one layer": ({"rows": ["mamba2+supervision"], "layers": ["1"]}, "at least 2 layers"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_requests_are_refused(tmp_path, case):
    changes, words = BAD[case]
    with pytest.raises(InputError, match=words):
        STUDY.run(small(**changes), out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_models_that_are_all_alike_show_no_effect():
    """Zero scatter would give an interval of no width around 0, which says too much of models that learned nothing."""
    cells = [{"row": "mamba", "layers": n, "width": 8, "length": 16, "seed": 0, "rate": 0.1} for n in (2, 4, 8, 16)]
    assert _fit(np.zeros(4), cells)["reason"] == "all models have the same value"
    assert "effects" in _fit(np.array([0.0, 0.1, 0.3, 0.2]), cells)
