"""The pixel laboratory's study: claims judged on simulated trainings whose truth is known, phases, what is carried."""

import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from docs import make_pixels
from repflow.core.errors import ConfigChangedError
from repflow.core.intervals import Band
from repflow.papers.pixels import end_pairs
from repflow.spec.corruption import PAPER, PIXELS, scaled_region
from repflow.store import load_result, read_record
from repflow.studies.laboratory.study import LaboratoryJob
from repflow.studies.pixels.study import STUDY
from repflow.tasks.pixels import Images, load_images
from repflow.tasks.pixels.cifar import CLASSES
from tests.tools.phases import carried, program
from tools import pack_images
from tools.carry import unpack
from tools.pixels import claims, run
from tools.pixels.answers import (
    FORMS,
    answers,
    attacks_table,
    differences_table,
    ends_table,
    everywhere_table,
    shown_word,
)
from tools.pixels.attacks import RATES
from tools.pixels.claims import OWN_CLAIMS, PAPER_CLAIMS, read_study
from tools.pixels.longer import sentences, trained_longer

WINDOWS = [f"{at}:{at + 32}" for at in range(0, 1024, 32)]
REGIONS = list(dict.fromkeys([*WINDOWS, *PAPER["recency-table1"], *PAPER["recency-table3"]]))
BOUNDS = [tuple(map(int, word.split(":"))) for word in REGIONS]
PAIRS = end_pairs(BOUNDS, 1024)
ORDER = {"mamba": 0.3, "h3": 0.15, "rwkv": 0.35, "transformer": -0.1, "mamba+positions+mlp": 0.2, "s4d": 0.12}
"""Asymmetry of each model; others have none."""
STURDY = ("mamba+mean", "mamba+both+middle")
"""Models that lose half as much as others, wherever parts are replaced."""


FEW = 0.02
"""Success of attacks with fewer than 256 tokens above random pairs, where it is not another."""
ATTACKED = [*PAPER["recency-fig3"], *PAPER["fewer"]]


def numbers(*, hole=1.0, published=0.2, controls=1.0, seeds=3, follows=True, kinds=None, few=FEW):
    """Trainings of core and extension with asymmetries that are known, by N(0, 1) noise and by all else.

    Attacks with fewer than 256 tokens succeed by `few` more often than random pairs; None for runs without them.
    """
    random = np.random.default_rng(0)
    phases = {}
    for name, part in (("seeds", "core"), ("extension-seeds", "extension")):
        cells = []
        for row, order, init in run.KINDS[part]:
            if kinds is not None and (row, order, init) not in kinds:
                continue
            for seed in range(seeds):
                more = hole * ORDER.get(row, 0.0) + (published if init == "published" else 0.0)
                cells.append(_cell(random, row, order, init, seed, more, controls, follows, few))
        facts = {
            **{"regions": REGIONS, "ends": list(PAIRS), "replacements": list(PIXELS), "tokens": 1024, "chance": 0.1},
            **{"images_replaced": 10_000, "classes": list(CLASSES), "targets": list(CLASSES)},
            **{"attack_regions": ATTACKED[:4] if few is None else ATTACKED, "steps": 23_430, "device": "none"},
            **{"train_images": 50_000, "batch": 64},
        }
        phases[f"cifar10-{name}"] = {"finished": True, "models": len(cells), "facts": facts, "cells": cells}
    return json.loads(json.dumps(phases))


def _cell(random, row, order, init, seed, more, controls, follows, few):
    """Drops rise towards the end where a model has recency; influence does likewise, or is noise."""
    place = np.array([(start + end) / 2048 for start, end in BOUNDS])
    base = 0.1 if row in STURDY else 0.2
    lost = base + more * (place - 0.5)
    share = np.array([1.0, *[controls] * (len(PIXELS) - 1)])
    noise = 0.004 * random.standard_normal((len(PIXELS), len(REGIONS)))
    drops = share[:, None] * lost + (base - base * share)[:, None] + noise
    uneven = np.stack([drops[:, last] - drops[:, first] for first, last in PAIRS.values()], 1)
    curve = np.exp(4 * more * place) if follows else np.exp(random.standard_normal(len(place)))
    steered = 0.3 + (0.0 if row == "transformer" else more)
    smaller = [] if few is None else [0.1 + few] * 6
    success = np.tile([0.3, steered, 0.3, steered, *smaller], (10, 1)).clip(0, 1)
    causal = "both" not in row
    return {
        **{"row": row, "token_order": order, "init": init, "seed": seed, "rate": 0.001, "layers": 3, "width": 32},
        **{"cell": f"{row}:{seed}", "test_accuracy": 0.6, "clean_accuracy": 0.6, "accuracy": (0.6 - drops).tolist()},
        **{"asymmetry": uneven.tolist(), "asymmetry_error": np.full(uneven.shape, 0.005).tolist()},
        **{"success": success.tolist(), "random_pair": np.full_like(success, 0.1).tolist(), "base_rate": [0.05] * 10},
        **{"influence": curve.tolist(), "half_reach": float(np.exp(3 - 2 * more)) if causal else None},
    }


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(claims, "rank_correlation", partial(claims.rank_correlation, draws=200))


def words(chosen, *args, **options):
    study = read_study(numbers(*args, **options))
    return {claim.text: claim.verdict(study)[0] for claim in chosen}


