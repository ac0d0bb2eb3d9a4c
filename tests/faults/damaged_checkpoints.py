"""About a hundred ways to damage a checkpoint, each a change of a tiny folder that is whole otherwise.

A case is a name and a function that changes the folder it is given. `BROKEN` are refused by `repflow.load`; for those
of `TOKENIZERS` the model is whole and its tokenizer is not.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.models.tiny_configs import tiny_model

Damage = Callable[[Path], None]
HUGE = 10**9
KINDS = ("llama", "gpt2", "mamba", "mamba2", "gpt_neox", "jamba")


def whole_folder(kind: str, folder: Path) -> Path:
    """A tiny checkpoint with a tokenizer and a chat template."""
    tiny_model(kind).save_pretrained(folder)
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, 128)}}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    return folder


def set_in(file: str, **changes: Any) -> Damage:
    """Keys of a JSON file, set; a dot goes into an object; None as written, `...` takes the key away."""

    def damage(folder: Path) -> None:
        path = folder / file
        data = json.loads(path.read_text())
        for key, value in changes.items():
            at = data
            *way, last = [key] if key.startswith("__") else key.split("__")
            for step in way:
                at = at[int(step) if isinstance(at, list) else step]
            if value is ...:
                del at[last]
            else:
                at[last] = value
        path.write_text(json.dumps(data))

    return damage


def config(**changes: Any) -> Damage:
    return set_in("config.json", **changes)


def content(file: str, data: bytes | str) -> Damage:
    """A file with other content."""
    raw = data.encode() if isinstance(data, str) else data
    return lambda folder: (folder / file).write_bytes(raw)


def cut(file: str, keep: float) -> Damage:
    """The beginning of a file."""

    def damage(folder: Path) -> None:
        raw = (folder / file).read_bytes()
        (folder / file).write_bytes(raw[: int(len(raw) * keep)])

    return damage


def index(weight_map: Any, **other: Any) -> Damage:
    """An index of shards in place of the single file, which becomes a.safetensors; `...` leaves the map out."""

    def damage(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "a.safetensors")
        data = {"metadata": {}, **other} | ({} if weight_map is ... else {"weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(json.dumps(data))

    return damage


def raw_index(text: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "a.safetensors")
        (folder / "model.safetensors.index.json").write_text(text)

    return damage


def header(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Another header in front of the tensors of model.safetensors."""

    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        raw = path.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        data = json.loads(raw[8 : 8 + size])
        changed = change(data)
        text = json.dumps(data if changed is None else changed).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size :])

    return damage


def _first(data: dict[str, Any], **changes: Any) -> None:
    name = next(key for key in data if key != "__metadata__")
    data[name] |= changes


