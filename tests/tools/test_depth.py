"""Studies of depth, remedies and hybrids: claims judged on simulated trainings whose truth is known; phases; parts."""

import json
import re
import shutil
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from docs import make_depth, make_remedies
from tests.tools.phases import carried, program
from tools import carry
from tools.depth import depths, plan, remedies, run
from tools.depth.claim import Study, at_better_rates, read_study
from tools.depth.plan import CONTEXTS, DEPTHS, HYBRIDS, PLANS, REMEDIES, Plan, Settings, best_rate, chosen_row, picked


def model(row, layers, length, seed, *, loss, recall, similarity=0.3, reach=20.0, rate=0.003):
    shape = {"row": row, "layers": layers, "width": 144, "length": length, "rate": rate, "seed": seed}
    recalled = {"recall": [recall + 0.1, recall, recall - 0.1], "loss": loss, "last_loss": loss + 1 - recall}
    inside = {"similarity": [0.1] * layers + [similarity], "half_reach": reach, "validation_loss": loss}
    return {**shape, **recalled, **inside}


def deep(worse=0.1, tolerated=0.2, follows=1.0, seeds=2, noise=0.003, row="mamba"):
    """Loss rises with depth at the short context and falls at the long one; recall goes the other way."""
    rng, cells = np.random.default_rng(0), []
    for seed in range(seeds):
        luck = 0.05 * rng.standard_normal()
        for layers in DEPTHS:
            for length in CONTEXTS:
                bend = (worse - tolerated * (length == CONTEXTS[1])) * (np.log2(layers) - 2) / 3
                loss = 2 + luck + bend + noise * rng.standard_normal()
                recall = 0.5 - bend + luck + noise * rng.standard_normal()
                similar = 0.4 + follows * bend + 0.01 * rng.standard_normal()
                reach = float(np.exp(3 - 3 * follows * bend + 0.02 * rng.standard_normal()))
                cells.append(
                    model(row, layers, length, seed, loss=loss, recall=recall, similarity=similar, reach=reach)
                )
    return Study(cells)


def words(claims, study):
    return [claim.verdict(study)[0] for claim in claims]


CORE = [claim for claim in depths.CLAIMS if claim.study == depths.CORE]


def test_what_is_true_of_simulated_depths_is_said():
    assert words(CORE, deep()) == ["holds"] * 9
    assert words(CORE, deep(worse=-0.1, tolerated=-0.2, follows=-1.0)) == ["does not hold"] * 9


def test_noise_decides_nothing_and_no_data_is_open():
    said = words(CORE, deep(worse=0.0, tolerated=0.0, noise=0.05))
    assert said.count("open") >= 8
    assert {claim.verdict(None) for claim in depths.CLAIMS} == {("open", "not run")}
    assert CORE[0].verdict(deep(seeds=3))[1].endswith(" nats, 3 seeds (holds)")
    missing = Study(deep().cells[1:])
    assert words(CORE[:5], missing) == ["open", "open", "holds", "open", "open"]  # the third asks another context