def test_what_is_true_of_simulated_trainings_is_said():
    said = words(PAPER_CLAIMS)
    reversed_transformer = (
        "Transformer trained on reversed images: the last tokens, now the top of the image, cost more."
    )
    assert said.pop(reversed_transformer) == "does not hold"
    assert set(said.values()) == {"holds"}, said
    own = words(OWN_CLAIMS)
    # two directions cost alike everywhere here, so that there is nothing to predict in them
    assert own.pop("Where a window has more influence on the answer, its replacement costs more.") == "open"
    assert set(own.values()) == {"holds"}, own


def test_controls_decide_apart_from_noise():
    said = words(PAPER_CLAIMS, controls=0.0)
    assert said["Mamba: the last tokens cost more than the first, N(0, 1) noise."] == "holds"
    assert said["Mamba: the last tokens cost more than the first, every control."] == "open"
    turned = words(PAPER_CLAIMS, controls=-1.0)
    assert turned["Mamba: the last tokens cost more than the first, every control."] == "does not hold"
    mixed = "Mamba trained on reversed images: the last tokens, now the top of the image, cost more."
    assert turned[mixed] == "partly holds"  # by noise, and not by the two controls


def test_what_is_false_is_said_too():
    said = words([*PAPER_CLAIMS, *OWN_CLAIMS], hole=-1.0, published=-0.2)
    holding = {text for text, word in said.items() if word == "holds"}
    assert "Mamba: the last tokens cost more than the first, N(0, 1) noise." not in holding
    assert said["The published initialisation adds to Mamba's."] == "does not hold"
    assert said["Two directions have less of it than Mamba."] == "does not hold"
    assert said["Two directions close the hole."] == "holds"  # they have none
    assert said["Mamba with a mean over tokens is more robust than with a class token at the end."] == "partly holds"
    wide = words(OWN_CLAIMS, hole=0.0, published=0.0, follows=False)
    assert set(wide.values()) <= {"holds", "open"}
    assert wide["Where a window has more influence on the answer, its replacement costs more."] == "open"


def test_the_statements_on_one_target_and_on_the_transformers_end():
    said = words(PAPER_CLAIMS)
    horse = "Mamba: attacks at the end that steer to horse succeed more often than at the start."
    end = "Mamba: the last tokens cost it more than the Transformer, N(0, 1) noise."
    assert (said[horse], said[end]) == ("holds", "holds")
    turned = words(PAPER_CLAIMS, hole=-1.0)
    assert (turned[horse], turned[end]) == ("does not hold", "does not hold")
    known = numbers()
    for phase in known.values():
        phase["facts"]["targets"] = list("abcdefghij")
    assert next(c for c in PAPER_CLAIMS if c.text == horse).verdict(read_study(known))[0] == "open"
    added = {claim.text for claim in (*PAPER_CLAIMS, *OWN_CLAIMS) if claims.LATER in claim.rule}
    assert {horse, end} < added
    assert len(added) == 18
    assert all(claims.ON_THESE in claim.rule for claim in PAPER_CLAIMS if claim.text in added)


def fewer(**options):
    said = words(PAPER_CLAIMS, **options)
    return {word for text, word in said.items() if "fewer than 256" in text}


def test_attacks_with_few_tokens_succeed_or_not():
    """By the largest of six regions: 10 points above random pairs is considerable; runs without them leave it open."""
    assert fewer() == {"holds"}
    assert fewer(few=0.3) == {"does not hold"}
    assert fewer(few=0.1) == {"open"}
    assert fewer(few=None) == {"open"}
    claim = next(c for c in PAPER_CLAIMS if c.text.startswith("Mamba: attacks with fewer than 256"))
    assert claim.verdict(read_study(numbers(few=None))) == ("open", "not run, or not learned")
    assert "largest of 6 regions +2.0 [" in claim.verdict(read_study(numbers()))[1]
    one = numbers()
    for phase in one.values():
        for cell in phase["cells"]:
            for target in cell["success"]:
                target[ATTACKED.index("832:1024")] = 0.4
    assert claim.verdict(read_study(one))[0] == "does not hold"


def test_rates_are_read_by_region_and_not_by_place():
    """Phases that attack at other regions, in another order: every claim is what it was, but where there is no rate."""
    everything = (*PAPER_CLAIMS, *OWN_CLAIMS)
    known, plain = numbers(), {claim.text: claim.verdict(read_study(numbers())) for claim in everything}
    phase = known["cifar10-extension-seeds"]
    for cell in phase["cells"]:
        for name in RATES:
            cell[name] = [row[::-1] for row in cell[name]]
    phase["facts"]["attack_regions"] = ATTACKED[::-1]
    assert {claim.text: claim.verdict(read_study(known)) for claim in everything} == plain
    mixed = {**numbers(), "cifar10-seeds": numbers(few=None)["cifar10-seeds"]}
    study = read_study(mixed)
    assert study.result.provenance["pixels"]["attack_regions"] == ATTACKED
    differing = {claim.text for claim in everything if claim.verdict(study) != plain[claim.text]}
    assert differing == {
        f"{claims.NAMES[kind]}: attacks with fewer than 256 of 1,024 tokens do not succeed considerably."
        for kind in (claims.MAMBA, claims.PUBLISHED, claims.H3, claims.TRANSFORMER)
    }
    assert "Models of both orders, 256 tokens: Mamba" in answers(study)


