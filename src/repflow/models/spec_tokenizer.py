"""A model's tokenizer by its spec, without its weights: prompts for several models must fit all their tokenizers."""

from __future__ import annotations

from typing import Any

from repflow.core.errors import InputError
from repflow.models.load import _tokenizer, find_source, read_config


def spec_tokenizer(
    spec: str, tokenizer: str | None = None, *, trust_remote_code: bool = False
) -> tuple[Any, int | None]:
    """Tokenizer and first token of a model; (None, None) where there is none, or no such model: loading it says why.

    Args:
        spec: folder, hub id with optional `@revision`, `config:FILE.json` or `.gguf` file.
        tokenizer: folder, file or hub id of a tokenizer that stands for the model's own.
        trust_remote_code: run Python code that comes with the model.
    """
    try:
        source = find_source(spec)
        opened = _tokenizer(source, tokenizer, trust_remote_code)
        config = read_config(source, trust_remote_code)
    except (InputError, OSError):
        return None, None
    own = getattr(opened, "bos_token_id", None)
    first = own if own is not None else getattr(config, "bos_token_id", None)
    return opened, first if isinstance(first, int) else None
