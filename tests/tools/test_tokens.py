"""The token laboratory's study: claims judged on simulated trainings whose truth is known, phases, what is carried."""

import itertools
import json
import re

import numpy as np
import pytest

from docs import made_recipes, make_tokens
from repflow.dynamics.rates import REGIMES
from repflow.studies.architecture.config import ArchitectureConfig, check
from repflow.studies.classify.config import ClassifyConfig
from repflow.studies.pixels.config import PixelsConfig
from repflow.training.text import text_data
from tests.tools.phases import carried, program
from tools.tokens import run
from tools.tokens.claims import CLAIMS, Study, read_study

GAINS = {
    **{"mamba+positive+scaled": -0.03, "mamba+mixed+scaled": -0.02, "mamba+scaled": 0.0, "+leaky": -0.2},
    "mamba+complex+scaled": -0.06,
    **{"+chunks": -0.05, "+chunks+random": 0.02, "shift": 0.1},
}


def numbers(*, seeds=3, turned=False, leak=0.4, noise=0.001):
    """Trainings of every part with losses that are known; norms shrink with negative eigenvalues, grow with others."""
    random, phases = np.random.default_rng(0), {}
    for part, own in run.PARTS.items():
        cells = []
        for row in own.rows:
            for seed in range(seeds):
                sign = -1 if turned else 1
                gain = sign * sum(value for key, value in GAINS.items() if row == key or row.endswith(key))
                if "shift" in row:
                    gain += sign * (-0.2 if "positive" in row else 0.2)
                loss = 4 + 0.3 * seed + gain + noise * random.standard_normal()
                shrinks = "negative" in row and "-norm" in row
                course = (1 + np.arange(5)) ** (-0.5 if shrinks != turned else 0.5)
                cell = {"row": row, "seed": seed, "rate": 0.005, "perplexity": [float(np.exp(loss))] * 2}
                cell |= {"token_norm": course.tolist(), "whole_loss": loss, "parameters": 10.0}
                cell["prefix_loss"] = loss + (leak if "leaky" in row else 0)
                cells.append(cell)
        phases[f"{part}-seeds"] = {"finished": True, "models": len(cells), "facts": {}, "cells": cells}
    return phases


def words(**options):
    study = read_study(numbers(**options))
    return {claim.text: claim.verdict(study)[0] for claim in CLAIMS}


def test_what_is_true_of_simulated_trainings_is_said():
    said = words()
    assert said.pop("Fed the prefix alone, a model that sorts whole sequences gains nothing.") == "holds"
    assert set(said.values()) == {"holds"}, said


def test_what_is_false_is_refused():
    said = words(turned=True, leak=-2.0)
    assert set(said.values()) == {"does not hold"}, said
    assert said["Removing negative eigenvalues improves a Mamba."] == "does not hold"


def test_two_seeds_and_noise_leave_it_open():
    assert set(words(seeds=2).values()) == {"open"}
    noisy = words(noise=5.0)
    assert noisy["Causal sorting helps Mamba."] == "open"
    assert {claim.verdict(None) for claim in CLAIMS} == {("open", "not run")}
    only = {"mamba-seeds": numbers()["mamba-seeds"]}
    said = {claim.text: claim.verdict(read_study(only)) for claim in CLAIMS}
    assert said["Causal sorting helps Mamba."][0] == "holds"
    assert said["Causal sorting helps a Transformer."] == ("open", "not run")


def stored(**options):
    """Simulated phases with all that a table keeps, a sweep of rates among them."""
    phases = numbers(**options)
    for part in run.PARTS:
        facts = {"steps": 2000, "batch": 64, "device": "H200"}
        for cell in phases[f"{part}-seeds"]["cells"]:
            cell |= {"layers": 4, "width": 128, "length": 256, "on_the_way": [90.0, 9.0], "read_at": [0, 2000]}
            cell |= {"start_norm": [0.5], "spectral_norm": [0.6], "positive_share": 0.5, "seconds": 2.0, "tokens": 1e6}
            cell |= {"beside": 1, "command": "repflow architecture ...", "cell": f"{cell['row']}:4"}
        cells = [{**cell, "rate": rate} for cell in phases[f"{part}-seeds"]["cells"] for rate in (0.001, 0.01)]
        phases[f"{part}-screen"] = {"finished": True, "models": len(cells), "cells": cells}
        for phase in ("screen", "seeds"):
            phases[f"{part}-{phase}"]["facts"] = facts
    return phases


