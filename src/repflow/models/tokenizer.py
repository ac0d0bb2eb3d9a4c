"""Tokenizers from a folder, a lone `*tokenizer.json`, or the pair of files that GPT-2 was published with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from repflow.errors import InputError, teach

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "spiece.model")
GPT2_FILES = ("encoder.json", "vocab.bpe")
END_OF_TEXT = "<|endoftext|>"


def open_tokenizer(tokenizer: Any, *, trust_remote_code: bool = False, offline: bool = False) -> Any:
    """Load a tokenizer from a path or hub id; anything that is no path is a tokenizer already."""
    if not isinstance(tokenizer, str | Path):
        return tokenizer
    path = Path(tokenizer).expanduser()
    if path.exists():
        found = local_tokenizer(path, trust_remote_code=trust_remote_code)
        if found is None:
            expected = "a folder with a tokenizer, or a *tokenizer.json file"
            raise InputError(teach(expected, str(path), f"it needs {' or '.join(TOKENIZER_FILES[:3])}"))
        return found
    found = hub_tokenizer(str(tokenizer), None, trust_remote_code=trust_remote_code, offline=offline)
    if found is None:
        raise InputError(teach("a tokenizer folder, file or hub id", repr(str(tokenizer)), "check the path"))
    return found


def local_tokenizer(path: Path, *, trust_remote_code: bool = False) -> Any:
    """Tokenizer of a folder or file without any connection; None where there is none."""
    if path.is_file():
        return _from_file(path)
    if any((path / name).exists() for name in TOKENIZER_FILES):
        try:
            return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=trust_remote_code)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"the tokenizer in {path} cannot be read: {error}; pass tokenizer=FOLDER") from error
    if all((path / name).exists() for name in GPT2_FILES):
        return _gpt2(*(path / name for name in GPT2_FILES))
    lone = sorted(path.glob("*tokenizer.json"))
    return _from_file(lone[0]) if len(lone) == 1 else None


def hub_tokenizer(name: str, revision: str | None, *, trust_remote_code: bool = False, offline: bool = False) -> Any:
    """Tokenizer of a hub repository, offline from the cache only; None where it has none."""
    options = {"revision": revision or "main", "trust_remote_code": trust_remote_code, "local_files_only": offline}
    try:
        return AutoTokenizer.from_pretrained(name, **options)
    except (OSError, ValueError, KeyError):
        return None


def gguf_tokenizer(path: Path) -> Any:
    """Tokenizer inside a .gguf file; None where it holds none that transformers can read."""
    try:
        return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _from_file(path: Path) -> Any:
    if path.suffix != ".json":
        raise InputError(teach("a *tokenizer.json file", str(path), "pass the folder that holds the tokenizer"))
    try:
        # the library raises bare Exception for a malformed file, so the JSON is read first
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise InputError(teach("a *tokenizer.json file", f"{path}: {error}", "download it again")) from error
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        kind = "a model's configuration" if isinstance(data, dict) and "model_type" in data else "other JSON"
        remedy = "pass the folder that holds the tokenizer, or its tokenizer.json"
        raise InputError(teach("a *tokenizer.json file", f"{path}, which is {kind}", remedy))
    return _wrap(Tokenizer.from_file(str(path)))


def _gpt2(vocabulary: Path, merges: Path) -> Any:
    tokenizer = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _wrap(tokenizer)


def _wrap(tokenizer: Tokenizer) -> Any:
    """Give a bare tokenizer its begin and end tokens where its vocabulary has GPT-2's."""
    if tokenizer.token_to_id(END_OF_TEXT) is None:
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT)
