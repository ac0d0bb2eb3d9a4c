"""The tasks in the studies: measure, compare and grids make the same prompts, matched over models."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner

from repflow import compare, measure
from repflow.cli.main import app
from repflow.core.errors import InputError
from repflow.store import load_result
from repflow.studies.compare import pair as compare_pair
from repflow.studies.compare.config import CompareConfig
from repflow.studies.engine.grid import expand
from repflow.studies.engine.prompts import make_prompts, matched_models, only_fitting, task_options
from repflow.studies.measure import MeasureConfig, check_request
from repflow.tasks import Prompts, TaskOptions, make_task
from tests.studies.compare.inputs import bytes_tokenizer, model, save, words_tokenizer

CHEAP = {"metrics": ["token_similarity"], "samples": 2, "keep_samples": 1}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two models of any length whose tokenizers cut text differently, and one without a tokenizer."""
    root = tmp_path_factory.mktemp("models")
    save("mamba", root / "bytes", tokenizer=bytes_tokenizer)
    save("mamba2", root / "words", tokenizer=words_tokenizer)
    save("mamba", root / "mute")
    return root


@pytest.fixture
def place(folders, tmp_path, monkeypatch):
    for folder in folders.iterdir():
        (tmp_path / folder.name).symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args):
    done = CliRunner().invoke(app, [*map(str, args)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_measure_knows_the_tasks():
    loaded = model("mamba", words_tokenizer)
    for task in ("kvpr", "mdqa"):
        result = measure(loaded, task, length="1K", classes=2, **CHEAP)
        assert result.config["task"] == task
        assert result.config["length"] == 1000
        facts = result.provenance["task"]
        assert facts["classes"] == ["0-0.5", "0.5-1"]
        assert sorted(facts["labels"]) == [0, 1]
        assert facts["items"] > 2
        assert max(result.provenance["lengths"]) <= 1000
        own_task = make_task(task, TaskOptions(classes=2))
        from repflow.tasks import Encoder

        own = own_task.prompts(Encoder(loaded.tokenizer), length=1000, samples=2, seed=0)
        assert result.provenance["lengths"] == list(own.lengths)
        assert facts["labels"] == [prompt.label for prompt in own]


class Repeat:
    """A task of a user's own."""

    name = "repeat"

    def prompts(self, encoder, *, length, samples, seed):
        texts = [" ".join([f"the river {i}"] * (length // 3)) for i in range(samples)]
        return Prompts(self.name, tuple(encoder.prompt(encoder.ids(text), text) for text in texts))


def test_measure_takes_a_task_object_and_ready_prompts():
    loaded = model("mamba", words_tokenizer)
    result = measure(loaded, Repeat(), length=30, **CHEAP)
    assert result.config["task"] == "repeat"
    assert result.provenance["lengths"] == [30, 30]
    assert result.provenance["task"] is None
    ready = make_prompts(MeasureConfig(task="kvpr", length=300, samples=2), loaded)
    again = measure(loaded, ready, **CHEAP)
    assert again.provenance["digests"]["prompts"] == ready.digest()
    with pytest.raises(InputError, match="the name of a task with classes; got Repeat; pass 'kvpr', 'mdqa' or a file"):
        measure(loaded, Repeat(), classes=3, **CHEAP)


def test_a_task_must_give_prompts():
    class Wrong(Repeat):
        def prompts(self, encoder, *, length, samples, seed):
            return ["text"]

    with pytest.raises(InputError, match=r"Prompts from the task repeat; got list; return repflow.tasks.Prompts"):
        measure(model("mamba", words_tokenizer), Wrong(), length=30, **CHEAP)


@dataclass
class OtherConfig:
    """A study that has some of the fields only."""

    task: str = "kvpr"
    text: list = field(default_factory=list)
    length: int = 400
    samples: int = 3
    seed: int = 1
    bos: str = "model"
    label: str = "answer"


def test_a_config_may_lack_options():
    assert task_options(OtherConfig()) == TaskOptions(label="answer")
    assert make_prompts(OtherConfig(), model("mamba", words_tokenizer)).classes == tuple("0123456789abcdef")
    assert task_options(MeasureConfig(format="paper", items=3)) == TaskOptions(format="paper", items=3)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"task": "kvrp"}, "unknown task 'kvrp'; did you mean kvpr?"),
        (
            {"task": "random", "classes": 3},
            "task='kvpr' or mdqa or recall with classes; got task='random'; leave classes out",
        ),
        ({"task": "kvpr", "documents": __file__}, "task='mdqa' with documents; got task='kvpr'"),
        ({"task": "mdqa", "format": "paper"}, "task='kvpr' with format; got task='mdqa'"),
        ({"task": "random", "chat_template": True}, "task='kvpr' or mdqa or FILE.jsonl with chat_template=True"),
        ({"task": "kvpr", "match": "words"}, "match='text', items, tokens; got 'words'"),
        ({"task": "mdqa", "documents": "none.jsonl"}, "cannot read none.jsonl: no such file"),
        ({"task": "none.jsonl.gz"}, "cannot read none.jsonl.gz: no such file"),
    ],
)
def test_requests_that_cannot_be_met(options, text):
    with pytest.raises(InputError, match=re.escape(text)):
        check_request(MeasureConfig(model="x", **options))


def test_several_models_read_the_same_text(place):
    base = MeasureConfig(length=600, samples=4)
    for task in ("kvpr", "mdqa"):
        config = MeasureConfig(task=task, length=1400, samples=4)
        config.match_with = matched_models(["words", "bytes"], config)
        assert config.match_with == ["bytes", "words"]
        prompts = [make_prompts(config, model("mamba", t)) for t in (bytes_tokenizer, words_tokenizer)]
        assert [p.text for p in prompts[0]] == [p.text for p in prompts[1]]
        assert prompts[0].classes == prompts[1].classes
        assert max(prompts[0].lengths) <= 1400
        alone = make_prompts(MeasureConfig(task=task, length=1400, samples=4), model("mamba", words_tokenizer))
        assert alone[0].items > prompts[1][0].items
    assert matched_models(["a", "b"], base) == [], "random ids need no match"
    assert matched_models(["a", "b"], MeasureConfig(task="kvpr", match="tokens")) == []


def test_models_on_the_command_line_are_matched(place):
    common = ["measure", "bytes", "words", "mute", "--task", "kvpr", "--length", "0.5K", "--samples", "2"]
    done = run(*common, "--metrics", "token_similarity", "--json")
    assert done.exit_code == 2, "mute has no tokenizer"
    assert "mute: expected a model with a tokenizer for text; got none" in done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [entry["model"] for entry in rows] == ["bytes", "words"]
    items = {entry["provenance"]["task"]["items"] for entry in rows}
    assert len(items) == 1
    stored = load_result(*Path("runs").glob("bytes-kvpr-500-grid4-*"))
    assert stored.config["match_with"] == ["bytes", "mute", "words"]
    done = run(*common[:3], *common[4:], "--match", "tokens", "--out", "own", "--json", "--metrics", "token_similarity")
    assert done.exit_code == 0
    own = [json.loads(line)["provenance"]["task"]["items"] for line in done.stdout.splitlines()]
    assert own[0] == min(items) < own[1]


def test_a_wrong_length_is_a_wrong_request(place):
    done = run("measure", "words", "--task", "kvpr", "--length", "4M")
    assert done.exit_code == 2
    assert "a length such as 300, 1K or 4K" in re.sub(r"[\s│]+", " ", done.stderr)
    done = run("measure", "words", "--task", "kvpr", "--length", "50")
    assert done.exit_code == 2
    assert "expected a length that holds 2 pairs; got 50 tokens, where 2 need" in done.stderr
    done = run("measure", "words", "--task", "kvpr", "--length", "300", "--index", "40")
    assert done.exit_code == 2
    assert "expected an index from 0 to" in done.stderr
    assert not (place / "runs").exists()


def test_a_grid_over_tasks(place):
    (place / "t.txt").write_text("words")
    study = {
        "kind": "measure",
        "models": ["bytes", "words"],
        "tasks": ["text", "kvpr", "mdqa"],
        "lengths": [600, "1K"],
        "text": ["t.txt"],
        "format": "paper",
        "classes": 2,
        "distractors": "random",
    }
    cells = expand(study, default_name="s").cells
    assert {cell.config.length for cell in cells} == {600, 1000}
    for cell in cells:
        config = cell.config
        assert config.text == (["t.txt"] if config.task == "text" else [])
        assert config.format == ("paper" if config.task == "kvpr" else "liu2024")
        assert config.classes == (None if config.task == "text" else 2)
        assert config.distractors == ("random" if config.task == "mdqa" else "bm25")
        assert config.match_with == ([] if config.task == "text" else ["bytes", "words"])
    assert len({cell.name for cell in cells}) == 12
    assert only_fitting(MeasureConfig(task="kvpr", documents="x")).documents is None


def test_a_grid_runs_on_the_same_text(place):
    lines = ['kind = "measure"', 'models = ["bytes", "words"]', 'tasks = ["kvpr", "mdqa"]', 'lengths = ["1.4K"]']
    lines += ["samples = 2", 'distractors = "random"', 'metrics = ["token_similarity"]']
    (place / "s.toml").write_text("[study]\n" + "\n".join(lines))
    done = run("run", "s.toml", "--json")
    assert done.exit_code == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    by_task = {}
    for entry in rows:
        by_task.setdefault(entry["task"], set()).add(entry["provenance"]["task"]["items"])
    assert sorted(by_task) == ["kvpr", "mdqa"]
    assert all(len(items) == 1 for items in by_task.values())


@pytest.mark.parametrize("task", ["kvpr", "mdqa"])
def test_compare_reads_the_same_text(task):
    a, b = model("mamba", bytes_tokenizer), model("mamba2", words_tokenizer)
    config = CompareConfig(task=task, length=1400, samples=2, distractors="random" if task == "mdqa" else "bm25")
    paired = compare_pair.make_prompts(config, a, b)
    assert [p.text for p in paired.a] == [p.text for p in paired.b]
    assert max(*paired.a.lengths, *paired.b.lengths) <= 1400
    assert set(paired.by) == {"character"}
    same = compare_pair.make_prompts(config, a, model("mamba", bytes_tokenizer, seed=1))
    assert same.by == ("token", "token")


def test_compare_runs_on_tasks_and_task_objects():
    a, b = model("mamba", words_tokenizer), model("mamba2", words_tokenizer)
    result = compare(a, b, "kvpr", length="0.3K", samples=2)
    assert result.config["task"] == "kvpr"
    assert result["cka_cross"].shape[2] == 2
    assert compare(a, b, Repeat(), length=40, samples=2).config["task"] == "repeat"