def test_the_pages_table_of_attacks_leaves_empty_what_was_not_attacked(monkeypatch):
    whole = numbers(kinds=[claims.MAMBA, claims.RWKV])
    mixed = {**whole, "cifar10-seeds": numbers(few=None, kinds=[claims.MAMBA])["cifar10-seeds"]}
    monkeypatch.setattr(make_pixels, "NUMBERS", mixed)
    head, _, mamba, rwkv = make_pixels.attacks().splitlines()
    assert head.count("(%)") == 1 + len(ATTACKED)
    assert mamba.split(" | ")[2:6] == ["30.0 (10.0)", "60.0 (10.0)"] * 2
    assert mamba.count("–") == 6
    assert "–" not in rwkv


def test_answers_have_the_numbers_of_the_study():
    said = answers(read_study(numbers()))
    assert "are shown to cost more than the first in 5 with N(0, 1) noise, 5 with noise like the data" in said
    assert "In the Transformer: the first shown to cost more with N(0, 1) noise" in said
    assert "From model to model (15 models, 9 of them Mambas), the more influence the last window has" in said
    assert "trained for 30 epochs" in said
    some = answers(read_study(numbers(kinds=[("mamba", "row", "right")])))
    assert "Of the 1 row other than the Transformer (Mamba) the last" in some
    assert "H3" not in some.partition("Does a model's influence")[0]
    assert answers(None) == "Not run yet."


def test_the_pages_first_tables_say_what_is_shown():
    """Every model and every pair, in words that follow from the intervals."""
    study = read_study(numbers())
    heads, rows = ends_table(study)
    by_name = {row[0]: row[1:] for row in rows}
    assert len(by_name) == len(FORMS) == sum(map(len, run.KINDS.values()))
    assert {len(row) for row in by_name.values()} == {len(heads) - 1}
    assert by_name["Mamba"][0] == "60.0"
    assert all(cell.startswith(("**yes** +28", "**yes** +29")) for cell in by_name["Mamba"][1:-1])
    assert by_name["Mamba"][-1] == "**yes** +30.0"
    assert all(cell.startswith("**no** -") for cell in by_name["Transformer"][1:-1])
    assert by_name["Mamba both ways, class token in front"][-1] == "open +0.0"
    pairs = {(row[0], row[1]): row[2:] for row in differences_table(study)[1]}
    assert all(
        cell.startswith(("**yes** +18", "**yes** +19", "**yes** +20"))
        for cell in pairs["Mamba with the published initialisation", "Mamba"]
    )
    assert len(pairs) == 6
    alone = read_study(numbers(kinds=[claims.MAMBA]))
    assert [row[0] for row in ends_table(alone)[1]] == ["Mamba"]
    assert differences_table(alone)[1] == []


def test_a_hole_that_moves_to_the_class_token_is_said():
    """Where the ends alone cost alike, tokens around a class token in the middle may cost more."""
    known = numbers()
    assert "tokens 480:576, around the class token, cost more than the last 96" in answers(read_study(known))
    place = REGIONS.index("480:576")
    for cell in known["cifar10-extension-seeds"]["cells"]:
        if cell["row"] == "mamba+both+middle":
            for lost in cell["accuracy"][:1]:  # N(0, 1) noise
                lost[place] -= 0.2
    moved = answers(read_study(known)).partition("around the class token")[2].partition("\n")[0]
    assert re.search(r"is shown with N\(0, 1\) noise \+(19|20|21)\.\d \[", moved)
    assert "open with noise like the data" in moved


def test_the_reach_of_a_state_that_no_answer_is_read_from_predicts_nothing():
    known = numbers()
    for cell in known["cifar10-extension-seeds"]["cells"]:
        if cell["row"] == "mamba+mean":
            cell["half_reach"] = 1e-3  # would turn the correlation
    study = read_study(known)
    few = study.comparable("reach")
    assert len(study.comparable("reach", unread=True)) == len(few) + 3
    without = read_study(numbers(kinds={kind for part in run.KINDS.values() for kind in part} - {claims.MEAN}))
    bands = [one.predicted(0.95, by="reach", replacement="normal") for one in (study, without)]
    assert bands[0].mean == bands[1].mean
    assert study.predicted(0.95, by="reach", replacement="normal", unread=True).mean > bands[0].mean
    assert "With Mamba with a mean over tokens, whose half reach is of a state that it does not" in answers(study)


def test_a_table_names_the_size_that_is_shown_alone():
    def band(low, high):
        return Band(*(np.array(value) for value in ((low + high) / 2, low, high)))

    up, down, none = band(0.01, 0.03), band(-0.03, -0.01), band(-0.01, 0.02)
    assert shown_word([up, up], (32, 96)) == "**yes** +2.0"
    assert shown_word([down, down], (32, 96)) == "**no** -2.0"
    assert shown_word([none, up], (32, 96)) == "yes at 96 +2.0"
    assert shown_word([down, none], (32, 96)) == "no at 32 -2.0"
    assert shown_word([up, down], (32, 96)) == "yes at 32 +2.0, no at 96 -2.0"
    assert shown_word([none, none], (32, 96)) == "open +0.5"
    assert shown_word([claims.NOTHING, claims.NOTHING], (32, 96)) == "–"