def pickled(value: Any) -> Damage:
    """Weights in pytorch_model.bin."""

    def damage(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        torch.save(value, folder / "pytorch_model.bin")

    return damage


DEEP = "[" * 100_000 + "]" * 100_000
DEEP_OBJECT = '{"a":' * 100_000 + "1" + "}" * 100_000

CONFIGS: dict[str, Damage] = {
    "deep list": content("config.json", DEEP),
    "deep object": content("config.json", DEEP_OBJECT),
    "empty": content("config.json", ""),
    "bare list": content("config.json", "[1]"),
    "bare number": content("config.json", "3"),
    "not utf-8": content("config.json", b'{"model_type": "\xff\xfe"}'),
    "utf-16": content("config.json", '{"model_type": "llama"}'.encode("utf-16")),
    "cut": cut("config.json", 0.5),
    "a number of 5,000 digits": content("config.json", '{"model_type": "llama", "vocab_size": ' + "9" * 5000 + "}"),
    "NUL": content("config.json", b"\0" * 100),
    "no model_type": config(model_type=...),
    "model_type list": config(model_type=["llama"]),
    "model_type object": config(model_type={"a": 1}),
    "model_type number": config(model_type=3),
    "model_type null": config(model_type=None),
    "model_type path": config(model_type="../../etc/passwd"),
    "layers huge": config(num_hidden_layers=HUGE),
    "layers zero": config(num_hidden_layers=0),
    "layers negative": config(num_hidden_layers=-1),
    "layers text": config(num_hidden_layers="four"),
    "layers float": config(num_hidden_layers=4.5),
    "layers infinite": content("config.json", '{"model_type": "llama", "num_hidden_layers": 1e999}'),
    "layers null": config(num_hidden_layers=None),
    "layers list": config(num_hidden_layers=[4]),
    "layers true": config(num_hidden_layers=True),
    "width zero": config(hidden_size=0),
    "width negative": config(hidden_size=-32),
    "width huge": config(hidden_size=HUGE),
    "width text": config(hidden_size="32"),
    "width null": config(hidden_size=None),
    "width odd": config(hidden_size=33),
    "vocabulary zero": config(vocab_size=0),
    "vocabulary negative": config(vocab_size=-5),
    "vocabulary huge": config(vocab_size=10**15),
    "vocabulary null": config(vocab_size=None),
    "vocabulary other": config(vocab_size=99),
    "eps text": config(rms_norm_eps="small"),
    "initializer_range text": config(initializer_range="x"),
    "token id text": config(bos_token_id="one"),
    "token id huge": config(pad_token_id=10**9),
    "token id negative": config(pad_token_id=-500),
    "dtype unknown": config(dtype="float23"),
    "dtype list": config(dtype=["float32"]),
    "dtype number": config(dtype=32),
    "dtype dunder": config(dtype="__class__"),
    "torch_dtype unknown": config(dtype=..., torch_dtype="elephant"),
    "architectures text": config(architectures="LlamaForCausalLM"),
    "architectures number": config(architectures=3),
    "architectures unknown": config(architectures=["NoSuchModel"]),
    "quantization foreign": config(quantization_config={"quant_method": "elephant"}),
    "quantization gptq": config(quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 128}),
    "quantization awq": config(quantization_config={"quant_method": "awq", "bits": 4}),
    "quantization bitsandbytes": config(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
    "quantization fp8": config(quantization_config={"quant_method": "fp8"}),
    "quantization list": config(quantization_config=[1, 2]),
    "quantization text": config(quantization_config="gptq"),
    "quantization empty": config(quantization_config={}),
    "quantization number": config(quantization_config=4),
    "auto_map": config(model_type="own", auto_map={"AutoConfig": "evil.Config"}),
    "id2label text": config(id2label="x"),
    "id2label keys": config(id2label={"a": "b"}),
    "label list": config(label2id=[1, 2]),
    "tie text": config(tie_word_embeddings="maybe"),
    "stray dunder": config(__class__="x"),
    "stray method": config(to_dict="x", from_pretrained=3),
}
LLAMA: dict[str, Damage] = {
    "heads zero": config(num_attention_heads=0),
    "heads huge": config(num_attention_heads=HUGE),
    "heads uneven": config(num_attention_heads=5),
    "heads text": config(num_attention_heads="4"),
    "key heads zero": config(num_key_value_heads=0),
    "key heads uneven": config(num_key_value_heads=3),
    "head_dim zero": config(head_dim=0),
    "head_dim odd": config(head_dim=7),
    "head_dim huge": config(head_dim=HUGE),
    "intermediate zero": config(intermediate_size=0),
    "intermediate huge": config(intermediate_size=HUGE),
    "activation unknown": config(hidden_act="elephant"),
    "activation list": config(hidden_act=["silu"]),
    "activation null": config(hidden_act=None),
    "activation number": config(hidden_act=3),
    "rope type unknown": config(rope_parameters={"rope_type": "elephant", "rope_theta": 1e4}),
    "rope scaling list": config(rope_parameters=..., rope_scaling=["linear"]),
    "rope scaling text": config(rope_parameters=..., rope_scaling="linear"),
    "rope scaling unknown": config(rope_parameters=..., rope_scaling={"type": "elephant"}),
    "rope without factor": config(rope_parameters={"rope_type": "linear", "rope_theta": 1e4}),
    "rope factor text": config(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": "two"}),
    "rope theta zero": config(rope_parameters={"rope_type": "default", "rope_theta": 0}),
    "rope theta text": config(rope_parameters={"rope_type": "default", "rope_theta": "x"}),
    "rope longrope": config(rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1]}),
    "rope number": config(rope_parameters=3),
    "positions zero": config(max_position_embeddings=0),
    "positions text": config(max_position_embeddings="many"),
    "attention unknown": config(attn_implementation="elephant"),
    "attention hub kernel": config(attn_implementation="owner/kernel"),
    "layer_types short": config(layer_types=["full_attention"]),
    "layer_types unknown": config(layer_types=["elephant"] * 4),
}
OTHERS: dict[str, tuple[str, Damage]] = {
    "gpt2 heads zero": ("gpt2", config(n_head=0)),
    "gpt2 layers huge": ("gpt2", config(n_layer=HUGE)),
    "gpt2 positions huge": ("gpt2", config(n_positions=10**12)),
    "gpt2 positions zero": ("gpt2", config(n_positions=0)),
    "gpt2 activation": ("gpt2", config(activation_function="elephant")),
    "gpt2 inner huge": ("gpt2", config(n_inner=10**12)),
    "gpt2 dropout": ("gpt2", config(resid_pdrop="x")),
    "gpt2 dropout two": ("gpt2", config(resid_pdrop=2.0)),
    "mamba state zero": ("mamba", config(state_size=0)),
    "mamba expand zero": ("mamba", config(expand=0)),
    "mamba expand huge": ("mamba", config(expand=10**9, intermediate_size=...)),
    "mamba kernel zero": ("mamba", config(conv_kernel=0)),
    "mamba kernel huge": ("mamba", config(conv_kernel=10**12)),
    "mamba rank text": ("mamba", config(time_step_rank="x")),
    "mamba activation": ("mamba", config(hidden_act=4)),
    "mamba2 heads": ("mamba2", config(num_heads=7)),
    "mamba2 groups zero": ("mamba2", config(n_groups=0)),
    "mamba2 chunk zero": ("mamba2", config(chunk_size=0)),
    "mamba2 limit text": ("mamba2", config(time_step_limit=["a", "b"])),
    "neox rotary": ("gpt_neox", config(rotary_pct="x")),
    "jamba period zero": ("jamba", config(attn_layer_period=0)),
    "jamba experts huge": ("jamba", config(num_experts=10**9)),
    "jamba experts zero": ("jamba", config(num_experts=0)),
    "jamba layers huge": ("jamba", config(num_hidden_layers=HUGE)),
}
WEIGHTS: dict[str, Damage] = {
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "weights empty": content("model.safetensors", b""),
    "weights cut": cut("model.safetensors", 0.7),
    "weights cut in header": cut("model.safetensors", 0.01),
    "weights text": content("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:00\n"),
    "header length huge": content("model.safetensors", struct.pack("<Q", 2**63) + b"{}"),
    "header deep": content("model.safetensors", struct.pack("<Q", len(DEEP)) + DEEP.encode()),
    "header list": header(lambda data: [1]),
    "header dtype": header(lambda data: _first(data, dtype="F23")),
    "header dtype integers": header(lambda data: _first(data, dtype="I32")),
    "header shape": header(lambda data: _first(data, shape=[2**62, 2**62])),
    "header shape other": header(lambda data: _first(data, shape=[4, 8])),
    "header shape negative": header(lambda data: _first(data, shape=[-1, 8])),
    "header offsets": header(lambda data: _first(data, data_offsets=[0, 2**60])),
    "header offsets back": header(lambda data: _first(data, data_offsets=[64, 0])),
    "header names": header(lambda data: {f"x.{key}": value for key, value in data.items() if key != "__metadata__"}),
    "header empty": header(lambda data: {}),
    "weights a folder": lambda folder: (
        (folder / "model.safetensors").unlink(),
        (folder / "model.safetensors").mkdir(),
    ),
    "index without map": index(...),
    "index map null": index(None),
    "index map list": index(["a.safetensors"]),
    "index map text": index("a.safetensors"),
    "index map empty": index({}),
    "index map numbers": index({"model.norm.weight": 3}),
    "index map lists": index({"model.norm.weight": ["a.safetensors"]}),
    "index map null file": index({"model.norm.weight": None}),
    "index file missing": index({"model.norm.weight": "b.safetensors"}),
    "index leaves the folder": index({"model.norm.weight": "../../etc/passwd"}),
    "index leaves for weights": index({"model.norm.weight": "../other/model.safetensors"}),
    "index absolute": index({"model.norm.weight": "/etc/passwd"}),
    "index folder": index({"model.norm.weight": "."}),
    "index empty name": index({"model.norm.weight": ""}),
    "index NUL": index({"model.norm.weight": "a\0b.safetensors"}),
    "index long name": index({"model.norm.weight": "a" * 5000}),
    "index metadata list": index({"model.norm.weight": "b.safetensors"}, metadata=[1]),
    "index not json": raw_index("weights"),
    "index deep": raw_index(DEEP),
    "index list": raw_index("[]"),
    "bin text": pickled("weights"),
    "bin list": pickled([1, 2]),
    "bin tensor": pickled(torch.ones(3)),
    "bin empty": pickled({}),
    "bin numbers": pickled({"model.norm.weight": 3}),
    "bin cut": lambda folder: (pickled({"a": torch.ones(9)})(folder), cut("pytorch_model.bin", 0.5)(folder)),
}
TOKENIZERS: dict[str, Damage] = {
    "tokenizer empty": content("tokenizer.json", ""),
    "tokenizer deep": content("tokenizer.json", DEEP),
    "tokenizer list": content("tokenizer.json", "[]"),
    "tokenizer cut": cut("tokenizer.json", 0.6),
    "tokenizer not utf-8": content("tokenizer.json", b'{"model": "\xff"}'),
    "tokenizer no model": set_in("tokenizer.json", model=...),
    "tokenizer model unknown": set_in("tokenizer.json", model__type="Elephant"),
    "tokenizer vocabulary list": set_in("tokenizer.json", model__vocab=["a"]),
    "tokenizer vocabulary text": set_in("tokenizer.json", model__vocab={"a": "b"}),
    "tokenizer id negative": set_in("tokenizer.json", model__vocab={"a": -1}),
    "tokenizer id beyond 32 bits": set_in("tokenizer.json", model__vocab={"a": 2**40}),
    "tokenizer ids beyond the model": set_in("tokenizer.json", model__vocab__w5=4_000_000_000),
    "tokenizer added huge": set_in("tokenizer.json", added_tokens__0__id=4_000_000_000),
    "tokenizer pre-tokenizer": set_in("tokenizer.json", pre_tokenizer={"type": "Elephant"}),
    "tokenizer regex": set_in("tokenizer.json", pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}}),
    "tokenizer class unknown": set_in("tokenizer_config.json", tokenizer_class="ElephantTokenizer"),
    "tokenizer class list": set_in("tokenizer_config.json", tokenizer_class=["x"]),
    "tokenizer config list": content("tokenizer_config.json", "[]"),
    "tokenizer config deep": content("tokenizer_config.json", DEEP),
    "tokenizer config cut": cut("tokenizer_config.json", 0.5),
    "tokenizer bos list": set_in("tokenizer_config.json", bos_token=["<s>"]),
    "tokenizer bos number": set_in("tokenizer_config.json", bos_token=3),
    "tokenizer template number": set_in("tokenizer_config.json", chat_template=3),
    "tokenizer length text": set_in("tokenizer_config.json", model_max_length="x"),
    "tokenizer own code": set_in("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", None]}),
}
TEMPLATES: dict[str, str] = {
    "syntax": "{% for %}",
    "unknown name": "{{ nothing.at.all }}",
    "unknown filter": "{{ messages | elephant }}",
    "raises": "{{ raise_exception('no') }}",
    "divides by zero": "{{ 1 // 0 }}",
    "escapes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "endless": "{% for a in range(10**9) %}{% for b in range(10**9) %}x{% endfor %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "type": "{{ messages + 3 }}",
    "import": "{% import '/etc/passwd' as x %}",
    "include": "{% include '/etc/passwd' %}",
}
