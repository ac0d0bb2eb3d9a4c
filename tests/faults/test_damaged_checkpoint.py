"""A damaged checkpoint is refused in plain words, whatever the libraries that read it raise."""

import functools
import inspect
import shutil
from pathlib import Path

import pytest
import transformers

from repflow.core.errors import InputError
from repflow.models import load
from repflow.models.tokenizer import local_tokenizer
from repflow.tasks import chat
from repflow.tasks.chat import ChatEncoder, bounded_steps
from repflow.tasks.prompt import Encoder
from tests.faults.damaged_checkpoints import (
    CONFIGS,
    KINDS,
    LLAMA,
    OTHERS,
    TEMPLATES,
    TOKENIZERS,
    WEIGHTS,
    config,
    whole_folder,
)

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SHAPES = {name: ("llama", change) for name, change in (CONFIGS | LLAMA).items()} | OTHERS
USABLE = {
    *("dtype number", "architectures text", "architectures number", "architectures unknown", "label list"),
    *("quantization fp8", "rope theta zero", "positions zero", "mamba expand zero", "neox rotary"),
    *("tokenizer ids beyond the model", "tokenizer added huge", "tokenizer class unknown"),
    *("tokenizer template number", "tokenizer length text", "tokenizer own code"),
}
"""What transformers does not look at, or what shows later: the model loads."""
USABLE_SHAPES = {
    *("vocabulary other", "quantization gptq", "quantization awq", "quantization bitsandbytes", "intermediate zero"),
    *("mamba state zero", "jamba experts zero"),
}
"""What is an architecture of its own, with random weights."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("whole")
    return {kind: whole_folder(kind, base / kind) for kind in KINDS}


def refused(folder: Path, **options) -> str | None:
    """The message, or None where it loads."""
    try:
        load(folder, **options)
    except InputError as error:
        message = str(error)
    else:
        return None
    assert len(message) > 30
    assert ";" in message, "what to do"
    return message


def damaged(whole, tmp_path, kind, change) -> Path:
    folder = tmp_path / "case"
    shutil.copytree(whole[kind], folder)
    change(folder)
    return folder


@pytest.mark.parametrize("name", SHAPES)
def test_damaged_configuration(name, whole, tmp_path):
    folder = damaged(whole, tmp_path, *SHAPES[name])
    assert refused(folder) or name in USABLE
    assert refused(folder, init="default") or name in USABLE | USABLE_SHAPES


@pytest.mark.parametrize("name", WEIGHTS | TOKENIZERS)
def test_damaged_weights_and_tokenizers(name, whole, tmp_path):
    assert refused(damaged(whole, tmp_path, "llama", (WEIGHTS | TOKENIZERS)[name])) or name in USABLE


@pytest.mark.parametrize("kind", KINDS)
def test_the_folders_are_whole_before(kind, whole):
    assert load(whole[kind]).tokenizer.chat_template


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("llama", config(num_hidden_layers=10**9)),
        ("gpt2", config(n_layer=10**9)),
        ("jamba", config(num_experts=10**9)),
        ("llama", config(text_config={"num_hidden_layers": 10**9})),
        ("gpt2", config(attention_types=[[["global"], 10**9]])),
    ],
)
def test_counts_are_looked_at_before_anything_is_built(kind, change, whole, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("transformers saw it")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", fail)
    assert "at most 10,000 layers or experts" in refused(damaged(whole, tmp_path, kind, change))


@pytest.mark.parametrize("name", ["index leaves the folder", "index absolute", "index leaves for weights"])
def test_weights_outside_the_folder_are_not_opened(name, whole, tmp_path):
    folder = damaged(whole, tmp_path, "llama", WEIGHTS[name])
    (tmp_path / "other").mkdir()
    shutil.copy(whole["llama"] / "model.safetensors", tmp_path / "other")  # it is there and whole
    assert "weights inside the model's folder" in refused(folder)


@pytest.mark.parametrize("init", ["trained", "default"])
def test_weights_beyond_the_machine_are_refused(init, whole, tmp_path):
    message = refused(damaged(whole, tmp_path, "llama", config(vocab_size=10**13)), init=init)
    assert ("memory and swap" if init == "default" else "shapes that config.json gives") in message


@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_templates(name, whole):
    tokenizer = local_tokenizer(whole["llama"])
    tokenizer.chat_template = TEMPLATES[name]
    with pytest.raises(InputError, match=r"a chat template that renders one user's turn.*; leave chat_template"):
        ChatEncoder(Encoder(tokenizer))


def test_a_chat_template_without_an_end_is_stopped(whole, monkeypatch):
    monkeypatch.setattr(chat, "bounded_steps", functools.partial(bounded_steps, 20_000))  # seconds with a million
    tokenizer = local_tokenizer(whole["llama"])
    loop = "{% for a in range(100000) %}"
    tokenizer.chat_template = loop * 3 + "x" + "{% endfor %}" * 3
    with pytest.raises(InputError, match="more than 20,000 steps"):
        ChatEncoder(Encoder(tokenizer))
    assert inspect.signature(bounded_steps).parameters["most"].default == chat.STEPS == 1_000_000


def test_steps_outside_templates_are_not_counted():
    with bounded_steps(3):
        assert sum(range(100)) == sum(i for i in range(100))
