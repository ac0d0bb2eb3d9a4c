"""What Python calls take besides names of tasks: texts with a length, tokenizers' output, functions as tokenizer and
metric; and that errors name keyword arguments."""

import copy
import pathlib

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import repflow
from repflow.cli.main import app
from repflow.core.errors import InputError, in_python
from repflow.metrics.custom import CUSTOM
from repflow.tasks import Encoder, Prompts, text_prompts
from tests.studies.compare.inputs import TEXTS, bytes_tokenizer, model, network, words_tokenizer

WORDS = [len(text.split()) for text in TEXTS]


def kept_ids(result):
    return [entry["ids"] for entry in result.provenance["kept"]]


@pytest.mark.parametrize("bos", ["never", "always"])
def test_length_cuts_every_text(bos):
    loaded = model("gpt2", words_tokenizer)
    loaded = repflow.load(network("gpt2"), tokenizer=words_tokenizer(bos=True)) if bos == "always" else loaded
    whole = repflow.measure(loaded, TEXTS, bos=bos)
    cut = repflow.measure(loaded, TEXTS, bos=bos, length=7)
    assert cut.provenance["lengths"] == [7, 7, 7]
    assert cut.config["length"] == 7
    assert kept_ids(cut) == [ids[:7] for ids in kept_ids(whole)]
    assert cut.provenance["kept"][0]["text"] == " ".join(TEXTS[0].split()[: 7 - (bos == "always")])
    np.testing.assert_allclose(cut["token_norm"][..., :3], whole["token_norm"][..., :3], rtol=1e-5)
    assert repflow.measure(loaded, TEXTS, bos=bos, length="1K").provenance["lengths"] == whole.provenance["lengths"]


def test_without_a_length_texts_are_read_whole_and_all():
    many = [TEXTS[0]] * 10
    assert repflow.measure(model("gpt2", words_tokenizer), many).provenance["lengths"] == [WORDS[0]] * 10


def test_samples_takes_the_first():
    loaded = model("gpt2", words_tokenizer)
    result = repflow.measure(loaded, TEXTS, samples=2, length=9)
    assert result.provenance["lengths"] == [9, 9]
    with pytest.raises(InputError, match="expected at least 4 texts; got 3; pass more of them, a smaller samples, or"):
        repflow.measure(loaded, TEXTS, samples=4)
    with pytest.raises(InputError, match="expected at least 3 rows of token ids; got 2"):
        repflow.measure(loaded, [[1, 2, 3], [4, 5, 6]], samples=3)


def test_length_cuts_ids_and_is_refused_for_ready_prompts():
    loaded = model("gpt2", words_tokenizer)
    for ids in ([[1, 2, 3, 4], [5, 6, 7]], torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])):
        assert repflow.measure(loaded, ids, length=3).provenance["lengths"] == [3, 3]
    ready = text_prompts(TEXTS, Encoder(loaded.tokenizer))
    assert isinstance(ready, Prompts)
    with pytest.raises(InputError, match="token ids with length 5; got ready Prompts with 23; leave length out"):
        repflow.measure(loaded, ready, length=5)
    with pytest.raises(InputError, match="length >= 2"):
        repflow.measure(loaded, TEXTS, length=1)
    with pytest.raises(InputError, match="prompts of at least 2 tokens; got 1 in sample 1"):
        repflow.measure(loaded, ["two words", "one"], length=5)


def test_influence_and_compare_take_a_length_too():
    loaded = model("gpt2", words_tokenizer)
    assert repflow.influence(loaded, TEXTS, length=8)["log_influence"].shape == (3, 8)
    for other in (words_tokenizer, bytes_tokenizer):
        result = repflow.compare(loaded, model("gpt_neox", other), TEXTS, length=12, samples=2, neighbours=3)
        assert max(result.provenance["lengths"]["a"] if "lengths" in result.provenance else [12]) <= 12
        assert result["cka_cross"].shape[-1] == 2


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("tensors", [None, "pt", "np"])
def test_what_a_tokenizer_returns(side, tensors):
    loaded = model("gpt2", words_tokenizer)
    tokenizer = copy.deepcopy(words_tokenizer())
    tokenizer.pad_token, tokenizer.padding_side = "[UNK]", side
    encoding = tokenizer(TEXTS, padding=True, return_tensors=tensors)
    want = repflow.measure(loaded, TEXTS)
    got = repflow.measure(loaded, encoding)
    assert kept_ids(got) == kept_ids(want)
    np.testing.assert_array_equal(got["token_similarity"], want["token_similarity"])
    assert kept_ids(repflow.measure(loaded, dict(encoding), length=5)) == [ids[:5] for ids in kept_ids(want)]
    assert torch.equal(repflow.states(loaded, encoding).hidden, repflow.states(loaded, TEXTS).hidden)
    np.testing.assert_array_equal(
        repflow.influence(loaded, encoding)["log_influence"], repflow.influence(loaded, TEXTS)["log_influence"]
    )