def test_every_stored_model_has_a_command_of_its_own():
    shown = re.findall(r"`repflow architecture --cells (\S+) [^`]+`", make_tokens.cell_commands())
    phases = {name: known for name, known in make_tokens.NUMBERS.items() if "facts" in known}
    assert sorted(shown) == sorted(cell["cell"] for known in phases.values() for cell in known["cells"])
    page = make_tokens.PAGE.read_text(encoding="utf-8")
    joint = {cell["command"] for known in phases.values() for cell in known["cells"]}
    assert all(f"`{command}`" in page for command in joint)
    config = [ArchitectureConfig(cells=[cell]).grid() for cell in shown]
    assert all(len(cells) == 1 for cells in config)


def test_every_model_of_a_recipe_has_a_command():
    """Rows, rates and seeds of a run's line spell as many models as it has, each of which can be asked for."""
    studies = {"architecture": ArchitectureConfig, "classify": ClassifyConfig, "pixels": PixelsConfig}
    shown = made_recipes.commands(make_tokens.NUMBERS).splitlines()[2:]
    assert len(shown) == len(made_recipes.grids(make_tokens.NUMBERS, ("lab", "paper")))
    for line in shown:
        _, models, command, *values = [part.strip(" `") for part in line.strip("| ").split("|")]
        rows, rates, seeds = ([value.strip(" `") for value in part.split(",")] for part in values)
        study, template = re.match(r"repflow (\w+) --cells (\S+) ", command).groups()
        words = [
            template.replace("ROW", row).replace("RATE", rate).replace("SEED", seed)
            for row, rate, seed in itertools.product(rows, rates, seeds)
        ]
        assert len(words) == int(models)
        assert [str(cell) for cell in studies[study](cells=words).grid()] == words


def test_what_the_study_lacks_is_named_with_what_was_trained_in_its_place(monkeypatch):
    phases = {name: phase for name, phase in stored().items() if not name.startswith(("h3", "shift"))}
    phases["recipes"] = {"dynamics-table6 lab": {"run": "dynamics-lab/o-1", "steps": 600, "rows": ["h3", "h3+leaky"]}}
    monkeypatch.setattr(make_tokens, "NUMBERS", phases)
    lines = make_tokens.missing().splitlines()
    assert [line.partition(":")[0] for line in lines if line.startswith("-")] == [
        "- eigenvalues as the public code scales them, complex ones",
        "- orders of tokens, H3",
    ]
    assert lines[2].endswith("`mamba+negative+shift` in no stored run: open.")
    assert "`h3`, `h3+leaky` for 600 steps in `o-1`; `h3+chunks`" in lines[3]
    monkeypatch.setattr(make_tokens, "NUMBERS", stored())
    assert make_tokens.missing() == "Nothing is missing."


def test_a_rate_without_the_last_block_is_said_where_all_seeds_follow_it():
    slow, none = [1.0, *np.sqrt(2.0 * np.arange(1, 5) + 1)], [1.0, 9.0, 1.0, 9.0, 1.0]
    cells = [{"row": "a", "token_norm": slow}] * 2 + [{"row": "b", "token_norm": norms} for norms in (slow, none)]
    word = make_tokens.shortened(Study(cells), "a")
    assert word in REGIMES
    assert make_tokens.shortened(Study(cells), "b") == f"its seeds differ: {word}, none"


def diverged(cell):
    return {**cell, "perplexity": [None, None], "token_norm": [None] * 5, "on_the_way": [90.0, None]} | {
        **{"whole_loss": None, "prefix_loss": None, "spectral_norm": [None], "positive_share": None, "seconds": None}
    }


