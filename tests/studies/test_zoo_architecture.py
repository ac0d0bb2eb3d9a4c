"""The study of what architecture decides: variants change what they say, cells resume, tables count."""

import json
import lzma
from pathlib import Path

import pytest
import torch

from repflow.errors import InputError
from repflow.studies import demo, train_zoo, zoo_architecture_table, zoo_seeds
from repflow.studies.zoo_architecture import main
from repflow.studies.zoo_architecture_table import CURVES, flow_differences, interval, read_differences, table
from repflow.studies.zoo_fast import fast_forward
from repflow.studies.zoo_models import parameter_count
from repflow.studies.zoo_variants import VARIANTS, build_variant

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    made = tmp_path_factory.mktemp("study")
    parts = [part for part in (ROOT / "LICENSE").read_text(encoding="utf-8").split("\n\n") if part.strip()]
    for name, chosen in (("train", parts[:-6]), ("valid", parts[-6:])):
        (made / f"{name}.txt.xz").write_bytes(lzma.compress("\n<|endoftext|>\n".join(chosen).encode()))
    options = ["--vocabulary", "1024", "--length", "176", "--articles", "12", "--samples", "4"]
    assert train_zoo.main(["prepare", "--corpus", str(made), "--out", str(made / "data"), *options]) == 0
    return made / "data"


@pytest.fixture(scope="module")
def cells(data, tmp_path_factory):
    made = tmp_path_factory.mktemp("cells")
    asked = ["run", "--data", str(data), "--to", str(made), "--size", "tiny", "--steps", "2", "--batch", "4"]
    few = [*asked, "--seeds", "0", "1", "--prompts", "0", "--limit", "2", "--device", "cpu"]
    chosen = ["gpt-neox", "gpt-neox-frozen-norms", "mamba2-narrow"]
    assert main([*few, "--variants", *chosen]) == 0
    return made, [*few, "--variants", *chosen]


def tiny(name):
    return build_variant(name, "tiny", 300, 200, 0)


def test_sizes_change_as_the_names_say():
    base = tiny("mamba2").config
    assert tiny("mamba2-shallow").config.num_hidden_layers * 2 == base.num_hidden_layers
    assert tiny("mamba2-deep").config.num_hidden_layers == 2 * base.num_hidden_layers
    assert tiny("mamba2-narrow").config.hidden_size * 2 == base.hidden_size
    assert tiny("mamba2-small-state").config.state_size * 4 == base.state_size
    assert tiny("mamba2-small-state").config.hidden_size == base.hidden_size
    assert {name: variant.base for name, variant in VARIANTS.items()}["gpt-neox-window"] == "gpt-neox"


def test_only_norms_are_frozen():
    network = tiny("gpt-neox-frozen-norms")
    frozen = {name for name, parameter in network.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, _ in network.named_parameters() if "norm" in name}
    assert parameter_count(network) == parameter_count(tiny("gpt-neox"))


@pytest.mark.parametrize("fast", [False, True])
def test_a_window_hides_what_lies_further_back(fast):
    network = tiny("gpt-neox-window").eval()
    ids = torch.randint(0, 300, (1, 200), generator=torch.Generator().manual_seed(1))
    other = ids.clone()
    other[0, 0] = (other[0, 0] + 1) % 300
    with torch.no_grad():
        if fast:
            with fast_forward(network):
                one, two = network(ids).logits, network(other).logits
        else:
            one, two = network(ids).logits, network(other).logits
    moved = (one - two).abs().amax(-1)[0] > 0
    reach = 2 * (64 - 1)  # two blocks
    assert moved[: reach + 1].all()
    assert not moved[reach + 1 :].any()


def test_cells_hold_what_the_table_needs_and_are_not_made_twice(cells):
    folder, asked = cells
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert len(before) == 6
    assert main(asked) == 0
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    told = json.loads((folder / "gpt-neox_1.json").read_text())
    assert told["record"]["config"]["seed"] == 1
    last = told["record"]["flow"][-1]["prose"]["token_similarity"]
    made = table(folder)
    assert "| gpt-neox | none | 2 | prose |" in made
    other = json.loads((folder / "gpt-neox_0.json").read_text())["record"]["flow"][-1]["prose"]["token_similarity"]
    assert interval([last[-1], other[-1]]) in made
    assert "hybrid" not in made


def test_frozen_norms_stay_and_others_move(cells):
    folder, _ = cells
    moved = json.loads((folder / "gpt-neox-frozen-norms_0.json").read_text())
    assert moved["record"]["curve"][-1]["loss"] != moved["record"]["curve"][0]["loss"]
    assert moved["factor"] == "norms frozen"