def test_means_over_the_sequence_and_attacks_at_both_ends():
    study = read_study(numbers())
    rows = {row[0]: row[1:] for row in everywhere_table(study)[1]}
    assert rows["Transformer"][1] == rows["Transformer"][3] == ""
    assert all(19 < float(row[0]) < 21 for row in rows.values())
    low, high = (float(word) for word in rows["Mamba"][1].partition("[")[2][:-1].split(", "))
    assert low < 0 < high  # all models lose as much on average, but for noise
    attacked = {row[0]: row[1:] for row in attacks_table(study)[1]}
    assert attacked["Mamba"][0].startswith("+30.0 [")
    assert attacked["Mamba"][1].startswith("+30.0 [")
    without = numbers()
    for phase in without.values():
        for cell in phase["cells"]:
            for name in RATES:
                del cell[name]
    assert attacks_table(read_study(without))[1] == []


def test_too_few_seeds_and_models_that_are_not_there_leave_claims_open():
    everything = (*PAPER_CLAIMS, *OWN_CLAIMS)
    few = words(everything, seeds=2)
    assert {word for text, word in few.items() if "Models whose" not in text and "Causal" not in text} == {"open"}
    assert {claim.verdict(None) for claim in everything} == {("open", "not run")}
    some = read_study(numbers(kinds=[("mamba", "row", "right")]))
    verdicts = {claim.text: claim.verdict(some) for claim in everything}
    assert verdicts["Mamba: the last tokens cost more than the first, N(0, 1) noise."][0] == "holds"
    assert verdicts["Two directions close the hole."][0] == "open"
    assert "not run" in verdicts["Two directions close the hole."][1]
    assert read_study({}) is None


def test_models_that_have_not_learned_decide_nothing():
    known = numbers()
    for phase in known.values():
        for cell in phase["cells"]:
            if cell["row"] == "mamba+both" and cell["seed"] == 1:
                cell["test_accuracy"] = 0.15
    word, said = next(c for c in OWN_CLAIMS if c.text == "Two directions close the hole.").verdict(read_study(known))
    assert word == "open"
    assert "not learned" in said


def test_the_influence_of_windows_survives_the_table():
    cell = run.windowed({"influence": list(range(1, 9))}, ["0:4", "4:8", "6:8"])
    assert cell["influence"] == [10.0, 26.0, 15.0]


SMALL = ["--images", "drawn:8", "--set", "drawn", "--regions", "windows:16,paper", "--state", "4", "--layers", "1"]
SMALL += ["--width", "8", "--steps", "3", "--batch", "4", "--train-images", "20", "--test-images", "20"]
SMALL += ["--rates", "0.01,0.02", "--device", "cpu", "--least", "0"]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(run, "SEEDS", (1, 2))
    monkeypatch.setitem(run.KINDS, "core", (("mamba", "row", "right"), ("mamba", "reversed", "right")))
    return program(run, monkeypatch)


@pytest.mark.slow  # CI has those of the token laboratory, by the same tools/phases.py
def test_phases_follow_one_another_and_are_carried_half_done(small, tmp_path, capsys):
    here = carried(small, SMALL, ("screen", "seeds"), "drawn", tmp_path, capsys)
    target = tmp_path / "numbers.json"
    (tmp_path / "speed.json").write_text('{"errors": {}, "rows": [{"row": "mamba"}]}')
    small("table", "--out", here, "--to", target, "--speed", tmp_path / "speed.json")
    stored = json.loads(target.read_text())
    assert [stored[f"drawn-{phase}"]["models"] for phase in ("screen", "seeds")] == [2, 4]
    assert stored["speed"]["cells"] == [{"row": "mamba"}]
    cell = stored["drawn-seeds"]["cells"][0]
    assert cell["row"] == "mamba"
    assert len(cell["influence"]) == len(stored["drawn-seeds"]["facts"]["regions"])
    study = read_study(stored, "drawn")
    assert study.result["influence"].shape == (4, 64)
    assert {claim.verdict(study)[0] for claim in (*PAPER_CLAIMS, *OWN_CLAIMS)} == {"open"}


def test_forms_of_the_strong_model_are_phases_of_their_own(small, tmp_path, capsys):
    target = tmp_path / "numbers.json"
    for form, steps in (("s4d/4+mean+dropout", 3), ("s4d/4+mean+dropout+inside", 4)):
        asked = [*SMALL, "--cell", f"{form}:1:8:row:right:0.01:0", "--steps", steps, "--out", tmp_path / "runs"]
        small("strong", *map(str, asked))
    small("table", "--out", tmp_path / "runs", "--to", target)
    stored = json.loads(target.read_text())
    assert [stored[name]["facts"]["steps"] for name in sorted(stored)] == [3, 4]
    assert {cell["row"] for phase in stored.values() for cell in phase["cells"]} == {
        "s4d+mean+dropout",
        "s4d+mean+dropout+inside",
    }
    cell = stored["drawn-strong@s4d_4+mean+dropout"]["cells"][0]
    assert 0 <= cell["train_accuracy"] <= 1
    assert len(cell["on_the_way"]) == 4  # before the first step and behind each of three
    assert cell["seconds"] >= 0


