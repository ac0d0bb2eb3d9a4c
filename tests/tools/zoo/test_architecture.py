"""The study of what architecture decides: variants change what they say, cells resume, tables count."""

import errno
import json
import lzma
from pathlib import Path

import pytest
import torch

from repflow.core.errors import InputError
from repflow.studies import demo
from tools.zoo import effects
from tools.zoo import make as train_zoo
from tools.zoo import seeds as zoo_seeds
from tools.zoo.architecture import main, read_cells
from tools.zoo.effects import CURVES, compact, flow_differences, interval, read_differences, table
from tools.zoo.fast import fast_forward
from tools.zoo.models import parameter_count
from tools.zoo.variants import VARIANTS, build_variant

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    parts = [part for part in (ROOT / "LICENSE").read_text(encoding="utf-8").split("\n\n") if part.strip()]
    for name, chosen in (("train", parts[:-6]), ("valid", parts[-6:])):
        (folder / f"{name}.txt.xz").write_bytes(lzma.compress("\n<|endoftext|>\n".join(chosen).encode()))
    options = ["--vocabulary", "1024", "--length", "176", "--articles", "12", "--samples", "4"]
    assert train_zoo.main(["prepare", "--corpus", str(folder), "--out", str(folder / "data"), *options]) == 0
    return folder / "data"