def test_encodings_of_one_text_and_wrong_ones():
    loaded = model("gpt2", words_tokenizer)
    one = words_tokenizer()(TEXTS[0])
    assert kept_ids(repflow.measure(loaded, one)) == [one["input_ids"]]
    with pytest.raises(
        InputError, match=r"token ids under 'input_ids'; got a mapping with ids; pass tokenizer\(texts\)"
    ):
        repflow.measure(loaded, {"ids": [[1, 2]]})
    with pytest.raises(InputError, match="ones with padding at its ends; got a hole in sample 0"):
        repflow.measure(loaded, {"input_ids": [[1, 2, 3]], "attention_mask": [[1, 0, 1]]})
    with pytest.raises(InputError, match="one entry of attention_mask per token id"):
        repflow.measure(loaded, {"input_ids": [[1, 2, 3]], "attention_mask": [[1, 1]]})


def letters(text):
    return [ord(letter) % 200 for letter in text]


def test_a_function_is_a_tokenizer():
    want = repflow.measure(network("gpt2"), [letters(text) for text in TEXTS])
    for function in (letters, lambda text: torch.tensor(letters(text)), lambda text: {"input_ids": letters(text)}):
        got = repflow.measure(network("gpt2"), TEXTS, tokenizer=function)
        np.testing.assert_array_equal(got["token_similarity"], want["token_similarity"])
    loaded = repflow.load(network("gpt2"), tokenizer=letters)
    assert repflow.measure(loaded, TEXTS, length=20).provenance["kept"][0]["tokens"][0] == str(letters("t")[0])
    assert repflow.measure(network("gpt2"), TEXTS, tokenizer=letters).config["tokenizer"] == "letters"


def test_a_function_as_tokenizer_reads_files_and_can_decode(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text(" ".join(TEXTS), encoding="ascii", errors="ignore")
    result = repflow.measure(network("gpt2"), "text", text=[file], tokenizer=letters, length=30, samples=2)
    assert result.provenance["kept"][0]["text"] is None
    chars = lambda text: letters(text)  # noqa: E731
    chars.decode = lambda ids: "".join(map(chr, ids))
    result = repflow.measure(network("gpt2"), "text", text=[file], tokenizer=chars, length=30, samples=2)
    assert result.provenance["kept"][0]["text"].startswith("the river")
    with pytest.raises(InputError, match="a tokenizer that turns ids into text; got letters, a function from text"):
        repflow.load(network("gpt2"), tokenizer=letters).tokenizer.decode([1, 2])


def test_a_tokenizer_of_the_library_tokenizers():
    raw = words_tokenizer().backend_tokenizer
    want = repflow.measure(model("gpt2", words_tokenizer), TEXTS)
    np.testing.assert_array_equal(
        repflow.measure(network("gpt2"), TEXTS, tokenizer=raw)["stability"], want["stability"]
    )


@pytest.mark.parametrize(("wrong", "message"), [(5, "got int"), (lambda text: text.split(), "a list of token ids")])
def test_what_is_not_a_tokenizer_is_refused_at_once(wrong, message):
    with pytest.raises(InputError, match=message):
        repflow.load(network("gpt2"), tokenizer=wrong)


def spread(hidden):
    return hidden.std((1, 2))


def step(hidden):
    return (hidden[1:] - hidden[:-1]).norm(dim=-1)


def whole(hidden):
    return float(hidden.mean())


def test_functions_are_metrics():
    ids = torch.arange(20).reshape(2, 10)
    result = repflow.measure(model("gpt2"), ids, metrics=["token_similarity", spread, step, whole])
    hidden = repflow.states(model("gpt2"), ids).hidden
    np.testing.assert_allclose(result["spread"], hidden.std((2, 3)), rtol=1e-5)
    assert result.axes["spread"] == ("state", "sample")
    np.testing.assert_allclose(result["step"], (hidden[1:] - hidden[:-1]).norm(dim=-1), rtol=1e-4)
    assert result.axes["step"] == ("layer", "sample", "token")
    assert result.axes["whole"] == ("sample",)
    assert result.config["metrics"] == ["token_similarity", "spread", "step", "whole"]
    assert list(repflow.measure(model("gpt2"), ids, metrics=spread)) == ["spread"]
    assert CUSTOM["spread"][1] is spread


def odd(hidden):
    return hidden[:, :2]


def broken(hidden):
    return hidden @ hidden


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            odd,
            r"states, layers, tokens or channels from odd; got shape \(4, 2, 5\) .*repflow.register_metric\(odd, axes=",
        ),
        (broken, r"a function broken of hidden \(state, token, width\); got RuntimeError: .*repflow.register_metric"),
        (lambda hidden: hidden.mean(), "pass name='...' to register_metric"),
    ],
)
def test_functions_whose_axes_are_not_known_teach_register_metric(function, message):
    with pytest.raises(InputError, match=message):
        repflow.measure(model("gpt2"), [[1, 2, 3]], metrics=[function])


