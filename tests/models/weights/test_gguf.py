"""A .gguf file gives the model it was written from."""

import importlib.util

import numpy as np
import pytest
import torch

import repflow
from repflow.core.errors import InputError, MissingExtraError
from repflow.models import load
from tests.models.tiny_configs import tiny_model

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write(network, path):
    """Write a tiny Qwen 2 (its rotary layout needs no permutation) as llama.cpp does."""
    gguf = pytest.importorskip("gguf")
    config = network.config
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    for name, tensor in network.state_dict().items():
        writer.add_tensor(_gguf_name(name), tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name):
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    module, _, kind = name.rpartition(".")
    if module in whole:
        return f"{whole[module]}.{kind}"
    _, _, layer, rest = module.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.{kind}"


def test_same_states(tmp_path):
    network = tiny_model("qwen2")
    model = load(write(network, tmp_path / "tiny.gguf"))
    assert (model.name, model.n_layers, model.dtype) == ("tiny", 4, torch.float32)
    hidden, expected = [], []
    ids = torch.arange(10)[None]
    model.stream(ids, on_state=lambda i, h: hidden.append(h))
    load(network).stream(ids, on_state=lambda i, h: expected.append(h))
    for a, b in zip(hidden, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert load(tmp_path / "tiny.gguf", init="default").init == "default"


def test_influence_of_unpacked_weights(tmp_path):
    """transformers unpacks the file to float32 and goes on calling the model quantised."""
    network = tiny_model("qwen2")
    model = load(write(network, tmp_path / "tiny.gguf"))
    assert model.network.is_quantized
    ids = [[5, 9, 11, 3, 8, 2, 40, 7]]
    got, want = repflow.influence(model, ids), repflow.influence(network, ids)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-3, atol=1e-6, err_msg=name)


def test_not_a_gguf_file(tmp_path):
    pytest.importorskip("gguf")
    (tmp_path / "x.gguf").write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="x"):
        load(tmp_path / "x.gguf")


def test_without_the_extra(tmp_path, monkeypatch):
    (tmp_path / "x.gguf").write_bytes(b"")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'repflow\[gguf\]'"):
        load(tmp_path / "x.gguf")