def test_readings_become_seeds_of_the_demo(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "GRID", 2)
    monkeypatch.setattr(zoo_seeds, "LENGTHS", (150, 170))  # the tiny models end before the demo's lengths
    monkeypatch.setattr(zoo_architecture_table, "PLACE", "kvpr/150")
    asked = ["run", "--data", str(data), "--to", str(tmp_path / "cells"), "--size", "tiny", "--steps", "2"]
    few = ["--seeds", "1", "--variants", "gpt-neox", "--prompts", "60", "--limit", "2", "--device", "cpu"]
    assert main([*asked, "--batch", "4", *few]) == 0
    assert main(["seeds", str(tmp_path / "cells"), "--out", str(tmp_path / "seeds.json")]) == 0
    (reading,) = json.loads((tmp_path / "seeds.json").read_text())["readings"]
    assert (reading["model"], reading["seed"], reading["family"]) == ("gpt-neox", 1, "TBM")
    assert interval([max(reading["probes"]["answer/kvpr/150"]["accuracy"])]) in table(tmp_path / "cells")
    (tmp_path / "none").mkdir()
    assert main(["seeds", str(tmp_path / "none"), "--out", str(tmp_path / "other.json")]) == 2
    assert "run the cells alike" in capsys.readouterr().err


def cell(variant, seed, similarity, exact=0, nats=2.0, answer=None):
    """A cell of known numbers, as a summary keeps it."""
    flow = {task: dict.fromkeys(CURVES, similarity) for task in ("prose", "kvpr")}
    made = {
        "variant": variant, "seed": seed, "record": {"flow": [{"step": 0} | flow, {"step": 9} | flow]},
        "evaluation": {"retrieval": {"kvpr-512": {"exact": exact, "of": 10}}, "prose": {"nats_per_token": nats}},
    }  # fmt: skip
    if answer is not None:
        probes = {f"{label}/kvpr/256": {"accuracy": [0.5, answer]} for label in ("answer", "index")}
        made["reading"] = {"probes": probes}
    return made


def test_differences_are_taken_seed_by_seed():
    """Seeds differ by far more than variants do, so that only pairs show it: 0.1 ± Student's 0.0248 over three."""
    base = [cell("mamba2", seed, [0.0, 0.1, 0.2, 0.3 + seed], nats=2 + seed) for seed in range(3)]
    rise = (0.09, 0.10, 0.11)
    deep = [cell("mamba2-deep", s, [0.0, 0.1, 0.2, 0.3 + s + by], nats=2 + s, exact=s) for s, by in enumerate(rise)]
    (row,) = [line for line in flow_differences([*base, *deep]).splitlines() if line.startswith("| mamba2-deep ")]
    same, more = "+0.00 ± 0.00", "**+0.10 ± 0.02**"
    assert row == "| mamba2-deep | mamba2 | " + " | ".join([same, more, more] * 2) + " |"
    (row,) = [line for line in read_differences([*base, *deep]).splitlines() if line.startswith("| mamba2-deep ")]
    assert row == "| mamba2-deep | mamba2 | +0.10 ± 0.25 | +0.00 ± 0.00 | not measured | not measured |"


def test_the_mirror_is_held_against_the_hybrid_on_seeds_that_both_have():
    cells = [cell("hybrid", seed, [0.1, 0.2, 0.3], answer=0.7) for seed in (0, 1, 2)]
    cells += [cell("hybrid-mirror", seed, [0.1, 0.2, 0.3], answer=0.1 + 0.01 * seed) for seed in (1, 2, 5)]
    (row,) = [line for line in read_differences(cells).splitlines() if line.startswith("| hybrid-mirror ")]
    half = 12.706 * 0.01 / 2  # two seeds, one apart by 0.01
    assert row.count(f"**-0.58 ± {half:.2f}**") == 2


def test_a_summary_gives_the_same_tables(cells, tmp_path, capsys):
    folder, _ = cells
    assert main(["summary", str(folder), "--out", str(tmp_path / "all.json")]) == 0
    assert "6 cells in" in capsys.readouterr().out
    assert table(tmp_path / "all.json") == table(folder)
    assert (tmp_path / "all.json").stat().st_size < 0.2 * sum(file.stat().st_size for file in folder.iterdir())


def test_wrong_requests_are_taught(tmp_path, capsys):
    with pytest.raises(InputError, match="unknown variant 'mamba3'"):
        tiny("mamba3")
    assert main(["table", str(tmp_path)]) == 2
    assert "zoo_architecture run" in capsys.readouterr().err