@pytest.fixture(scope="module")
def cells(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cells")
    asked = ["run", "--data", str(data), "--to", str(folder), "--size", "tiny", "--steps", "2", "--batch", "4"]
    few = [*asked, "--seeds", "0", "1", "--prompts", "0", "--limit", "2", "--device", "cpu"]
    chosen = ["gpt-neox", "gpt-neox-frozen-norms", "mamba2-narrow"]
    assert main([*few, "--variants", *chosen]) == 0
    return folder, [*few, "--variants", *chosen]


def tiny(name):
    return build_variant(name, "tiny", 300, 200, 0)


def test_sizes_change_as_the_names_say():
    base = tiny("mamba2").config
    assert tiny("mamba2-shallow").config.num_hidden_layers * 2 == base.num_hidden_layers
    assert tiny("mamba2-deep").config.num_hidden_layers == 2 * base.num_hidden_layers
    assert tiny("mamba2-narrow").config.hidden_size * 2 == base.hidden_size
    assert tiny("gpt-neox-narrow").config.hidden_size * 2 == tiny("gpt-neox").config.hidden_size
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
    content = json.loads((folder / "gpt-neox_1.json").read_text())
    assert content["record"]["config"]["seed"] == 1
    last = content["record"]["flow"][-1]["prose"]["token_similarity"]
    text = table(read_cells(folder))
    assert "| gpt-neox | none | 2 | prose |" in text
    other = json.loads((folder / "gpt-neox_0.json").read_text())["record"]["flow"][-1]["prose"]["token_similarity"]
    assert interval([last[-1], other[-1]]) in text
    assert "hybrid" not in text


def test_frozen_norms_stay_and_others_move(cells):
    folder, _ = cells
    moved = json.loads((folder / "gpt-neox-frozen-norms_0.json").read_text())
    assert moved["record"]["curve"][-1]["loss"] != moved["record"]["curve"][0]["loss"]
    assert moved["factor"] == "norms frozen"


def test_readings_become_seeds_of_the_demo(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "GRID", 2)
    monkeypatch.setattr(zoo_seeds, "LENGTHS", (150, 170))  # the tiny models end before the demo's lengths
    monkeypatch.setattr(effects, "PLACE", "kvpr/150")
    asked = ["run", "--data", str(data), "--to", str(tmp_path / "cells"), "--size", "tiny", "--steps", "2"]
    few = ["--seeds", "1", "--variants", "gpt-neox", "--prompts", "60", "--limit", "2", "--device", "cpu"]
    assert main([*asked, "--batch", "4", *few]) == 0
    assert main(["seeds", str(tmp_path / "cells"), "--out", str(tmp_path / "seeds.json")]) == 0
    (reading,) = json.loads((tmp_path / "seeds.json").read_text())["readings"]
    assert (reading["model"], reading["seed"], reading["family"]) == ("gpt-neox", 1, "TBM")
    assert interval([max(reading["probes"]["answer/kvpr/150"]["accuracy"])]) in table(read_cells(tmp_path / "cells"))
    narrow = json.loads((tmp_path / "cells" / "gpt-neox_1.json").read_text())
    put(tmp_path / "sizes", narrow | {"variant": "gpt-neox-narrow", "reading": reading | {"model": "gpt-neox-narrow"}})
    assert main(["seeds", str(tmp_path / "sizes"), "--out", str(tmp_path / "seeds.json"), "--add"]) == 0
    both = json.loads((tmp_path / "seeds.json").read_text())["readings"]
    assert [(one["model"], one.get("size_of")) for one in both] == [("gpt-neox", None), ("gpt-neox-narrow", "gpt-neox")]
    (tmp_path / "none").mkdir()
    assert main(["seeds", str(tmp_path / "none"), "--out", str(tmp_path / "other.json")]) == 2
    assert "tools.zoo.architecture run" in capsys.readouterr().err
    broken = json.loads((tmp_path / "cells" / "gpt-neox_1.json").read_text())
    del broken["reading"]["kind"]
    put(tmp_path / "broken", broken)
    assert main(["seeds", str(tmp_path / "broken"), "--out", str(tmp_path / "other.json")]) == 2
    assert "a reading in the cell of gpt-neox with seed 1" in capsys.readouterr().err
    assert not (tmp_path / "other.json").exists()


def cell(variant, seed, similarity, exact=0, nats=2.0, answer=None):
    """A cell of known numbers, as a summary keeps it."""
    flow = {task: dict.fromkeys(CURVES, similarity) for task in ("prose", "kvpr")}
    record = {"parameters": 7, "steps": 9, "tokens": 90, "device_name": "none"}
    entry = {
        "variant": variant, "factor": "none", "seed": seed,
        "record": {**record, "flow": [{"step": 0} | flow, {"step": 9} | flow]},
        "evaluation": {"retrieval": {"kvpr-512": {"exact": exact, "of": 10}}, "prose": {"nats_per_token": nats}},
    }  # fmt: skip
    if answer is not None:
        probes = {f"{label}/kvpr/256": {"accuracy": [0.5, answer]} for label in ("answer", "index")}
        entry["reading"] = {"probes": probes}
    return entry


def put(folder, *cells):
    """A folder of cells."""
    folder.mkdir(exist_ok=True)
    for entry in cells:
        (folder / f"{entry['variant']}_{entry['seed']}.json").write_text(json.dumps(entry))
    return folder


def test_differences_are_taken_seed_by_seed():
    """Seeds differ by far more than variants do, so that only pairs show it: 0.1 ± Student's 0.0248 over three."""
    base = [cell("mamba2", seed, [0.0, 0.1, 0.2, 0.3 + seed], nats=2 + seed) for seed in range(3)]
    rise = (0.09, 0.10, 0.11)
    deep = [cell("mamba2-deep", s, [0.0, 0.1, 0.2, 0.3 + s + by], nats=2 + s, exact=s) for s, by in enumerate(rise)]
    (row,) = [line for line in flow_differences([*base, *deep]).splitlines() if line.startswith("| mamba2-deep ")]
    same, more = "+0.000 ± 0.000", "**+0.100 ± 0.025**"
    assert row == "| mamba2-deep | mamba2 | " + " | ".join([same, more, more, more] * 2) + " |"
    (row,) = [line for line in read_differences([*base, *deep]).splitlines() if line.startswith("| mamba2-deep ")]
    assert row == "| mamba2-deep | mamba2 | +0.100 ± 0.248 | +0.000 ± 0.000 | not measured | not measured |"


def test_the_mirror_is_held_against_the_hybrid_on_seeds_that_both_have():
    cells = [cell("hybrid", seed, [0.1, 0.2, 0.3], answer=0.7) for seed in (0, 1, 2)]
    cells += [cell("hybrid-mirror", seed, [0.1, 0.2, 0.3], answer=0.1 + 0.01 * seed) for seed in (1, 2, 5)]
    (row,) = [line for line in read_differences(cells).splitlines() if line.startswith("| hybrid-mirror ")]
    half = 12.706 * 0.01 / 2  # two seeds, one apart by 0.01
    assert row.count(f"**-0.585 ± {half:.3f}**") == 2


def test_a_summary_gives_the_same_tables(cells, tmp_path, capsys):
    folder, _ = cells
    assert main(["summary", str(folder), "--out", str(tmp_path / "all.json")]) == 0
    assert "6 cells in" in capsys.readouterr().out
    assert table(read_cells(tmp_path / "all.json")) == table(read_cells(folder))
    assert (tmp_path / "all.json").stat().st_size < 0.2 * sum(file.stat().st_size for file in folder.iterdir())


def test_wrong_requests_are_taught(tmp_path, capsys):
    with pytest.raises(InputError, match="unknown variant 'mamba3'"):
        tiny("mamba3")
    assert main(["table", str(tmp_path)]) == 2
    assert "tools.zoo.architecture run" in capsys.readouterr().err


def asked(step, cells, tmp_path):
    """Arguments of a step that reads cells; those that write do so to out.json."""
    return [step, str(cells), *(() if step == "table" else ("--out", str(tmp_path / "out.json")))]


# ---------------------------------------------------------------- what is no cell
@pytest.mark.parametrize("kind", ["empty", "missing"])
@pytest.mark.parametrize("step", ["table", "summary", "seeds"])
def test_no_cells_are_told_and_leave_the_file(step, kind, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "out.json").write_text("old")
    assert main(asked(step, tmp_path / kind, tmp_path)) == 2
    assert f"{kind}; got none; make them with `python -m tools.zoo.architecture run`" in capsys.readouterr().err
    assert (tmp_path / "out.json").read_text() == "old"


def without(path):
    """A cell that lacks an entry, or has another there."""
    whole = cell("mamba2", 0, [0.1, 0.2, 0.3], answer=0.5)
    place, changed, value = path.partition("=")
    *above, last = place.split("/")
    inner = whole
    for key in above:
        inner = inner[key]
    del inner[last]
    if changed:
        inner[last] = json.loads(value)
    return json.dumps(whole)


LACKING = (
    "variant", "factor", "seed", "record", "evaluation", "record/flow", "record/steps", "record/tokens",
    "record/parameters", "evaluation/retrieval", "evaluation/prose", "reading/probes", 'variant="mamba3"', 'seed="a"',
    "record/flow=[]", "record=3", "evaluation/prose={}", 'evaluation/retrieval={"a": {"exact": 0, "of": 0}}',
    'reading/probes={"answer/kvpr/9": {"accuracy": [1]}}',
)  # fmt: skip


@pytest.mark.parametrize("text", ["no JSON", '[{"variant": ', "{}", "7", "[7, 8]", '["a"]', "\xff"])
@pytest.mark.parametrize("step", ["table", "summary", "seeds"])
def test_other_files_are_named(step, text, tmp_path, capsys):
    file = tmp_path / "other.json"
    file.write_bytes(text.encode("latin-1"))
    (tmp_path / "out.json").write_text("old")
    assert main(asked(step, file, tmp_path)) == 2
    assert str(file) in capsys.readouterr().err
    (tmp_path / "cells").mkdir()
    moved = file.rename(tmp_path / "cells" / "mamba2_0.json")
    assert main(asked(step, tmp_path / "cells", tmp_path)) == 2
    assert str(moved) in capsys.readouterr().err
    assert (tmp_path / "out.json").read_text() == "old"


@pytest.mark.parametrize("path", LACKING)
def test_cells_that_lack_something_are_named(path, tmp_path, capsys):
    good = put(tmp_path / "cells", cell("mamba2", 1, [0.1, 0.2, 0.3], answer=0.5))
    assert main(asked("table", good, tmp_path)) == 0
    (good / "mamba2_0.json").write_text(without(path))
    for step in ("table", "summary", "seeds"):
        assert main(asked(step, good, tmp_path)) == 2
        assert (
            f"a cell of `python -m tools.zoo.architecture run` in {good / 'mamba2_0.json'}; got"
            in capsys.readouterr().err
        )
    assert not (tmp_path / "out.json").exists()


def test_a_summary_has_no_readings_to_give(tmp_path, capsys):
    assert main(asked("seeds", ROOT / "docs" / "architecture.json", tmp_path)) == 2
    assert "architecture.json, a summary, which keeps none; name the folder" in capsys.readouterr().err
    bare = put(tmp_path / "cells", cell("mamba2", 1, [0.1, 0.2, 0.3]))
    assert main(asked("seeds", bare, tmp_path)) == 2
    assert (
        "got none; run gpt-neox, mamba2, hybrid, hybrid-mirror, gpt-neox-narrow, mamba2-narrow with"
        in capsys.readouterr().err
    )
    assert len(read_cells(ROOT / "docs" / "architecture.json")) == 33


def test_a_summary_keeps_cells_that_it_is_given_to_add_to(tmp_path):
    out = tmp_path / "out.json"
    first = put(tmp_path / "first", cell("mamba2", 0, [0.1, 0.2, 0.3]), cell("mamba2", 1, [0.1, 0.2, 0.3]))
    second = put(tmp_path / "second", cell("mamba2", 1, [0.1, 0.2, 0.4]), cell("gpt-neox", 0, [0.1, 0.2, 0.3]))
    assert main(asked("summary", first, tmp_path)) == 0
    assert main([*asked("summary", second, tmp_path), "--add"]) == 0
    names = [(one["variant"], one["seed"]) for one in read_cells(out)]
    assert names == [("gpt-neox", 0), ("mamba2", 0), ("mamba2", 1)]
    alone = tmp_path / "alone"
    alone.mkdir()
    assert main(asked("summary", second, alone)) == 0
    assert read_cells(out)[2] == read_cells(alone / "out.json")[1]  # the newer of the two that were there


# ---------------------------------------------------------------- where it is written
def test_a_summary_is_written_whole_or_not_at_all(tmp_path, capsys, monkeypatch):
    cells = put(tmp_path / "cells", cell("mamba2", 1, [0.1, 0.2, 0.3]))
    out = tmp_path / "new" / "deep" / "out.json"
    assert main(["summary", str(cells), "--out", str(out)]) == 0
    assert len(read_cells(out)) == 1
    assert main(["summary", str(cells), "--out", str(out.parent)]) == 2
    assert "deep, which is a folder; name a file in it" in capsys.readouterr().err
    assert main(["summary", str(cells), "--out", str(cells / "out.json")]) == 2
    assert "which would be read as a cell" in capsys.readouterr().err
    assert main(["summary", str(cells), "--out", str(out / "in.json")]) == 2
    assert "where a file is in the way; choose another --out" in capsys.readouterr().err
    before = out.read_bytes()

    def full(fd, data):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("repflow.store.disk.write_all", full)
    assert main(["summary", str(cells), "--out", str(out)]) == 2
    assert f"no room to write {out}" in capsys.readouterr().err
    assert [file.name for file in out.parent.iterdir()] == ["out.json"]
    assert out.read_bytes() == before


# ---------------------------------------------------------------- what is asked of a run
@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--seeds", "-1", "expected --seeds from 0"),
        ("--steps", "-3", "expected --steps of at least 1; got -3"),
        ("--steps", "0", "expected --steps of at least 1; got 0"),
        ("--batch", "0", "expected --batch of at least 1"),
        ("--limit", "0", "expected --limit of at least 1"),
        ("--prompts", "-1", "expected --prompts of at least 0"),
        ("--prompts", "9", "expected --prompts of at least 10"),
        ("--device", "nope", "expected a device such as cpu"),
        ("--data", "nope", "run `tools.zoo.make prepare` first"),
        ("--to", "file", "expected a folder for --to; got file, where a file is in the way"),
        ("--to", "file/in", "expected a folder for --to; got file/in, where a file is in the way"),
    ],
)
def test_a_wrong_run_is_refused_before_anything_is_made(option, value, told, data, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    plain = ["run", "--data", str(data), "--to", "cells", "--size", "tiny", "--steps", "1", "--batch", "2"]
    assert main([*plain, "--variants", "mamba2-shallow", "--seeds", "0", option, value]) == 2
    assert told in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_too_few_prompts_for_the_probes_are_refused_before_a_model_is_trained(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(zoo_seeds, "LENGTHS", (150, 170))
    plain = ["run", "--data", str(data), "--to", str(tmp_path / "cells"), "--size", "tiny", "--steps", "1"]
    assert main([*plain, "--variants", "gpt-neox", "--seeds", "0", "--prompts", "10"]) == 2
    told = capsys.readouterr().err
    assert "expected --prompts that the probes can read; got 10, which the probe for the" in told
    assert "pass more, or 0 for none" in told
    assert not (tmp_path / "cells").exists()
    monkeypatch.setattr(zoo_seeds, "LENGTHS", (256, 512))
    assert main([*plain, "--variants", "gpt-neox", "--seeds", "0", "--prompts", "60"]) == 2
    assert "at 256 tokens refuses" in capsys.readouterr().err


def test_an_unknown_size_is_refused(data, capsys):
    with pytest.raises(SystemExit):
        main(["run", "--data", str(data), "--to", "cells", "--size", "huge"])
    assert "invalid choice: 'huge'" in capsys.readouterr().err


# ---------------------------------------------------------------- cells of other settings
CONFIG = {"seed": 0, "steps": 9, "size": "4m", "batches": {"batch": 5}}


def full(variant, seed, **changed):
    """A cell as `run` writes it, with other settings where they are given."""
    value = cell(variant, seed, [0.1, 0.2, 0.3], answer=0.5) | {"prompts": changed.pop("prompts", 60)}
    value["evaluation"]["retrieval"]["kvpr-512"]["of"] = changed.pop("of", 10)
    value["record"]["data"] = {"digests": {"prose.npy": changed.pop("digest", "a")}}
    batches = {"batch": changed.pop("batch", 5)}
    value["record"]["config"] = CONFIG | {"batches": batches, "size": changed.pop("size", "4m")}
    value["record"] |= changed
    return value


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"steps": 8}, "steps: 9 (mamba2 with seed 0) and 8 (mamba2 with seed 1)"),
        ({"batch": 6}, "batch: 5 (mamba2 with seed 0) and 6 (mamba2 with seed 1)"),
        ({"size": "8m"}, "size: 4m (mamba2 with seed 0) and 8m (mamba2 with seed 1)"),
        ({"digest": "b"}, "data: "),
        ({"tokens": 91}, "tokens: 90 (mamba2 with seed 0) and 91 (mamba2 with seed 1)"),
        ({"parameters": 8}, "parameters of mamba2: 7 (mamba2 with seed 0) and 8 (mamba2 with seed 1)"),
        ({"of": 11}, "held-out prompts: 10 of kvpr-512 (mamba2 with seed 0) and 11 of kvpr-512 (mamba2 with seed 1)"),
        ({"prompts": 61}, "prompts of the probes: 60 (mamba2 with seed 0) and 61 (mamba2 with seed 1)"),
    ],
)
def test_cells_of_other_settings_are_not_put_into_one_table(changed, told, tmp_path, capsys):
    cells = put(tmp_path / "cells", full("hybrid", 0, parameters=3), full("mamba2", 0), full("mamba2", 2))
    assert main(asked("table", cells, tmp_path)) == 0
    (cells / "hybrid_0.json").unlink()
    put(cells, full("mamba2", 1, **changed))
    for step in ("table", "summary", "seeds"):
        assert main(asked(step, cells, tmp_path)) == 2
        assert f"cells of the same settings in {cells}; got {told}" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("changed", [{"steps": 8}, {"tokens": 91}, {"parameters": 8}, {"of": 11}])