def test_unknown_tokens_are_a_finding():
    loaded = model("gpt2", words_tokenizer)
    strange = ["qwe rty uio pas dfg hjk lzx cvb nmq the", TEXTS[0]]
    unknown = [f for f in repflow.measure(loaded, strange).findings if f.code == "unknown_tokens"]
    assert len(unknown) == 1
    assert "% of the tokens are '[UNK]'" in unknown[0].message
    assert "(90% in sample 0)" in unknown[0].message
    assert any(f.code == "unknown_tokens" for f in repflow.influence(loaded, strange).findings)
    for texts, tokenizer in ((TEXTS[2:], words_tokenizer), (strange, bytes_tokenizer)):
        result = repflow.measure(model("gpt2", tokenizer), texts)
        assert "unknown_tokens" not in [f.code for f in result.findings]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("model.bin", "a file of weights without a configuration; put it beside its config.json and pass that folder"),
        ("model.safetensors", "a file of weights without a configuration; put it beside"),
        ("c.json", "a JSON file; pass config:"),
        ("notes.txt", "a file that is none of these; pass the folder of the model"),
    ],
)
def test_files_that_are_there_are_not_called_missing(name, remedy, tmp_path):
    (tmp_path / name).write_text("{}")
    for spec in (tmp_path / name, str(tmp_path / name)):
        with pytest.raises(InputError, match=remedy):
            repflow.load(spec)


def test_the_folder_of_a_lone_file_is_named(tmp_path):
    network("gpt2").save_pretrained(tmp_path)
    with pytest.raises(InputError, match=f"pass its folder, {tmp_path}"):
        repflow.load(tmp_path / "model.safetensors")


class Around(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner


def test_live_objects_that_are_no_models_of_transformers():
    with pytest.raises(InputError, match=r"got a live torch.nn.modules.rnn.LSTM, .*; wrap the layers as a"):
        repflow.measure(torch.nn.LSTM(4, 4), [[1, 2]])
    with pytest.raises(InputError, match="Around around one; pass the GPT2LMHeadModel inside it"):
        repflow.load(Around(network("gpt2")))
    for wrong in (5, None, ["zoo:mamba"]):
        with pytest.raises(InputError, match="expected a model spec, or a live model of transformers"):
            repflow.load(wrong)


def test_errors_name_keywords_in_python_and_options_on_the_command_line(tmp_path):
    network("gpt2").save_pretrained(tmp_path / "m")
    for options, keyword, option in (
        (
            {"batch_size": 0},
            "batch_size of at least 1; got 0; see the docstring",
            "--batch-size of at least 1; got 0; see",
        ),
        ({"cka_pool": "x"}, "cka_pool='mean' or rows; got 'x'", "--cka-pool mean or rows; got 'x'"),
        ({"dtype": "float16"}, "pass dtype='float32' or bfloat16, or allow_float16=True", "or --allow-float16 if you"),
        ({"scan": "fats"}, "expected scan='auto', reference, fast", "expected --scan auto, reference, fast"),
    ):
        with pytest.raises(InputError) as caught:
            repflow.measure(network("gpt2"), [[1, 2, 3]], **options)
        assert keyword in str(caught.value)
        assert "--" not in str(caught.value)
        name, value = next((f"--{k.replace('_', '-')}", str(v)) for k, v in options.items())
        done = CliRunner().invoke(app, ["measure", str(tmp_path / "m"), name, value, "--out", str(tmp_path / "runs")])
        assert done.exit_code == 2
        assert option in done.stderr
    with pytest.raises(InputError, match="batch_size of"):  # the command line's words end with the command
        repflow.measure(model("gpt2"), [[1, 2, 3]], batch_size=0)


def test_options_without_a_value_and_renamed_ones_are_those_of_the_commands():
    import dataclasses

    from repflow.core import errors
    from repflow.studies import measure
    from repflow.studies.compare import config as compare_config
    from repflow.studies.diagnose import study as diagnose
    from repflow.studies.memory import config as memory_config
    from repflow.studies.needle import config as needle_config
    from repflow.studies.probe import config as probe_config
    from repflow.studies.recency import config as recency_config

    switches, renamed = set(), {}
    for home in (compare_config, diagnose, measure, memory_config, needle_config, probe_config, recency_config):
        for config in vars(home).values():
            if dataclasses.is_dataclass(config) and getattr(config, "__module__", "") == home.__name__:
                for field in dataclasses.fields(config):
                    flag = field.metadata.get("flag", "--" + field.name.replace("_", "-")).removeprefix("--")
                    if "help" in field.metadata and field.type == "bool":
                        switches.add(flag)
                    if flag.replace("-", "_") != field.name:
                        renamed[flag] = field.name
    assert switches <= errors.SWITCHES
    assert renamed == errors.RENAMED
    assert in_python("run `repflow verify --repair RUN`") == "run `repflow verify --repair RUN`"


def test_paths_are_specs(tmp_path):
    network("gpt2").save_pretrained(tmp_path / "m")
    assert repflow.load(pathlib.Path(tmp_path / "m")).name == "m"