def guessing(cell, noise=0.0):
    """The same model, if it answered with any of the values in its row."""
    pairs = [max(1, cell["length"] * part // 64) for part in (1, 2, 4, 8, 16)]
    return {**cell, "recall": [1 / count + noise * cell["seed"] for count in pairs]}


def test_what_goes_together_in_a_seed_does_not_make_depths_go_together():
    """Loss and similarity of a model share its luck, and depths are alike: about one grid in twenty says otherwise."""
    rng, said = np.random.default_rng(1), 0
    for _ in range(100):
        cells = []
        for layers, length, seed in product(DEPTHS, CONTEXTS, (1, 2)):
            luck = 0.01 * rng.standard_normal()
            loss, similar = (middle + luck + 0.002 * rng.standard_normal() for middle in (2, 0.4))
            cells.append(model("mamba", layers, length, seed, loss=loss, similarity=similar, recall=0.5, reach=9.0))
        said += Study(cells).ranks("similarity", "loss", lambda kind: kind[2]).chance <= 0.05
    assert said <= 13  # of 100 at 5 %: more have a chance below 1 in 1,000


def test_models_that_only_guess_say_nothing_of_recall():
    """Also where one depth guesses a little better than another in every seed."""
    asked = [claim for claim in CORE if "recall" in claim.text]
    plain = [guessing(cell, 1e-4) for cell in deep().cells]
    better = [{**c, "recall": [v - 1e-3 * c["layers"] / 4 for v in c["recall"]]} for c in plain]
    for cells in (plain, better):
        assert words(asked, Study(cells)) == ["open"] * 4
        assert asked[0].verdict(Study(cells))[1].startswith("none of 4 models recalls more than twice what guessing")
        assert asked[1].verdict(Study(cells))[1].startswith("at 256 tokens none of 4 models recalls")
    half = Study([guessing(cell) if cell["length"] == CONTEXTS[1] else cell for cell in deep().cells])
    assert words(asked[:2], half) == ["holds", "open"]  # nothing can be lost at the long context
    assert asked[1].verdict(half)[1].startswith("at 1,024 tokens none of 4")
    treated_ones = Study([guessing(cell, 1e-5) for cell in treated({}).cells])
    assert {c.verdict(treated_ones)[0] for c in remedies.PRIMARY if "recall" in c.text} == {"open"}
    mixed = Study([guessing(cell) for cell in hybrids().cells])
    assert words([remedies.HYBRID_CLAIMS[0], remedies.HYBRID_CLAIMS[2]], mixed) == ["open", "open"]


def page_of(make, phases, monkeypatch):
    for name in list(make_depth.NUMBERS):
        monkeypatch.delitem(make_depth.NUMBERS, name)
    for name, phase in phases.items():
        facts = {
            "finished": True,
            "models": len(phase),
            "steps": 5000,
            "batch": 8,
            "device": "H200",
            "commands": {"256": "..."},
        }
        monkeypatch.setitem(make_depth.NUMBERS, name, {**facts, "cells": [{**cell, "cell": "c"} for cell in phase]})
    monkeypatch.setitem(make.PARTS, "sizes", lambda: "")  # counts parameters, as the pages' own tests do
    text = make.page(make.PAGE.read_text(encoding="utf-8"))
    assert not re.search(r"\bnan\b", text)
    return text


def lost(cell):
    """A model that diverged."""
    gone = {"recall": None, "loss": None, "last_loss": None, "validation_loss": None, "similarity": None}
    return {**cell, **gone, "half_reach": None}


def test_pages_of_depths_that_diverged(monkeypatch):
    cells = [lost(c) if (c["layers"], c["length"], c["seed"]) == (32, 256, 1) else c for c in deep().cells]
    text = page_of(make_depth, {"depth-screen": cells, "depth-seeds": cells}, monkeypatch)
    assert "| mamba | 32 | 256 | 2, 1 diverged | 1 |" in text
    assert "32 less 4 layers, 256 tokens diverged or not trained (open)" in text
    assert "| **holds** | 16 less 4 layers, 1,024 tokens" in text
    assert "The core is finished; of the extension not finished: `depth-third-seeds`" in text
    assert "not run" in page_of(make_depth, {"depth-seeds": [lost(cell) for cell in cells]}, monkeypatch)


def test_what_the_page_says_of_rates_recall_and_where_tokens_become_alike(monkeypatch):
    """One depth is 0.2 above the others at each context, one rate 0.1; similarity falls and rises in the last block."""
    apart, inside = {DEPTHS[0]: 0.2}, {"onset": 1 - 0.5 / 4}
    phases = {name: [] for name in ("depth-screen", "depth-seeds", "depth-rate-seeds")}
    for (name, rate), layers, length, seed in product(
        [("depth-seeds", 0.01), ("depth-rate-seeds", 0.003)], DEPTHS, CONTEXTS, (1, 2)
    ):
        cell = model("mamba", layers, length, seed, loss=1 + apart.get(layers, 0) + (rate == 0.003) / 10, recall=0.07)
        cell |= {"rate": rate, "similarity": [0.4, *[0.1] * (layers - 1), 0.3], **inside}
        phases[name].append(cell)
        phases["depth-screen"].append(cell | {"last_loss": 3 + layers * rate})
    text = page_of(make_depth, phases, monkeypatch)
    for words in (
        "0.200 nats at 256 tokens, 0.200 nats at 1,024 tokens",
        "0.028 for 4, 0.056 for 8, 0.112 for 16, 0.224 for 32",
        "the best of 32 models has 7.0 % of its answers right, guessing among the values of a row 9.7 %; 32 models",
        "in 32 of 32 models tokens are most alike at the embedding, and half of the rise behind it is reached 0.5",
    ):
        assert words in text


def test_every_stored_model_has_its_command_on_a_page():
    printed = {}
    for make in (make_depth, make_remedies):
        lines = re.findall(r"^`(repflow .*?)` with CELL one of (.*)$", make.PAGE.read_text(encoding="utf-8"), re.M)
        for command, cells in lines:
            printed.setdefault(command, set()).update(re.findall("`([^`]+)`", cells))
    for name, phase in make_depth.NUMBERS.items():
        for cell in phase["cells"]:
            assert cell["cell"] in printed[phase["commands"][str(cell["length"])]], name


def test_only_what_is_missing_is_listed_as_open(monkeypatch):
    for name in ("norms-screen", "norms-seeds"):
        monkeypatch.setitem(make_depth.NUMBERS, name, {"finished": True, "cells": [], "models": 0})
    assert make_depth.open_list("hybrids", "norms") == "- Every phase is finished."
    assert make_depth.open_list("remedies", "norms").count("\n") == 1


def test_pages_of_remedies_and_hybrids_half_done(monkeypatch):
    study = treated({"diversity": (0.2, 0.0, -0.1)}).cells
    cells = [lost(c) if c["row"].startswith("mamba2+supervision") else c for c in study]
    base = [c for c in study if c["row"] in plan.BASES and c["seed"] == 0]
    extra = [
        model(row, 12, 256, seed, loss=2.0 + 0.01 * seed, recall=0.5 + share + 0.01 * seed**2)
        for row, share in (("mamba2", 0.0), (plan.MIXED, 0.3))
        for seed in (1, 2, 3)
    ]
    phases = {
        "remedies-rates": base,
        "remedies-screen": cells,
        "remedies-seeds": cells,
        "hybrids-screen": hybrids().cells,
    }
    phases |= {"hybrids-seeds": [], "remedies-more-seeds": extra, "norms-seeds": cells}
    text = page_of(make_remedies, phases, monkeypatch)
    assert "| A diversity loss raises recall of Mamba-2." in text
    assert "**open** | diverged or not trained (open) |" in text
    assert "| diverged |  | taken |" in text
    assert "Attention in every fourth layer (`3xmamba2.attention`) raises recall of Mamba-2. | gain" in text
    assert "+30.0 [" in text


def test_intervals_of_shares_end_where_shares_do():
    cells = [
        model("mamba", 4, 256, seed, loss=2.0 + seed, recall=recall) for seed, recall in enumerate((0.0, 0.01, 0.05))
    ]
    loss, recall = make_depth.means(Study(cells), ("mamba", 4, 256), ["loss", "recall"])[2:]
    assert loss == "3.000 [0.516, 5.484]"
    assert recall.startswith("2.0 [0.0, ")


def test_a_third_seed_counts_once_its_run_is_finished():
    two, three = deep(seeds=2), deep(seeds=3)
    third = [cell for cell in three.cells if cell["seed"] == 2]
    numbers = {"depth-seeds": {"finished": True, "cells": two.cells}}
    assert len(read_study(numbers, depths.CORE).cells) == 16
    numbers["depth-third-seeds"] = {"finished": False, "cells": third[:3]}
    assert len(read_study(numbers, depths.CORE).cells) == 16
    numbers["depth-third-seeds"] = {"finished": True, "cells": third}
    assert len(read_study(numbers, depths.CORE).cells) == 24
    assert read_study({}, depths.CORE) is None


def test_nothing_is_judged_before_a_phase_is_finished():
    cells = deep(seeds=2).cells
    claim = next(claim for claim in depths.CLAIMS if claim.verdict(deep(seeds=2))[0] != "open")
    for finished in (True, False):
        word, words = claim.verdict(read_study({"depth-seeds": {"finished": finished, "cells": cells}}, depths.CORE))
        assert (word != "open") is finished
    assert words == "16 models so far; judged when all are trained"


def treated(effect, noise=0.004, seeds=3):
    """Remedies on both bases; `effect` gives gain of recall, loss and similarity by remedy."""
    rng, cells = np.random.default_rng(1), []
    for base in plan.BASES:
        for name in (None, *REMEDIES):
            if (base, name) == (plan.TRANSFORMER, "poles"):
                continue
            gain, cost, similar = effect.get(name, (0.0, 0.0, 0.0))
            row = base if name is None else base + REMEDIES[name][1]
            for seed in range(seeds):
                loss = 2 + 0.1 * seed + cost + noise * rng.standard_normal()
                recall = 0.5 + 0.05 * seed + gain + noise * rng.standard_normal()
                similarity = 0.4 + similar + noise * rng.standard_normal()
                cells.append(model(row, 12, 256, seed, loss=loss, recall=recall, similarity=similarity))
    return Study(cells)


def test_remedies_are_judged_by_what_they_do():
    study = treated({"diversity": (0.2, 0.0, -0.1), "supervision": (-0.1, 0.1, 0.1), "poles": (0.1, -0.05, 0.0)})
    said = {claim.text: claim.verdict(study)[0] for claim in remedies.PRIMARY}
    for who in ("Mamba-2", "the Transformer"):
        assert said[f"A diversity loss raises recall of {who}."] == "holds"
        assert said[f"A diversity loss costs {who} at most 2 % of perplexity."] == "holds"
        assert said[f"Intermediate supervision raises recall of {who}."] == "does not hold"
        assert said[f"Intermediate supervision costs {who} at most 2 % of perplexity."] == "does not hold"
    assert said["Polarization raises recall of Mamba-2."] == "holds"
    assert not any("Polarization" in text and "Transformer" in text for text in said)
    secondary = [claim.verdict(study)[0] for claim in remedies.SECONDARY]
    assert secondary[:2] == ["holds", "does not hold"]


def test_remedies_that_do_nothing_raise_recall_in_few_draws():
    """At 5 % over the remedies of a base, though four are asked."""
    rng, false = np.random.default_rng(2), 0
    for _ in range(200):
        rows = ["mamba2", *(f"mamba2{words[0]}" for words in REMEDIES.values())]
        draws = 0.5 + 0.05 * rng.standard_normal((len(rows), 3))
        cells = [
            model(row, 12, 256, seed, loss=2.0, recall=value)
            for row, values in zip(rows, draws.tolist(), strict=True)
            for seed, value in enumerate(values)
        ]
        changes = remedies.gains(Study(cells), "mamba2", "recall", REMEDIES)
        false += min(remedies.adjusted(changes).values()) < 0.05
    assert false / 200 <= 0.09


def hybrids(place=0.1, share=0.3, noise=0.01):
    rng, cells = np.random.default_rng(3), []
    at = {"first": -0.5, "spread": 0.0, "last": 0.5}
    for (ratio, where), row in HYBRIDS.items():
        value = place * at[where] + share * int(ratio.split()[0]) / 12 + noise * rng.standard_normal()
        cells.append(model(row, 12, 256, 0, loss=2 - value, recall=0.4 + value))
    return Study(cells)


def test_hybrids_are_judged_by_place_and_share():
    assert words(remedies.HYBRID_CLAIMS[:4], hybrids()) == ["holds"] * 4
    assert words(remedies.HYBRID_CLAIMS[:4], hybrids(place=-0.1, share=-0.3)) == ["does not hold"] * 4
    assert words(remedies.HYBRID_CLAIMS[:4], hybrids(place=0.0, share=0.0, noise=0.1)).count("open") >= 3
    assert words(remedies.HYBRID_CLAIMS[:1], Study(hybrids().cells[:5])) == ["open"]


def test_the_order_of_hybrids_is_asked_of_new_seeds():
    chosen = picked(hybrids(noise=0.001).cells)
    assert [row for row, _ in chosen] == ["6xmamba2..6xattention", chosen[1][0], "attention..11xmamba2"]
    cells = [
        model(row, 12, 256, seed, loss=2.0, recall=0.9 - 0.2 * place + 0.003 * seed * place)
        for place, (row, _) in enumerate(chosen)
        for seed in (1, 2, 3)
    ]
    assert words(remedies.HYBRID_CLAIMS[4:], Study(cells)) == ["holds"]
    turned = [{**cell, "recall": [1 - value for value in cell["recall"]]} for cell in cells]
    assert words(remedies.HYBRID_CLAIMS[4:], Study(turned)) == ["does not hold"]


def test_rates_and_strengths_are_chosen_by_the_rules():
    known = [model("mamba2", 12, 256, 0, loss=2.0, recall=0.5, rate=0.003)]
    known += [model("mamba2", 12, 256, 0, loss=2.5, recall=0.5, rate=0.01)]
    assert best_rate(known, "mamba2", 12) == 0.003
    losses = {"+diversity@0.03": 2.0, "+diversity@0.1": 2.015, "+diversity@0.3": 2.03}
    known += [model(f"mamba2{word}", 12, 256, 0, loss=loss, recall=0.5) for word, loss in losses.items()]
    assert chosen_row(known, "mamba2", REMEDIES["diversity"]) == "mamba2+diversity@0.1"
    dear = [{**cell, "validation_loss": 3.0} if "+" in cell["row"] else cell for cell in known]
    assert chosen_row(dear, "mamba2", REMEDIES["diversity"]) == "mamba2+diversity@0.03"
    known[0]["last_loss"] = None
    assert best_rate(known, "mamba2", 12) == 0.01
    with pytest.raises(SystemExit, match="no screened rate of mamba with 12 layers"):
        best_rate(known, "mamba", 12)


def test_the_other_rate_has_the_same_depths_and_seeds():
    screen = [
        model("mamba", d, w, 0, loss=2 + (r == 0.003) * (d == 16), recall=0, rate=r)
        for d in plan.DEPTHS
        for w in plan.CONTEXTS
        for r in plan.RATES
    ]
    known = {"depth-screen": [{**cell, "last_loss": cell["loss"] + (cell["rate"] == 0.01) * 0.1} for cell in screen]}
    taken, other = (PLANS[name].cells("seeds", known) for name in ("depth", "depth-rate"))
    assert len(taken) == len(other) == 16
    for one, two in zip(taken, other, strict=True):
        assert sorted([one.split(":")[4], two.split(":")[4]]) == ["0.003", "0.01"]
        assert one.split(":")[:4] + one.split(":")[5:] == two.split(":")[:4] + two.split(":")[5:]
    assert {word.split(":")[4] for word in taken if word.startswith("mamba:16:")} == {"0.01"}


def test_hybrids_at_a_lower_rate_are_the_same_hybrids():
    screen = {"hybrids-screen": [model(row, 12, 256, 0, loss=1, recall=0.5, rate=0.01) for row in HYBRIDS.values()]}
    words = PLANS["hybrids-low"].cells("screen", screen)
    assert [word.split(":")[0] for word in words] == list(HYBRIDS.values())
    assert {word.split(":")[4] for word in words} == {"0.003"}


def test_the_better_rate_of_each_kind_is_chosen_on_validation():
    def phase(rate, losses, finished=True):
        cells = [
            {**model("mamba", d, w, seed, loss=9.0, recall=0, rate=rate), "validation_loss": losses[d]}
            for d in (4, 32)
            for w in plan.CONTEXTS
            for seed in (1, 2)
        ]
        return {"finished": finished, "cells": cells}

    one, two = phase(0.003, {4: 1.0, 32: 1.3}), phase(0.01, {4: 1.1, 32: 1.2})
    assert at_better_rates({"a": one, "b": {**two, "finished": False}}, "a", "b") == {}
    chosen = at_better_rates({"a": one, "b": two}, "a", "b")["a"]["cells"]
    assert {(cell["layers"], cell["rate"]) for cell in chosen} == {(4, 0.003), (32, 0.01)}
    assert len(chosen) == 8
    two["cells"][-1]["validation_loss"] = None  # of 32 layers at 1,024 tokens: its rate is not taken there
    chosen = at_better_rates({"a": one, "b": two}, "a", "b")["a"]["cells"]
    assert {cell["rate"] for cell in chosen if (cell["layers"], cell["length"]) == (32, 1024)} == {0.003}


def test_every_model_of_every_phase_is_one_of_one_size():
    """Widths are found for all rows: those of a study differ by less than a fifth in their parameters."""
    from repflow.spec.architecture import Numbers, parse_architecture
    from repflow.studies.architecture.size import count_parameters, matched_width

    numbers = Numbers(head_dim=16)
    for one in PLANS.values():
        row, depth = one.settings.match
        rows = {"depth": [{"mamba2": "mamba2", "transformer": plan.TRANSFORMER}.get(one.part, "mamba")]}
        rows["norms"] = [base + word for base in plan.BASES for word in plan.NORMS]
        rows |= (
            {"remedies": [b + w for b in plan.BASES for r in one._applied(b) for w in one._remedy(r)]}
            if (one.study == "remedies")
            else {"hybrids": list(HYBRIDS.values())}
        )
        sizes = []
        for word in rows[one.study]:
            parse_architecture(word)
            for layers in one.settings.layers:
                width = matched_width(word, row, layers, one.settings.width, 257 + plan.IDS, numbers, goal_layers=depth)
                sizes.append(count_parameters(word, layers, width, 257 + plan.IDS, numbers))
        assert max(sizes) < 1.2 * min(sizes), one


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Every study with models that train in moments, on the built-in text."""
    tiny = Settings(layers=(2, 4), width=80, windows=(16,), rates=(0.01,), match=("mamba", 2))
    flat = replace(tiny, layers=(2,), width=88, match=("mamba2", 2))
    plans = {"depth": Plan("depth", "core", ("screen", "seeds"), tiny)}
    plans |= {"remedies": Plan("remedies", "core", ("rates", "screen", "seeds"), replace(flat, seeds=(1,)))}
    plans |= {"norms": Plan("norms", "core", ("screen", "seeds"), replace(flat, seeds=(1,)))}
    monkeypatch.setattr(run, "PLANS", plans)
    text = tmp_path / "text"
    few = tmp_path / "few.txt"
    few.write_text(
        "\n<|endoftext|>\n".join(["Ships carry grain.", "A third of it is lost.", "So they say.", "They do."])
    )
    prepared = ("prepare", "--corpus", "english", "--held-out", few, "--text", text)
    options = ("--text", text, "--steps", 3, "--batch-tokens", 32)
    recall = ("--recall-ids", 32, "--recall-pairs", "1,2", "--recall-rows", 4)
    return prepared, (*options, *recall, "--flow-samples", 2, "--heads", 2, "--device", "cpu")


@pytest.mark.slow  # CI has those of the token laboratory, by the same tools/phases.py
def test_phases_stop_are_carried_and_go_on(small, monkeypatch, tmp_path, capsys):
    call = program(run, monkeypatch)
    prepared, options = small
    call(*prepared)
    here = carried(call, options, ("screen", "seeds"), "depth", tmp_path, capsys)
    call("seeds", *options, "--out", here, "--dry-run")
    assert "4 models" in capsys.readouterr().out
    target = tmp_path / "numbers.json"
    call("table", "--out", here, "--to", target)
    numbers = json.loads(target.read_text())
    assert {name: (phase["finished"], len(phase["cells"])) for name, phase in numbers.items()} == {
        "depth-screen": (True, 2),
        "depth-seeds": (True, 4),
    }
    cell = numbers["depth-seeds"]["cells"][0]
    assert len(cell["recall"]) == 2  # 1 and 2 pairs
    assert len(cell["similarity"]) == 3
    assert cell["validation_loss"] != cell["loss"]
    assert numbers["depth-seeds"]["commands"]["16"].startswith("repflow architecture --cells CELL ")


@pytest.mark.slow  # four processes that import torch
def test_phases_by_several_processes_are_those_of_one_and_finished_shares_are_carried(small, monkeypatch, tmp_path):
    call = program(run, monkeypatch)
    prepared, options = small
    call(*prepared)
    call("screen", *options, "--out", tmp_path / "one")
    call("screen", *options, "--out", tmp_path / "two", "--parallel", 2, "--keep", tmp_path / "parts")
    one, two = (run.tested(tmp_path / name, "depth-screen") for name in ("one", "two"))
    assert one == two
    shares = tmp_path / "two" / ".repflow" / "shares"
    for number in (1, 2):  # as if time had been up when both were finished
        shutil.copytree(tmp_path / "two" / "depth-screen", shares / f"depth-screen.{number}-of-2")
    shutil.rmtree(tmp_path / "two" / "depth-screen")
    monkeypatch.setattr("repflow.studies.engine.spot.is_share", lambda path: path.is_dir())
    assert run.tested(tmp_path / "two", "depth-screen") == one
    carry.pack(tmp_path / "two", tmp_path / "parts")
    carry.unpack(tmp_path / "parts", tmp_path / "three")
    assert run.tested(tmp_path / "three", "depth-screen") == one


def test_strengths_follow_rates_and_seeds_follow_strengths(small, monkeypatch, tmp_path, capsys):
    call = program(run, monkeypatch)
    prepared, options = small
    monkeypatch.setattr(plan, "REMEDIES", {"diversity": ("+diversity@0.1",), "poles": ("+poles",)})
    with pytest.raises(SystemExit, match=r"no text in .*: run prepare"):
        call("plan", *options, "--out", tmp_path / "runs")
    call(*prepared)
    call("plan", *options, "--out", tmp_path / "runs")  # before anything is chosen
    costs = dict(re.findall(r"(.+): (\d+) models, .+, about \d+ s of one H200", capsys.readouterr().out))
    assert list(costs)[:3] == ["screen --study depth", "seeds --study depth", "rates --study remedies"]
    for phase in ("rates", "screen", "seeds"):
        call(phase, "--study", "remedies", *options, "--out", tmp_path / "runs")
        assert len(run.tested(tmp_path / "runs", f"remedies-{phase}")) == int(costs[f"{phase} --study remedies"])
    assert "remedies-seeds is done" in capsys.readouterr().out
    call("plan", *options, "--out", tmp_path / "runs")
    assert "remedies" not in capsys.readouterr().out
    rows = [cell["row"] for cell in run.tested(tmp_path / "runs", "remedies-seeds")]
    attends = [plan.TRANSFORMER, f"{plan.TRANSFORMER}+diversity@0.1"]
    assert rows == ["mamba2", "mamba2+diversity@0.1", "mamba2+poles", *attends]
    with pytest.raises(SystemExit, match="has the phases screen, seeds, not rates"):
        call("rates", "--study", "depth", *options)
    for name, phase in run.table(tmp_path / "runs").items():
        monkeypatch.setitem(make_depth.NUMBERS, name, phase)
    fits = make_depth.fit_table("remedies-seeds")
    assert "| outcome | models | attention in all layers | +diversity@0.1 | +poles |  |" in fits
    assert "| ln Sm | 5 | " in fits
    assert make_depth.fit_table("no-such-run") == "Not run yet."


def test_models_without_norms_are_kept_probed_and_gathered(small, monkeypatch, tmp_path, capsys):
    call, out, target = program(run, monkeypatch), tmp_path / "runs", tmp_path / "numbers.json"
    prepared, options = small
    monkeypatch.setattr(plan, "BASES", ("mamba2",))
    monkeypatch.setattr(plan, "NORMS", ("+frozen", "-norm"))
    call(*prepared)
    call("screen", "--study", "norms", *options, "--out", out)
    with pytest.raises(SystemExit, match="run norms-seeds first"):
        call("probes", "--out", out, "--device", "cpu")
    call("seeds", "--study", "norms", *options, "--out", out, "--keep", tmp_path / "parts")
    for _ in range(2):  # the second time nothing is left to do
        call("probes", "--out", out, "--device", "cpu", "--probe-samples", 20)
    assert capsys.readouterr().out.count("probe_last") == 2
    call("table", "--out", out, "--to", target)
    cells = json.loads(target.read_text())["norms-seeds"]["cells"]
    assert [cell["row"] for cell in cells] == ["mamba2+frozen", "mamba2-norm"]
    assert all(0 <= cell["probe_last"] <= 1 and cell["probe_state"] in (0, 1, 2) for cell in cells)
    shutil.rmtree(out / "norms-seeds.models")
    shutil.rmtree(out / "norms-seeds.probes")
    with pytest.raises(SystemExit, match="the phase seeds keeps them on the machine it runs on"):
        call("probes", "--out", out, "--device", "cpu")


def test_norms_are_judged_by_similarity_and_probes(monkeypatch):
    rng, cells = np.random.default_rng(0), []
    for base in plan.BASES:
        for word in plan.NORMS:
            for seed in (1, 2, 3):
                less = 0.2 if "-norm" in word else 0.0
                own = model(
                    base + word, 12, 256, seed, loss=2.0, recall=0.5, similarity=0.5 - less + 0.001 * rng.random()
                )
                cells.append(own | {"probe_last": 0.6 + less + 0.001 * rng.random()})
    said = {claim.text: claim.verdict(Study(cells))[0] for claim in remedies.NORM_CLAIMS}
    assert len(said) == 12
    assert said["Mamba-2 without norms, trained again: the last tokens are less alike."] == "holds"
    assert said["Transformer without norms, trained again: probes find less at the last state."] == "does not hold"
    monkeypatch.setitem(
        make_depth.NUMBERS, "norms-seeds", {"cells": [model("mamba2", 12, 256, 1, loss=2, recall=1), *cells]}
    )
    assert make_remedies.unprobed() == ["- `probes`: 1 of 25 models are not probed."]
    unread = Study([{**cell, "probe_last": None} for cell in cells])
    assert remedies.NORM_CLAIMS[1].verdict(unread) == ("open", "diverged or not trained (open)")