def test_summaries_of_other_settings_are_refused(changed, tmp_path, capsys):
    both = [compact(full("mamba2", 0)), compact(full("mamba2", 1, **changed))]
    (tmp_path / "both.json").write_text(json.dumps(both))
    assert main(asked("table", tmp_path / "both.json", tmp_path)) == 2
    assert "cells of the same settings in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--steps", "3", "steps: 3 (this run) and 2 (gpt-neox"),
        ("--batch", "5", "batch: 5 (this run) and 4 (gpt-neox"),
        ("--size", "4m", "size: 4m (this run) and tiny (gpt-neox"),
        ("--limit", "1", "held-out prompts: 1 of kvpr-176 (this run) and 2 of kvpr-176 (gpt-neox"),
    ],
)
def test_a_run_goes_on_with_the_settings_of_its_cells_alone(option, value, told, cells, capsys):
    folder, first = cells
    before = sorted(file.name for file in folder.iterdir())
    assert main([*first, option, value, "--seeds", "7"]) == 2
    assert told in capsys.readouterr().err
    assert sorted(file.name for file in folder.iterdir()) == before


def test_a_run_goes_on_with_the_data_of_its_cells_alone(data, cells, tmp_path, capsys):
    _, first = cells
    other = tmp_path / "data"
    options = ["--vocabulary", "1024", "--length", "176", "--articles", "11", "--samples", "4"]
    assert train_zoo.main(["prepare", "--corpus", str(data.parent), "--out", str(other), *options]) == 0
    assert main([*first, "--data", str(other)]) == 2
    assert "got data: " in capsys.readouterr().err
    put(tmp_path / "cells", {"variant": "mamba2", "seed": 0})
    assert main([*first, "--to", str(tmp_path / "cells")]) == 2
    assert (
        f"a cell of `python -m tools.zoo.architecture run` in {tmp_path / 'cells' / 'mamba2_0.json'}"
        in capsys.readouterr().err
    )
