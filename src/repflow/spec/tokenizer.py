"""Whether a model spec is seen to come without a tokenizer, from names of files alone; no torch."""

from __future__ import annotations

from pathlib import Path

FILES = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model"),
    *("sentencepiece.bpe.model", "tekken.json", "rwkv_vocab_v20230424.txt"),
)
"""Any of these makes a tokenizer."""


def lacks_tokenizer(spec: str, tokenizer: str | None = None) -> bool:
    """True for a configuration, and for a folder without a tokenizer's files; others are loaded to find out.

    Args:
        spec: of a model; a folder may hold folders of checkpoints.
        tokenizer: one that is given beside it.

    >>> lacks_tokenizer("config:a.json"), lacks_tokenizer("config:a.json", "b"), lacks_tokenizer("gpt2")
    (True, False, False)
    """
    if tokenizer is not None:
        return False
    if spec.startswith("config:"):
        return True
    try:
        folder = Path(spec)
        if not spec or not folder.is_dir():
            return False
        places = [folder, *(entry for entry in folder.iterdir() if entry.is_dir())]
        return not any((place / name).exists() for place in places for name in FILES)
    except OSError:
        return False
