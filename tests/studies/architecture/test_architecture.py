"""A grid of language models: perplexity, leaks, spectra, matched sizes, what is refused."""

import io
import json
import math

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import repflow
from repflow.cli.main import app
from repflow.core.errors import ConfigChangedError, InputError
from repflow.report.data.laboratory import best_lines
from repflow.report.terminal import view_of
from repflow.report.terminal.laboratory.architecture import perplexity_words, row_words
from repflow.spec.architecture import Numbers
from repflow.studies.architecture.config import ArchitectureConfig
from repflow.studies.architecture.size import count_parameters, matched_width
from repflow.studies.architecture.study import STUDY, text_of
from repflow.training.text import measure_leak, text_loss

SMALL = {
    **{
        "layers": ["2"],
        "widths": ["16"],
        "lengths": ["16"],
        "steps": 3,
        "batch": 2,
        "readings": 2,
        "reading_tokens": 100,
    },
    **{"leak_positions": 20, "flow_samples": 2, "chunk": 4, "held_out_share": 0.1},
}
ROWS = ["mamba", "mamba+negative+scaled", "mamba+leaky", "mamba+chunks", "transformer"]


def small(**changes):
    return ArchitectureConfig(**{**SMALL, "rows": ROWS, **changes})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    other = folder / "other.txt"
    other.write_text("Ships carry grain.\n<|endoftext|>\nA third of it is lost.\n<|endoftext|>\nSo they say.")
    config = small(keep_models=True, match_row="mamba", test_texts=[f"other={other}"])
    return folder, config, STUDY.run(config, out=folder, name="a")


def test_of_a_plain_file_the_end_is_tested_without_an_interval_over_documents(tmp_path):
    text = tmp_path / "plain.txt"
    text.write_text("".join(f"line {number} of a plain file\n" for number in range(100)))
    result = STUDY.run(small(text=[str(text)], rows=["mamba"], flow_samples=0), out=tmp_path, name="plain")
    assert result.provenance["architecture"]["data"]["held_out"]["documents"] == 1
    assert np.isfinite(result["perplexity"]).all()
    assert np.isnan(result["perplexity_low"]).all()
    assert np.isnan(result["perplexity_high"]).all()
    (finding,) = [finding for finding in result.findings if finding.code == "few_documents"]
    assert finding.message.startswith("1 document is held out, so that no interval is over documents")
    assert "[" not in perplexity_words(best_lines(result, row_words, score="perplexity", lowest=True)[0], 0)


def test_every_number_is_that_of_the_kept_model(trained):
    folder, config, result = trained
    data = text_of(config)
    assert result.provenance["architecture"]["texts"] == ["held_out", "other"]
    for place, cell in enumerate(config.grid()):
        name = str(cell).replace(":", "_")
        model = repflow.load(str(folder / "a.models" / name))
        network = model.network
        said = [text_loss(network, part, length=16) for part in data.tests.values()]
        assert result["perplexity"][place] == pytest.approx([float(loss.perplexity.mean) for loss in said], rel=1e-5)
        assert np.nansum(result["document_nats"][place], 1) == pytest.approx([loss.nats.sum() for loss in said])
        assert result["own_width"][place] == network.config.hidden_size
        assert model.tokenizer("a")["input_ids"] == [97]
        if "leaky" in cell.row or "chunks" in cell.row:
            leak = measure_leak(network, data.held_out, length=16, positions=20)
            assert result["leak"][place] == pytest.approx(float(leak.gap.mean), abs=1e-6)
        else:
            assert math.isnan(result["leak"][place])
    assert result["leak"][ROWS.index("mamba+chunks")] == pytest.approx(0, abs=1e-6)


def test_results_of_rows_that_read_their_future_say_so(trained):
    _, _, result = trained
    assert [finding.code for finding in result.findings if finding.code == "leaky"] == ["leaky"]
    assert result.provenance["architecture"]["leaky"] == ["mamba+leaky"]
    causal = STUDY.run(small(rows=["mamba"], steps=1, readings=0, flow_samples=0))
    assert not any(finding.code == "leaky" for finding in causal.findings)