def page_of(phases, monkeypatch):
    monkeypatch.setattr(make_tokens, "NUMBERS", phases)
    text = make_tokens.page(make_tokens.PAGE.read_text(encoding="utf-8"))
    assert not re.search(r"\bnan\b", text)
    return text


def test_the_page_says_what_the_numbers_show_and_no_more(monkeypatch):
    whole = page_of(stored(), monkeypatch)
    assert "| **open** |" not in whole
    assert "worse than a model that never sorted" in whole
    open_ones = [line for line in whole.splitlines() if "would fit" in line]
    assert all("mixed against free" in line for line in open_ones)  # the one thing that the simulation leaves alike
    few = page_of(stored(seeds=2), monkeypatch)
    assert few.count("| **open** |") == len(CLAIMS)
    noisy = page_of(stored(noise=5.0), monkeypatch)
    assert "would fit" in noisy
    assert "so no gain is shown" in noisy


@pytest.mark.parametrize(("word", "verdict"), [("better", "holds"), ("worse", "does not hold"), ("open", "open")])
def test_the_page_says_of_reviews_what_the_study_said(monkeypatch, word, verdict):
    cells = [{"cell": "c", "row": "mamba", "rate": 0.001, "seed": seed, "command": "x"} for seed in (0, 1)]
    cells = [{**cell, "accuracy": value} for cell, value in zip(cells, (0.75, None), strict=True)]
    said = {"difference": f"a against b: +1.0 points over 5 seeds: {word}; the better of 2 rates"}
    facts = {"texts": 2000, "tokens": 512, "folds": 5, "steps": 1000, "said": said}
    text = page_of({"reviews": {**facts, "cells": cells}}, monkeypatch)
    assert f"classify them better? **{verdict}** (2,000 reviews, their first 512 tokens" in text
    assert "| mamba | 0.001 | 75.0 | 1 |" in text


def test_the_page_of_models_that_diverged_are_missing_or_had_fewer_steps(monkeypatch):
    phases = stored()
    for phase in phases.values():
        phase["cells"] = [diverged(cell) if cell["seed"] == 2 else cell for cell in phase["cells"]]
    text = page_of(phases, monkeypatch)
    assert "| 3, 1 diverged |" in text
    assert text.count("| **open** |") == len(CLAIMS)
    for phase in phases.values():
        phase["cells"] = [diverged(cell) for cell in phase["cells"]]
    text = page_of(phases, monkeypatch)
    assert "| diverged | diverged | none |" in text
    assert text.count("| **open** | not run |") == len(CLAIMS)
    phases = {name: phase for name, phase in stored().items() if not name.startswith("norms")}
    phases["mamba-seeds"]["cells"] = phases["mamba-seeds"]["cells"][:8]  # stopped in the middle
    phases["shift-seeds"]["facts"] = {**phases["shift-seeds"]["facts"], "steps": 500}
    text = page_of(phases, monkeypatch)
    assert "no seed of both is trained to the end" in text
    assert "trained for different numbers of steps" in text
    assert (
        "| The shift makes the gap between positive and negative wider. | the gap at equal scale | **open** |" in text
    )


def recipe(row_gains, *, steps=600):
    """A recipe at lab whose rows have known losses, three seeds each."""
    one = {"layers": 2, "width": 64, "length": 256, "rate": 0.01, "steps": steps}
    cells = [
        {**one, "row": row, "seed": seed, "perplexity": [float(np.exp(3 + 0.1 * seed + gain + 0.001 * (seed == at)))]}
        for at, (row, gain) in enumerate(row_gains.items())
        for seed in range(3)
    ]
    facts = {"models": 2 * len(cells), "steps": steps, "tried": False, "device": "H200", "diverged": [], "lines": []}
    return {**facts, "run": "dynamics-lab/orders-1", "models_at_best_rates": cells}


