"""Every spec form gives the same model; wrong ones are refused with the remedy; nothing local makes a connection."""

import importlib.util
import json
import shutil
import socket
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForImageClassification

from repflow.core.errors import InputError, MissingExtraError, UnsupportedModelError
from repflow.models import Model, families, load
from tests.models.tiny_configs import CONFIGS, NAMED, UNLISTED, save_tiny, tiny_config, tiny_model
from tests.sample import sampled

MODULE = sys.modules["repflow.models.load"]  # the package's attribute of that name is the function


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_tiny("gpt_neox", tmp_path_factory.mktemp("models") / "tiny-neox")


@pytest.fixture
def offline(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError(f"a connection was attempted: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def last_state(model: Model) -> torch.Tensor:
    ids = torch.arange(12).reshape(2, 6)
    hidden = []
    model.stream(ids, on_state=lambda i, h: hidden.append(h.clone()))
    return hidden[-1]


@pytest.mark.parametrize("model_type", NAMED + UNLISTED)
def test_folder_round_trip_without_a_connection(model_type, tmp_path, offline):
    model = load(save_tiny(model_type, tmp_path / "m"))
    live = load(tiny_model(model_type))
    assert (model.name, model.init, model.revision, model.tokenizer) == ("m", "trained", None, None)
    assert model.digest() == live.digest()
    assert torch.equal(last_state(model), last_state(live))


@pytest.mark.parametrize("model_type", sampled(NAMED))
def test_config_spec_is_random_and_seeded(model_type, tmp_path, offline):
    tiny_config(model_type).to_json_file(tmp_path / f"{model_type}.json", use_diff=False)
    spec = f"config:{tmp_path}/{model_type}.json"
    first, again, other = load(spec), load(spec), load(spec, seed=1)
    assert (first.name, first.init) == (model_type, "default")
    assert first.digest() == again.digest() != other.digest()


def test_twin_of_a_folder_and_of_a_live_model_agree(folder):
    network = tiny_model("gpt_neox")
    before = load(network).digest()
    twins = [load(folder, init="default", seed=5), load(network, init="default", seed=5)]
    assert twins[0].digest() == twins[1].digest() != before
    assert load(network).digest() == before, "the live model itself is left alone"
    assert twins[0].init == "default"


def test_building_does_not_disturb_the_global_generator(folder):
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    load(folder, init="xavier", seed=9)
    assert torch.equal(torch.rand(3), expected)


def test_dtype_and_live_options(folder):
    assert load(folder).dtype == torch.float32
    assert load(folder, dtype="float64").dtype == torch.float64
    assert load(tiny_model("gpt2").double()).dtype == torch.float64
    assert load(tiny_model("gpt2"), dtype=torch.float64, device="cpu").dtype == torch.float64
    with pytest.raises(InputError, match="did you mean float32"):
        load(folder, dtype="float23")
    with pytest.raises(InputError, match=r"a floating-point dtype; got torch\.int8"):
        load(folder, dtype=torch.int8)


def test_device_map(folder):
    pytest.importorskip("accelerate")
    assert torch.equal(last_state(load(folder, device_map="auto")), last_state(load(folder)))
    assert load(folder, device_map="auto", init="default").digest() == load(folder, init="default").digest()


def test_device_map_without_accelerate(folder, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"needs accelerate.*pip install 'repflow\[accelerate\]'"):
        load(folder, device_map="auto")


def test_unknown_folder_names_the_nearest(folder):
    with pytest.raises(InputError, match="did you mean tiny-neox"):
        load(folder.parent / "tiny-neo")
    with pytest.raises(InputError, match="does not exist; did you mean tiny-neox"):
        load(f"{folder.parent}/tiny-nex")


@pytest.mark.parametrize("spec", ["config:none.json", "none.gguf", "a/b/c/d", "", "a b"])
def test_specs_that_are_nothing(spec):
    with pytest.raises(InputError, match=r"a model folder, hub id, config:FILE\.json or FILE\.gguf"):
        load(spec)


def test_an_unknown_name_of_the_zoo_teaches_the_names():
    with pytest.raises(InputError, match=r"unknown model of the zoo 'transformer'; known: gpt-neo, .*mamba2"):
        load("zoo:transformer")


@pytest.mark.parametrize("spec", ["nobody/no-such-model", "nobody/no-such-model@step1"])
def test_hub_without_network(spec, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("We couldn't connect to the hub")

    monkeypatch.setattr(MODULE, "cached_file", refuse)
    monkeypatch.setattr(MODULE, "hub_reachable", lambda: False)
    with pytest.raises(InputError, match=rf"hub repository '{spec}'.*couldn't connect.*or name, or the network"):
        load(spec)


def test_hub_that_cannot_be_resolved_is_not_waited_for(monkeypatch, offline):
    def unresolved(*args, **kwargs):
        raise socket.gaierror("Name or service not known")

    MODULE.hub_reachable.cache_clear()
    monkeypatch.setattr(MODULE, "getproxies", dict)
    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    try:
        with pytest.raises(InputError, match="check the path or name, or the network"):
            load("nobody/no-such-model")
        monkeypatch.setattr(MODULE, "getproxies", lambda: {"https": "proxy:1"})
        MODULE.hub_reachable.cache_clear()
        assert MODULE.hub_reachable()
    finally:
        MODULE.hub_reachable.cache_clear()


def test_revision_reaches_the_hub(monkeypatch, folder):
    asked = []

    def fetch(name, file, revision, local_files_only):
        asked.append((name, file, revision))
        return str(folder / file)

    monkeypatch.setattr(MODULE, "cached_file", fetch)
    monkeypatch.setattr(
        MODULE, "_from_pretrained", lambda name, options, _: asked.append(options) or tiny_model("gpt_neox")
    )
    monkeypatch.setattr(MODULE.AutoConfig, "from_pretrained", lambda *args, **options: asked.append(options))
    monkeypatch.setattr(MODULE, "hub_reachable", lambda: True)
    monkeypatch.setattr(MODULE, "hub_tokenizer", lambda *args, **options: None)
    model = load("org/name@step1000")
    assert (model.revision, model.name) == ("step1000", "name")
    assert asked[0] == ("org/name", "config.json", "step1000")
    assert all(call["revision"] == "step1000" for call in asked if isinstance(call, dict))


def test_folder_wins_over_the_hub(folder, monkeypatch, offline):
    monkeypatch.chdir(folder.parent)
    assert load("tiny-neox").n_layers == 4


def test_folder_without_config(tmp_path):
    with pytest.raises(InputError, match=r"a folder with a config\.json.*give a Hugging Face model folder"):
        load(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    with pytest.raises(InputError, match=f"which holds 2 such folders; name one, such as {tmp_path}/a"):
        load(tmp_path)


def test_folder_without_weights(folder, tmp_path):
    shutil.copy(folder / "config.json", tmp_path)
    with pytest.raises(InputError, match=r"weights in model\.safetensors or pytorch_model\.bin"):
        load(tmp_path)
    assert load(tmp_path, init="default").n_layers == 4


def test_incomplete_checkpoint_is_not_filled_with_random_numbers(tmp_path):
    network = tiny_model("llama")
    weights = {k: v for k, v in network.state_dict().items() if "layers.2.mlp" not in k}
    network.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(InputError, match=r"lacks 3 of them .*layers\.2\.mlp"):
        load(tmp_path)


def test_checkpoint_of_a_base_model_has_no_head(tmp_path):
    tiny_model("llama").model.save_pretrained(tmp_path)
    model = load(tmp_path)
    assert model.head is None
    assert torch.equal(last_state(model), last_state(load(tiny_model("llama"))))
    with pytest.raises(InputError, match="a model with a head"):
        model.logits(last_state(model))


def test_remote_code_is_refused_unless_asked(folder, tmp_path):
    marker = tmp_path / "executed"
    config = {"model_type": "never_heard_of", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "code.py").write_text(f"open({str(marker)!r}, 'w')")
    with pytest.raises(InputError, match="its own Python code; pass trust_remote_code=True"):
        load(tmp_path)
    assert not marker.exists()


def test_native_code_is_used_where_transformers_has_it(folder, tmp_path, offline):
    shutil.copytree(folder, tmp_path / "m")
    data = json.loads((folder / "config.json").read_text())
    (tmp_path / "m/config.json").write_text(json.dumps({**data, "auto_map": {"AutoConfig": "code.C"}}))
    assert load(tmp_path / "m").digest() == load(folder).digest()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a readable JSON file"),
        ("[]", "a JSON object"),
        ('{"model_type": "gpt_nex"}', "did you mean gpt_neox"),
        ('{"hidden_size": 3}', "no model_type"),
        ('{"model_type": "bert_nothing_like_it_at_all"}', "a model_type that transformers knows"),
        ('{"model_type": "gpt_neox", "hidden_size": 30, "num_attention_heads": 4}', "a valid"),
    ],
)
def test_bad_configurations(text, message, tmp_path):
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(InputError, match=message):
        load(f"config:{tmp_path}/c.json")


TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99}
SEEING_AHEAD = {
    "bert": (TINY, "an encoder, whose tokens see later ones too"),
    "roberta": (TINY, "an encoder, whose tokens see later ones too"),
    "modernbert": ({**TINY, "pad_token_id": 0}, "an encoder, whose tokens see later ones too"),
    "t5": ({"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}, "an encoder-decoder"),
    "bart": ({"d_model": 32, "encoder_layers": 1, "decoder_layers": 1}, "an encoder-decoder"),
}


@pytest.mark.parametrize("model_type", SEEING_AHEAD)
def test_encoders_are_refused_by_name(model_type, tmp_path, offline):
    fields, message = SEEING_AHEAD[model_type]
    network = AutoModel.from_config(AutoConfig.for_model(model_type, **{"vocab_size": 99, **fields}))
    expected = rf"expected a decoder, .* got {model_type}, {message}.*; use a causal language model"
    with pytest.raises(UnsupportedModelError, match=expected):
        load(network)
    network.save_pretrained(tmp_path / "folder")
    for spec in (tmp_path / "folder", f"config:{tmp_path}/folder/config.json"):
        with pytest.raises(UnsupportedModelError, match=expected):
            load(spec)


def test_language_models_beside_a_vision_tower_or_without_a_head(tmp_path, offline):
    """Those that transformers has in no class of causal language models."""
    for model_type in ("glm5_next", "glm5_next_text"):
        live = load(tiny_model(model_type))
        model = load(save_tiny(model_type, tmp_path / model_type))
        assert (model.digest(), model.layer_kinds) == (live.digest(), ["recurrent", "attention"] * 2)


def test_a_model_without_tokens_is_refused_for_that(tmp_path, offline):
    options = {name: value for name, value in TINY.items() if name != "vocab_size"}
    AutoModel.from_config(AutoConfig.for_model("audio-spectrogram-transformer", **options)).save_pretrained(
        tmp_path / "m"
    )
    with pytest.raises(
        UnsupportedModelError, match=r"ASTModel raised .*; repflow reads decoders that run on token ids alone"
    ):
        load(tmp_path / "m")


def test_classifiers_of_images_are_sent_to_their_commands(tmp_path):
    fields = {"image_size": 8, "patch_size": 4, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    AutoModelForImageClassification.from_config(AutoConfig.for_model("vit", **fields)).save_pretrained(tmp_path)
    with pytest.raises(
        UnsupportedModelError, match="got vit, which reads images; only repflow corrupt and repflow attack"
    ):
        load(tmp_path)


def test_an_encoders_class_as_a_decoder_is_a_decoder():
    config = AutoConfig.for_model("bert", **TINY, is_decoder=True)
    assert load(AutoModel.from_config(config)).layer_kinds == ["attention", "attention"]


def test_an_unlisted_model_that_looks_ahead_is_found(monkeypatch):
    monkeypatch.setattr(families, "MODEL_FOR_MASKED_LM_MAPPING_NAMES", {})
    network = AutoModel.from_config(AutoConfig.for_model("bert", **TINY))
    with pytest.raises(
        UnsupportedModelError, match=r"'causal' failed: block 1 \(BertLayer\) shows a token those after"
    ):
        load(network)


def test_digest_sees_every_change(folder):
    model = load(folder)
    digest = model.digest()
    assert digest.endswith(":blocks-2")
    with torch.no_grad():
        model.blocks[2].mlp.dense_4h_to_h.bias[3] += 1e-6
    assert model.digest() != digest
    assert load(folder, dtype="float64").digest() != digest


def test_every_named_architecture_is_here():
    assert len(NAMED) == 18
    assert len(CONFIGS) == 18 + len(UNLISTED)