def test_a_grid_whose_models_all_diverged_says_so(monkeypatch, tmp_path):
    built = STUDY.network

    def broken(cell, config):
        network = built(cell, config)
        with torch.no_grad():
            network.model.blocks[-1].mixer_norm.weight.fill_(torch.nan)
        return network

    monkeypatch.setattr(STUDY, "network", broken)
    other = tmp_path / "other.txt"
    other.write_text("Ships carry grain.\n<|endoftext|>\nA third of it is lost.")
    rows, texts = ["mamba", "mamba+leaky", "mamba+chunks"], [f"other={other}"]
    result = STUDY.run(small(rows=rows, test_texts=texts))
    assert (result["diverged_at"] == 1).all()
    assert result["perplexity"].shape == (3, 2)
    assert np.isnan(result["perplexity"]).all()
    assert [finding.code for finding in result.findings] == ["diverged"] * 3 + ["leaky"]
    assert not any("the others" in finding.message for finding in result.findings)
    console = Console(file=io.StringIO(), width=150)
    for part in view_of("architecture").view(result):
        console.print(part)
    assert "nan" not in console.file.getvalue()


def test_norms_and_spectra_before_and_after(trained):
    _, config, result = trained
    fresh = STUDY.build(config.grid()[1], config)
    matrix = fresh.model.blocks[0].mixer.input_output_matrix().detach().double()
    assert result["start_norm"][1] == pytest.approx([0.5, 0.5], rel=1e-5)
    assert float(torch.linalg.matrix_norm(matrix, 2)) == pytest.approx(0.5, rel=1e-5)
    assert (result["eigenvalues_real"][1] < 0).all()
    assert np.isnan(result["eigenvalues_real"][ROWS.index("transformer")]).all()
    assert result["token_norm"].shape == result["start_token_norm"].shape == (5, 3)
    assert result["perplexity_on_the_way"].shape == (5, 3)
    assert result.provenance["architecture"]["watched"] == [0, 2, 3]


def test_rows_begin_alike_at_a_seed(trained):
    """Reordering adds a vector and changes no other weight, so that rows are compared seed by seed."""
    _, config, _ = trained
    plain, chunks = (STUDY.build(config.grid()[ROWS.index(row)], small()) for row in ("mamba", "mamba+chunks"))
    assert torch.equal(plain.model.embeddings.weight, chunks.model.embeddings.weight)
    assert torch.equal(plain.model.blocks[1].mixer.A_log, chunks.model.blocks[1].mixer.A_log)


@pytest.mark.parametrize("row", ["mamba+shared", "mamba-conv", "mamba-norm", "mamba+leaky", "transformer", "h3"])
def test_widths_match_the_parameters_of_another_row(row):
    numbers, size = Numbers(), {"layers": 4, "vocabulary": 300}
    width = matched_width(row, "mamba", 4, 128, 300, numbers)
    ours, goal = (
        count_parameters(word, width=at, numbers=numbers, **size) for word, at in ((row, width), ("mamba", 128))
    )
    beside = [count_parameters(row, width=width + step, numbers=numbers, **size) for step in (-8, 8)]
    assert beside[0] < ours < beside[1]
    assert abs(ours - goal) <= min(abs(count - goal) for count in beside)
    cell = small(rows=[row], layers=["4"], widths=["128"], lengths=["32"]).grid()[0]
    config = small(rows=[row], layers=["4"], widths=["128"], lengths=["32"], match_row="mamba")
    network = STUDY.build(cell, config)
    exact = count_parameters(row, 4, STUDY.width(cell, config), text_of(config).vocabulary, config.row_numbers())
    assert sum(part.numel() for part in network.parameters()) == exact