def test_what_a_recipe_shows_of_a_claim_that_the_study_lacks_stands_apart(monkeypatch):
    gains = {"h3": 0.0, "h3+chunks": -0.1, "h3+chunks+identity": 0.0, "h3+chunks+random": 0.05, "mamba": 0.0}
    gains["mamba+chunks"] = 0.3  # the study has these rows: what it says is not said again
    phases = {name: phase for name, phase in stored().items() if not name.startswith("h3")}
    phases["recipes"] = {"dynamics-table6 lab": recipe(gains), "dynamics-table6 paper": recipe(gains, steps=20)}
    text = page_of(phases, monkeypatch)
    control = "tokens as they come, the same chunks in their own order, and in a fixed random order"
    shown = f"| Causal sorting helps H3. | {control} | **open** | not run in the study; shorter trainings are below |"
    assert shown in text
    (line,) = [line for line in text.splitlines() if "2 layers of width 64, 600 steps" in line]
    assert line.startswith("| Causal sorting helps H3. | `orders-1` |")
    assert "| **holds** | h3+chunks against h3: perplexity -9.5 %" in line
    phases["recipes"]["dynamics-table6 lab"] = recipe({row: -gain for row, gain in gains.items()})
    assert "| **does not hold** | h3+chunks against h3: perplexity +10.5 %" in page_of(phases, monkeypatch)
    del phases["recipes"]
    assert "shorter trainings are below" not in page_of(phases, monkeypatch)


@pytest.fixture
def small(monkeypatch, tmp_path):
    text_data("english", share=0.2).save(tmp_path / "text")
    rows = ("mamba/4", "mamba/4+leaky", "mamba/4+chunks", "mamba/4+chunks+random")
    monkeypatch.setitem(run.PARTS, "mamba", run.PartOfStudy(rows, (0.01, 0.02)))
    options = ["--part", "mamba", "--data", tmp_path / "text", "--steps", 3, "--layers", 1, "--width", 8]
    options += ["--length", 16, "--batch", 2, "--chunk", 4, "--positions", 5, "--seeds", 1, "--device", "cpu"]
    return program(run, monkeypatch), options


def test_phases_follow_one_another_and_are_carried_half_done(small, tmp_path, capsys):
    call, options = small
    folder = tmp_path / "study"
    folder.mkdir()
    here = carried(call, options, ("screen", "seeds"), "mamba", folder, capsys)
    target = tmp_path / "numbers.json"
    call("table", "--out", here, "--to", target)
    stored = json.loads(target.read_text())
    assert [stored[f"mamba-{phase}"]["models"] for phase in ("screen", "seeds")] == [6, 4]
    leaky = stored["mamba-seeds"]["cells"][1]
    assert leaky["row"] == "mamba/4+leaky"
    assert leaky["prefix_loss"] - leaky["whole_loss"] == pytest.approx(leaky["leak"], abs=1e-4)
    assert leaky["command"].startswith("repflow architecture --cells mamba/4+leaky:1:8:16:")
    assert len(leaky["on_the_way"]) == len(leaky["read_at"]) > 1
    assert {claim.verdict(read_study(stored))[0] for claim in CLAIMS} == {"open"}


@pytest.mark.parametrize("part", run.PARTS)
def test_every_row_of_the_study_is_a_model(part, monkeypatch):
    monkeypatch.setattr("sys.argv", ["run", "screen", "--part", part, "--data", "english"])
    options = run.parsed()
    known = [{"row": row, "rate": 0.002, "perplexity": [9.0]} for row in run.PARTS[part].rows]
    for phase in ("screen", "seeds"):
        check(run.config_of(phase, options, known))


def test_the_best_rate_and_that_of_a_control():
    known = [{"row": "mamba+chunks", "rate": rate, "perplexity": [value]} for rate, value in ((0.1, None), (0.2, 7.0))]
    assert run.rate_of("mamba+chunks+identity", known) == 0.2
    with pytest.raises(SystemExit, match=r"no rate of mamba\+leaky"):
        run.rate_of("mamba+leaky", known)
