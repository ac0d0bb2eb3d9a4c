"""Write the small models and files that the pages of docs/ use, so that every command on them can be tried.

    python docs/make_models.py [FOLDER]        # FOLDER is the working directory unless given; takes some seconds

| written | what |
|---|---|
| models/tiny-gpt | GPT-NeoX, 6 blocks, width 64, trained for 60 steps on corpus.txt, with a tokenizer |
| models/tiny-gpt-steps/step0, step20, step60 | checkpoints of that training; step60 is tiny-gpt |
| models/tiny-mamba2 | Mamba-2, 12 blocks, width 64, random weights, with another tokenizer |
| models/tiny-hybrid | Bamba, 6 blocks of which 2 attend, width 64, random weights, with tiny-gpt's tokenizer |
| models/architecture.json | configuration of tiny-gpt alone, for config: specs |
| corpus.txt, other.txt | two halves of the licence text of this repository |
| prompts.jsonl | three prompts |

The models are toys: they are here to show commands and formats, not to show what architectures do.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

from repflow.models.transformers_own import config_class

TEXT = Path(__file__).resolve().parents[1] / "LICENSE"
STEPS = (0, 20, 60)
BATCH, LENGTH, RATE = 8, 64, 3e-3
UNLIKE_TWIN = 1  # a random twin has seed 0: of the same seed it would be the model itself
SHARED: dict[str, Any] = {"hidden_size": 64, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
GPT: dict[str, Any] = {
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 512,
    **SHARED,
}
MAMBA2: dict[str, Any] = {
    "num_hidden_layers": 12,
    "num_heads": 8,
    "head_dim": 16,
    "state_size": 16,
    "n_groups": 1,
    "chunk_size": 32,
    **SHARED,
}
BAMBA: dict[str, Any] = {
    **GPT,
    "max_position_embeddings": 2048,
    "num_key_value_heads": 4,
    "attn_layer_indices": [2, 5],
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_chunk_size": 32,
}


def make_tokenizer(text: Path, vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the text."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train([str(text)], vocab_size=vocabulary, special_tokens=["<|endoftext|>"], show_progress=False)
    special = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, **special)


def make_network(kind: str, options: dict[str, Any], tokenizer: Any, seed: int = 0) -> PreTrainedModel:
    """Build a model of seeded random weights whose vocabulary is the tokenizer's."""
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config_class(kind)(vocab_size=len(tokenizer), **options))


def train(network: PreTrainedModel, tokenizer: Any, text: str, folder: Path) -> None:
    """Train for a few steps on random windows of the text and keep the checkpoints."""
    ids = torch.tensor(tokenizer(text)["input_ids"])
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE)
    for step in range(STEPS[-1] + 1):
        if step in STEPS:
            network.save_pretrained(folder / f"step{step}")
            tokenizer.save_pretrained(folder / f"step{step}")
        starts = torch.randint(0, len(ids) - LENGTH, (BATCH,)).tolist()
        batch = torch.stack([ids[start : start + LENGTH] for start in starts])
        loss = network(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def make(folder: Path) -> None:
    """Write everything into a folder."""
    logging.disable_progress_bar()
    models = folder / "models"
    text = TEXT.read_text(encoding="utf-8")
    half = len(text) // 2
    (folder / "corpus.txt").write_text(text[:half], encoding="utf-8")
    (folder / "other.txt").write_text(text[half:], encoding="utf-8")
    prompts = ["The licence grants rights to", "A contribution is any work", "Without warranties of any kind"]
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts), encoding="utf-8")
    first, second = make_tokenizer(folder / "corpus.txt", 384), make_tokenizer(folder / "other.txt", 320)
    gpt = make_network("gpt_neox", GPT, first)
    train(gpt, first, text[:half], models / "tiny-gpt-steps")
    for name, network, tokenizer in (
        ("tiny-gpt", AutoModelForCausalLM.from_pretrained(models / "tiny-gpt-steps" / f"step{STEPS[-1]}"), first),
        ("tiny-mamba2", make_network("mamba2", MAMBA2, second, UNLIKE_TWIN), second),
        ("tiny-hybrid", make_network("bamba", BAMBA, first, UNLIKE_TWIN), first),
    ):
        network.save_pretrained(models / name)
        tokenizer.save_pretrained(models / name)
    (models / "architecture.json").write_text((models / "tiny-gpt" / "config.json").read_text(), encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