def test_models_are_outlined_without_numbers_and_group_as_built_ones_do():
    rows = [*ROWS, "mamba+shared", "mamba-norm", "h3"]
    config = small(rows=rows)
    for cell in config.grid():
        outlined, built = STUDY.outline(cell, config), STUDY.build(cell, config)
        assert STUDY.shape(outlined, cell, config) == STUDY.shape(built, cell, config), cell
        # a scale by a spectral norm and H3's poles are computed from numbers
        real = "scaled" in cell.row or cell.row == "h3"
        assert {part.is_meta for part in outlined.parameters()} == {not real}, cell
        assert not any(part.is_meta for part in built.parameters()), cell


def test_operations_count_shared_weights_in_every_layer():
    shared, own = (small(rows=[row], layers=["6"]) for row in ("mamba+shared", "mamba"))
    assert STUDY.flops(shared, STUDY.size(shared)) == STUDY.flops(own, STUDY.size(own))
    assert STUDY.size(shared).parameters < STUDY.size(own).parameters / 2


def test_short_windows_have_as_many_tokens_as_long_ones():
    config = small(rows=["mamba"], lengths=["8", "16"])
    assert [STUDY.step_tokens(cell, config) for cell in config.grid()] == [32.0, 32.0]
    assert [STUDY.source(cell, config, torch.device("cpu")).rows for cell in config.grid()] == [4, 2]
    assert STUDY.reads(config) == (config.steps * (4 + 2), config.steps * 64)


def test_a_cell_has_a_command_that_trains_it_again(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the command names no folder of runs
    _, _, result = trained
    words = result.provenance["cells"][3]["command"].split()
    assert words[:2] == ["repflow", "architecture"]
    done = CliRunner().invoke(app, [*words[1:], "--json"])
    assert done.exit_code == 0, done.output
    place = words[3].split(",").index(result.provenance["cells"][3]["cell"])
    again = json.loads(done.stdout)["metrics"]["perplexity"]["values"]
    assert again[place] == pytest.approx(result["perplexity"][3], rel=1e-5)


def test_a_text_that_changes_is_read_again_by_the_next_call(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n<|endoftext|>\n".join(f"line {number} of the first text" for number in range(20)))
    config = small(text=[str(text)], rows=["mamba"], steps=1, readings=0, flow_samples=0)
    first = STUDY.run(config, out=tmp_path / "runs")
    text.write_text("\n<|endoftext|>\n".join(f"row {number} of another one" for number in range(20)))
    begun = text_of(config)
    assert begun is text_of(config)  # models of one run read the same
    assert begun.facts() == first.provenance["architecture"]["data"]
    with pytest.raises(ConfigChangedError, match="train"):
        STUDY.run(config, out=tmp_path / "runs")
    again = STUDY.run(config, out=tmp_path / "others")
    assert again.provenance["architecture"]["data"] != first.provenance["architecture"]["data"]


BAD = {
    "chunk": ({"chunk": 16, "rows": ["mamba+chunks"]}, "chunk below the 16 tokens"),
    "temperature": ({"sort_temperature": 0.0}, r"\+hard for a temperature of 0"),
    "row": ({"rows": ["mamba+sort"]}, "parts with"),
    "text": ({"text": ["nowhere.txt"]}, "does not exist"),
    "others": ({"test_texts": ["wiki.txt"]}, "NAME=PATH"),
    "share": ({"held_out_share": 0.0}, "between 0 and 1"),
    "match": ({"match_row": "mambo"}, "did you mean mamba"),
    "beta": ({"second_beta": 1.0}, "second_beta from 0 to 1"),
    "small text": ({"batch": 4000}, "text for one batch"),
    "length": ({"lengths": ["1"]}, "at least 2 tokens"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_requests_are_refused_and_leave_nothing(tmp_path, case):
    changes, words = BAD[case]
    with pytest.raises(InputError, match=words):
        STUDY.run(small(**changes), out=tmp_path)
    assert not list(tmp_path.iterdir())