def test_every_row_of_the_study_is_a_model():
    from repflow.studies.pixels.config import check

    options = run.argparse.Namespace(
        **{"extension": False, "rates": "0.001,0.01", "cell": None, "layers": 3, "width": 32, "state": None},
        **{"images": "drawn", "batch": 64, "seconds": 480.0, "train_images": None, "test_images": 2000},
        **{"regions": "windows:32,paper", "device": None, "steps": None, "epochs": None, "least": 0.2, "only": None},
        attack_regions=None,
    )
    kinds = {(row, init) for part in run.KINDS.values() for row, _, init in part}
    known = [_screened(0.001, 0.5, row, init) for row, init in kinds]
    for options.extension in (False, True):
        for phase, epochs in run.EPOCHS.items():
            config = run.config_of(phase, options, known)
            check(config)
            assert config.steps == epochs * (4000 // 64)
            assert len(config.attacked(1024)) == (len(ATTACKED) if config.targets else 4)


def test_a_plan_from_measured_rates(small, tmp_path, capsys):
    rates = {"million_tokens_per_second": 2.0, "million_tokens_read_per_second": 4.0}
    rows = [{"row": "mamba", "layers": 3, "width": 32, "models": count, **rates} for count in (1, 9)]
    rows[1]["million_tokens_per_second"] = 10.0
    (tmp_path / "speed.json").write_text(json.dumps({"errors": {}, "rows": rows}))
    small("plan", "--speed", tmp_path / "speed.json", "--seconds", 1000)
    said = capsys.readouterr().out
    # 4 models of 2 seeds and 2 orders; the measurement of 1 is nearer to 4 than that of 9
    trained = 4 * 10 * 781 * 64 * 1025
    passes = 39 * 6 + (4 + 6) * 2 * 10 + 12
    read = 4 * 1024 * (1000 * passes + 10_000)
    assert f"4 × mamba: {trained / 1e9:.2f} billion tokens trained, {read / 1e9:.2f} read" in said
    assert f"{trained / 2e6:.0f} s training, {read / 4e6:.0f} s reading" in said
    fitting = 10 * (1000 - read / 4e6) / (trained / 2e6)
    assert f"seeds: {fitting:.1f} epochs fit into 1000 s" in said
    assert "1 × s4d+mean+dropout+inside+mirror: 3.07 billion tokens trained, 0.02 read; not measured" in said


def test_rows_apart_are_joined_in_the_table(small, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(run.KINDS, "core", (("mamba", "row", "right"), ("transformer", "row", "right")))
    for row in ("mamba", "transformer"):
        small("screen", *SMALL, "--only", row, "--out", tmp_path, "--steps", "1", "--rates", "0.01")
        joined = run.table(tmp_path)["drawn-screen"]
        assert joined["models"] == 2
        assert joined["finished"] == (row == "transformer")
    assert [cell["row"] for cell in joined["cells"]] == ["mamba", "transformer"]
    with pytest.raises(SystemExit, match=r"expected --only of mamba, transformer; got gru"):
        small("screen", *SMALL, "--only", "gru", "--out", tmp_path)
    with pytest.raises(SystemExit, match=r"differ in steps"):
        small("screen", *SMALL, "--only", "transformer,mamba", "--out", tmp_path, "--until", "1", "--steps", "2")
        run.table(tmp_path)


def test_runs_with_other_attack_regions_are_joined_by_region(small, tmp_path, capsys, monkeypatch):
    """A run of an earlier version attacks at Figure 3's regions alone, and is found again with them."""
    monkeypatch.setitem(run.KINDS, "core", (("mamba", "row", "right"), ("transformer", "row", "right")))
    monkeypatch.setattr(run, "SEEDS", (1,))
    asked = [*SMALL, "--out", tmp_path, "--steps", "1", "--rates", "0.01"]
    small("screen", *asked)
    small("seeds", *asked, "--only", "mamba", "--attack-regions", "paper")
    alone = run.table(tmp_path)["drawn-seeds"]
    assert len(alone["facts"]["attack_regions"]) == 4
    small("seeds", *asked, "--only", "transformer")
    capsys.readouterr()
    small("seeds", *asked, "--only", "mamba")
    assert "drawn-seeds@mamba is done" in capsys.readouterr().out
    joined = run.table(tmp_path)["drawn-seeds"]
    regions = joined["facts"]["attack_regions"]
    assert regions == [scaled_region(word, 64) for word in ATTACKED]
    mamba, transformer = joined["cells"]
    for name in RATES:
        assert [row[:4] for row in mamba[name]] == alone["cells"][0][name]
        assert {value for row in mamba[name] for value in row[4:]} == {None}
        assert np.shape(transformer[name]) == (10, 10)
        assert None not in np.ravel(transformer[name])
    with pytest.raises(SystemExit, match="begun with --attack-regions paper,fewer: leave the option out"):
        small("seeds", *asked, "--only", "transformer", "--attack-regions", "paper")
    assert run.table(tmp_path)["drawn-seeds"] == joined


def test_stored_runs_are_the_same_requests(tmp_path):
    """Options that came later change no request of a stored run, which the same command still finds."""
    unpack(Path(__file__).parents[2] / "docs" / "laboratories" / "runs" / "pixels", tmp_path)
    runs = [file.parent for file in tmp_path.glob("*/run.json")]
    for folder in runs:
        stored = read_record(folder).config
        asked = STUDY.again(stored)
        assert STUDY.stored(Mock(spec=LaboratoryJob, config=asked)) == stored
        groups = load_result(folder).provenance["pixels"]["groups"]
        assert [group.partition(" --cells")[0] for group in groups] == ["repflow pixels"] * len(groups)
        assert asked.command(*asked.grid()).split(" --")[2:] == groups[0].split(" --")[2:]
    assert len(runs) > 10


def test_the_best_rate_of_a_screen_that_learned():
    known = [_screened(0.001, 0.5), _screened(0.01, 0.6), _screened(0.1, None)]
    assert run.rate_of(("mamba", "reversed", "right"), known) == 0.01
    with pytest.raises(SystemExit, match=r"no rate of mamba, right initialisation, learned: at most 60.0 %"):
        run.rate_of(("mamba", "row", "right"), known, 0.7)
    with pytest.raises(SystemExit, match="none was screened"):
        run.rate_of(("h3", "row", "right"), known)


def _screened(rate, accuracy, row="mamba", init="right"):
    return {"row": row, "init": init, "rate": rate, "test_accuracy": accuracy}


def test_images_in_parts_are_the_same_or_refused(tmp_path, monkeypatch, capsys):
    """Sheets of few images, of which one is not full; a part that is missing or changed gives no images."""
    random = np.random.default_rng(0)
    (tmp_path / "whole").mkdir()
    for name, count in (("data_batch_1.bin", 23), ("test_batch.bin", 12)):
        pixels = random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        images = Images.checked(pixels, random.permutation(np.arange(count) % 10))
        (tmp_path / "whole" / name).write_bytes(pack_images.records(images))
    monkeypatch.setattr(pack_images, "SHEET", 5)

    def call(*words):
        monkeypatch.setattr("sys.argv", ["pack_images", *map(str, words)])
        pack_images.main()

    call("pack", tmp_path / "whole", tmp_path / "parts", "--mib", 0.05)
    parts = sorted((tmp_path / "parts").iterdir())
    assert len(parts) > 1
    assert f"in {len(parts)} parts" in capsys.readouterr().out
    call("unpack", tmp_path / "again", *reversed(parts))
    ours, theirs = (load_images(str(tmp_path / name)) for name in ("whole", "again"))
    assert (ours.train.digest(), ours.test.digest()) == (theirs.train.digest(), theirs.test.digest())
    with pytest.raises(SystemExit, match="name all parts"):
        call("unpack", tmp_path / "none", *parts[:-1])
    sheets = sorted(file for part in parts for file in part.glob("*.webp"))
    sheets[0].write_bytes(sheets[1].read_bytes())
    with pytest.raises(SystemExit, match="do not give the same images"):
        call("unpack", tmp_path / "none", *parts)
    assert not (tmp_path / "none").exists()


def longer(seeds=3, **options):
    """Trainings of the study, and as many of its longer ones."""
    known = numbers()
    cells = [cell for phase in numbers(**options).values() for cell in phase["cells"]]
    chosen = [cell for cell in cells if (cell["row"], cell["token_order"], cell["init"]) in run.LONG]
    chosen = [cell for cell in chosen if cell["seed"] < (3 if cell["row"] == "mamba" else seeds)]
    facts = {**known["cifar10-seeds"]["facts"], "steps": 234_300}
    return {**known, "cifar10-long": {"finished": True, "models": len(chosen), "facts": facts, "cells": chosen}}


def test_longer_training_is_judged_beside_the_seeds(monkeypatch):
    monkeypatch.setattr(make_pixels, "NUMBERS", longer())
    rows = {row[0]: row[1:] for row in cells_of(make_pixels.PARTS["epochs"]())}
    assert set(rows) == {FORMS[kind] for kind in run.LONG}
    assert rows["Mamba"][0] == "60.0 after 30, 60.0 after 300"
    assert rows["Mamba"][1].startswith("+29.")
    assert all(value.startswith(("+0.0 [-", "-0.0 [-")) for value in rows["Mamba"][4:])
    judged = make_pixels.PARTS["long_claims"]()
    assert "| 30 epochs | 300 epochs |" in judged
    assert "holds | **holds**" in judged
    assert "Mamba trained on reversed images" in judged
    assert "Mamba with a mean over tokens" not in judged
    said = make_pixels.answered()
    assert "**What does longer training change?** 300 epochs in place of 30, the asymmetry of 32 tokens" in said
    assert "three seeds at both (7 of 7)" in said
    assert "With N(0, 1) noise open in all 7" in said
    assert "After 300 epochs, Mamba, N(0, 1) noise on 32 tokens: the end's part +29." in said
    assert "what longer training than is shown here would change is open" in said
    assert "Models of both orders, 480 tokens: Mamba +30.0 [" in said
    assert "After 300 epochs, models of both orders, 480 tokens: Mamba +30.0 [" in said
    assert "Of 4 of these rows after 300 epochs, noise does in 4 (before in 4)" in make_pixels.in_short()
    assert "Mamba | 60.0 | **yes** +2" in make_pixels.PARTS["shown_longer"]()
    assert "longer training of" not in make_pixels.left()
    assert make_pixels.reached().startswith("Mamba 60.0 (67.4), Mamba with the published initialisation 60.0 (67.4)")
    printed = [row[:2] for row in cells_of(make_pixels.printed(make_pixels.TABLE1))]
    assert printed.count(["h3", "ours, right initialisation, 30 epochs"]) == 1
    assert printed.count(["h3", "ours, right initialisation, 300 epochs"]) == 1


def cells_of(shown):
    """Rows of a table of the page."""
    return [line.strip("| ").split(" | ") for line in shown.splitlines()[2:] if line.startswith("|")]


def test_what_longer_training_changes_is_said_with_its_interval(monkeypatch):
    monkeypatch.setattr(make_pixels, "NUMBERS", longer(hole=-1.0))
    _, said = sentences(trained_longer(make_pixels.NUMBERS, "cifar10"))
    assert "shown to rise in Transformer +1" in said[0]
    assert "shown to fall in Mamba -58" in said[0]
    known = longer()
    for phase in known.values():
        phase["facts"]["attack_regions"] = ATTACKED
    few = {**known, "cifar10-seeds": numbers(few=None)["cifar10-seeds"]}
    monkeypatch.setattr(make_pixels, "NUMBERS", few)
    line = next(
        row for row in cells_of(make_pixels.PARTS["long_claims"]()) if row[0].startswith("Mamba: attacks with fewer")
    )
    assert line[1:3] == ["–", "**holds**"]  # was not asked before: nothing has changed
    line = next(row for row in cells_of(make_pixels.claims(PAPER_CLAIMS)) if row[0] == line[0])
    assert line[2] == "**holds**"
    assert line[3].startswith("asked after 300 epochs alone: 1 of 1 shown")


def test_a_single_longer_seed_decides_nothing(monkeypatch):
    monkeypatch.setattr(make_pixels, "NUMBERS", longer(seeds=1))
    whole = ["Mamba", "Mamba with the published initialisation", "Mamba, reversed images"]
    assert [row[0] for row in cells_of(make_pixels.PARTS["epochs"]())] == whole
    assert "three seeds at both (3 of 7)" in make_pixels.answered()
    rest = "`transformer` (1 of 3), `h3` (1 of 3), `rwkv` (1 of 3), `transformer` in reversed order (1 of 3)"
    assert f"longer training of {rest}" in make_pixels.left()
    alone = longer()
    alone["cifar10-long"]["cells"] = [cell for cell in alone["cifar10-long"]["cells"] if cell["seed"] == 0]
    monkeypatch.setattr(make_pixels, "NUMBERS", alone)
    assert make_pixels.PARTS["epochs"]() == make_pixels.PARTS["long_claims"]() == "Not run yet."
    assert trained_longer(alone, "cifar10") is None


def test_recipes_stand_beside_the_seeds_where_they_are(monkeypatch):
    known = numbers()
    monkeypatch.setattr(make_pixels, "NUMBERS", known)
    assert make_pixels.rate_models() == "Not run yet."
    assert make_pixels.recipes_done() == "No model of theirs is trained."
    cells = [cell for phase in known.values() for cell in phase["cells"] if cell["row"] in ("rwkv", "transformer")]
    cells = [{**cell, "init": "published", "rate": 0.0001} for cell in cells if cell["token_order"] == "row"]
    recipes = {**known["cifar10-seeds"], "finished": False, "models": 15, "cells": cells}
    monkeypatch.setattr(make_pixels, "NUMBERS", {**known, "cifar10-recipes": recipes})
    rows = cells_of(make_pixels.rate_models())
    assert len(rows[0]) == len(rows[1]) - 2
    assert re.match(r"[+-]0\.\d \[", rows[1][-1])
    assert [row[:2] for row in rows] == [
        [name, rate] for name in ("RWKV", "Transformer") for rate in ("0.0001", "0.001")
    ]
    assert "6 of 15 models are trained and tested here (rwkv with the published" in make_pixels.recipes_done()
    whole = {**recipes, "finished": True}
    monkeypatch.setattr(make_pixels, "NUMBERS", {**known, "cifar10-recipes": whole})
    assert make_pixels.recipes_done() == "All 15 models are trained and tested."


def test_statements_of_the_recipes_are_counted(monkeypatch, tmp_path):
    monkeypatch.setattr(make_pixels, "NUMBERS", {})
    assert make_pixels.statements() == "Not run yet."
    line = {"what": "Mamba: the end", "stated": "81 %", "ours": "+8", "judged": True}
    stored = {}
    for scale, holds in (("lab", True), ("tiny", False)):
        config = {"recipe": "recency-table1", "scale": scale, "try_steps": None}
        lines = [{**line, "holds": holds}, {**line, "holds": None}, {**line, "judged": False, "holds": None}]
        stored[f"recency-table1-{scale}"] = SimpleNamespace(config=config, provenance={"lines": lines})
        (tmp_path / f"recency-table1-{scale}").mkdir()
        (tmp_path / f"recency-table1-{scale}" / "result.json").write_text("{}")
    monkeypatch.setattr("repflow.store.load_result", lambda folder: stored[folder.name])
    said = run.statements(tmp_path)
    assert {name: len(lines) for name, lines in said.items()} == {"recency-table1": 2}
    monkeypatch.setattr(make_pixels, "NUMBERS", {"statements": said})
    counts, rows = make_pixels.statements().split("\n\n")
    assert cells_of(counts) == [["`recency-table1`", "1", "0", "1"]]
    assert [row[2] for row in cells_of(rows)] == ["**holds**", "**open**"]


def test_relative_drops_are_of_accuracy_as_images_are(monkeypatch):
    monkeypatch.setattr(make_pixels, "NUMBERS", numbers())
    # Mamba loses 0.2 + 0.3 (place − 0.5) of 0.6
    said = make_pixels.relative()
    assert said.startswith("81.24 % and 2.30 % as printed; ours with the published initialisation 7")
    right = said.partition("; ours with the right initialisation ")[2]
    assert right.endswith(" after 30 epochs")
    last, first = (float(word) for word in re.findall(r"[-\d.]+(?= %)", right))
    assert last == pytest.approx(100 * (0.2 + 0.3 * (1008 / 1024 - 0.5)) / 0.6, abs=1.5)
    assert first == pytest.approx(100 * (0.2 - 0.3 * (0.5 - 16 / 1024)) / 0.6, abs=1.5)


def test_facts_of_a_run_that_was_begun_stay(small, tmp_path, capsys, monkeypatch):
    """A request that is refused, and a finished run that is asked for again, change nothing of what is known."""
    asked = [*SMALL, "--out", tmp_path, "--steps", "1", "--rates", "0.01"]
    small("screen", *asked)
    facts = tmp_path / run.FACTS / "drawn-screen.json"
    kept = json.loads(facts.read_text())
    facts.write_text(json.dumps({**kept, "device": "another machine"}))
    small("screen", *asked)
    assert json.loads(facts.read_text())["device"] == "another machine"
    with pytest.raises(ConfigChangedError, match="steps"):
        small("screen", *SMALL, "--out", tmp_path, "--steps", "2", "--rates", "0.01")
    assert json.loads(facts.read_text())["steps"] == 1


def test_models_of_the_recipes_are_gathered(tmp_path):
    """From finished shares too; read otherwise than the seeds, they are refused."""
    from repflow.studies.pixels.config import PixelsConfig

    words = ["rwkv:1:8:row:published:0.01:0", "transformer:1:8:row:published:0.01:0"]
    options = {"images": "drawn:8", "regions": ["windows:16", "paper"], "train_images": 20, "test_images": 20}
    options |= {"batch": 4, "steps": 2, "targets": ["all"], "attack_regions": ["fewer"], "flow_samples": 0}
    config = PixelsConfig(cells=words, device="cpu", **options)
    STUDY.run(config, out=tmp_path, name="classifiers-1")
    like = {**STUDY.facts(config), "batch": 4}
    known = run.recipes(tmp_path, like)
    assert (known["finished"], known["models"], [cell["row"] for cell in known["cells"]]) == (
        True,
        2,
        ["rwkv", "transformer"],
    )
    assert known["facts"]["attack_regions"] == [scaled_region(word, 64) for word in PAPER["fewer"]]
    assert np.shape(known["cells"][0]["success"])[1] == len(known["facts"]["attack_regions"])
    with pytest.raises(SystemExit, match="got other images_replaced in classifiers-1"):
        run.recipes(tmp_path, {**like, "images_replaced": 500})
    assert run.recipes(tmp_path / "none", like) is None
    STUDY.run(config, out=tmp_path, name="classifiers-2")
    with pytest.raises(SystemExit, match=r"expected one run of the recipes in .*; got classifiers-1, classifiers-2"):
        run.recipes(tmp_path, like)


def test_a_phase_is_finished_when_todays_rows_are():
    """Rows that were planned when it began, and are no more, are not waited for."""
    cells = [{"rate": rate} for rate in (0.001, 0.003, 0.01, 0.03)]
    assert run.planned_now("cifar10-extension-screen", cells) == 8 * 3 + 1
    assert run.planned_now("cifar10-extension-seeds", cells) == 8 * 3
    assert run.planned_now("cifar10-screen", []) == 5 * 3
    assert run.planned_now("cifar10-long", cells) == 7 * 3
    assert run.planned_now("cifar10-strong@s4d", cells) == 1


def test_a_phase_of_one_order_is_a_run_of_its_own():
    options = run.argparse.Namespace(set="cifar10", extension=False, phase="long", cell=None, state=None, least=0.0)
    options.layers, options.width = 3, 32
    known = [_screened(0.001, 0.5, row, init) for row, _, init in run.LONG]
    names = {"mamba:reversed": "@mamba_reversed", "reversed": "@reversed", None: ""}
    for options.only, ending in names.items():
        assert run.run_name("long", options) == f"cifar10-long{ending}"
        cells = run.cells_of("long", options, known)
        assert len(cells) == {"mamba:reversed": 3, "reversed": 6, None: 21}[options.only]
        assert options.only is None or all(":reversed:" in cell for cell in cells)


def test_rates_of_longer_training_come_from_both_screens(tmp_path):
    for name in ("cifar10-screen@mamba", "cifar10-extension-screen@rwkv", "cifar10-seeds@mamba"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text("{}")
    options = run.argparse.Namespace(out=tmp_path, set="cifar10", extension=False, only=None, phase="long", cell=None)
    assert run.screens(options) == ["cifar10-extension-screen@rwkv", "cifar10-screen@mamba"]
    options.phase = "seeds"
    assert run.screens(options) == ["cifar10-screen@mamba"]


def test_a_row_that_was_best_at_the_last_rate_is_screened_at_one_more():
    options = run.argparse.Namespace(rates="0.001,0.003,0.01")
    assert run.screened_rates(("rwkv", "row", "right"), options) == [0.001, 0.003, 0.01, 0.03]
    assert run.screened_rates(("mamba", "row", "right"), options) == [0.001, 0.003, 0.01]
    options.rates = "0.01"
    assert run.screened_rates(("rwkv", "row", "right"), options) == [0.01]


def test_the_frame_is_answered_by_models_in_one_frame():
    said = answers(read_study(numbers()))
    assert "Mamba with positions and MLPs has more of it than the Transformer: shown with N(0, 1) noise" in said
    assert "Mamba has more of it than the Transformer without positions and MLPs: shown with" in said
    alone = answers(read_study(numbers(kinds=[claims.MAMBA])))
    assert "that the Transformer alone has?** Not run yet" in alone
