"""rwkv.cpp's checkpoint format, and the two tiny models in it as stacks of our mixers.

    header: magic "ggmf", version, vocabulary, width, layers, dtype (u32 each)
    tensor: axes, length of name, dtype (0 float32), sizes innermost first, name, values

The converter stores −exp(time_decay) for RWKV-4 and exp(−exp(time_decay)) for RWKV-5.
"""

import struct
from pathlib import Path

import numpy as np
import torch

NAMES = {
    "emb.weight": "model.embeddings.weight",
    "blocks.0.ln0.": "model.embedding_norm.",
    "ln_out.": "model.final_norm.",
    "head.weight": "lm_head.weight",
    "blocks.": "model.blocks.",
    ".ln1.": ".mixer_norm.",
    ".ln2.": ".mlp_norm.",
    ".att.": ".mixer.",
    ".ffn.": ".mlp.",
    "time_mix_k": "time_mix_key",
    "time_mix_v": "time_mix_value",
    "time_mix_r": "time_mix_receptance",
    "time_mix_g": "time_mix_gate",
}


def read_ggml(path: Path) -> tuple[dict[str, int], dict[str, torch.Tensor]]:
    data, place = path.read_bytes(), 24
    magic, version, vocab, width, layers, kind = struct.unpack("<6I", data[:24])
    assert (magic, kind) == (0x67676D66, 0)
    tensors = {}
    while place < len(data):
        axes, length, kind = struct.unpack_from("<3I", data, place)
        sizes = struct.unpack_from(f"<{axes}I", data, place + 12)
        start = place + 12 + 4 * axes
        name = data[start : start + length].decode()
        count = int(np.prod(sizes))
        values = np.frombuffer(data, "<f4", count, start + length).reshape(sizes[::-1])
        tensors[name] = torch.from_numpy(values.astype(np.float64))
        place = start + length + 4 * count
    return {"version": version, "vocab_size": vocab, "hidden_size": width, "layers": layers}, tensors


def stack_weights(tensors: dict[str, torch.Tensor], like: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The file's tensors under our names and in our shapes."""
    weights = {}
    for name, tensor in tensors.items():
        if name.endswith("time_decay"):
            tensor = torch.log(-tensor) if tensor.ndim == 1 else torch.log(-torch.log(tensor))
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        weights[name] = tensor.reshape(like[name].shape)
    return weights
