"""Tokenizers from a folder, a lone `*tokenizer.json`, or the pair of files that GPT-2 was published with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from numbers import Integral
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from repflow.core.errors import InputError, refusing, teach, words_of
from repflow.spec.zoo import checked_folder, is_zoo

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "spiece.model")
GPT2_FILES = ("encoder.json", "vocab.bpe")
END_OF_TEXT = "<|endoftext|>"
BYTES = "bytes"
"""Name of the tokenizer that needs no file: a token is a byte of UTF-8."""


class FunctionTokenizer:
    """A function from a text to its token ids, with as much of a tokenizer as that gives.

    It has no special tokens. Ids are turned into text by the function's own `decode`, where it has one: else tokens are
    shown by their numbers, and what needs an answer's text is refused.
    """

    bos_token_id = eos_token_id = unk_token_id = chat_template = None

    def __init__(self, function: Callable[[str], Any]) -> None:
        self.function = function
        self.name_or_path = str(getattr(function, "__name__", type(function).__name__))
        self._ids("a b")

    def __call__(self, text: str | list[str], *, return_offsets_mapping: bool = False, **_: Any) -> dict[str, Any]:
        """Ids of a text, or of each of several, under `input_ids`."""
        if return_offsets_mapping:
            raise NotImplementedError("a function from text to ids has no offsets")
        return {"input_ids": self._ids(text) if isinstance(text, str) else [self._ids(one) for one in text]}

    def decode(self, ids: Any, **_: Any) -> str:
        """Text of ids; the number of a lone one where the function cannot say."""
        listed = [int(i) for i in (ids.tolist() if hasattr(ids, "tolist") else ids)]
        own = getattr(self.function, "decode", None)
        if own is not None:
            return str(own(listed))
        if len(listed) == 1:
            return str(listed[0])
        got = f"{self.name_or_path}, a function from text to ids alone"
        remedy = "pass a tokenizer of transformers, or give the function a `decode`"
        raise InputError(teach("a tokenizer that turns ids into text", got, remedy))

    def get_vocab(self) -> dict[str, int]:
        """Nothing is known of the vocabulary but whose it is: equal for the same function."""
        return {self.name_or_path: id(self.function)}

    def _ids(self, text: str) -> list[int]:
        ids = self.function(text)
        ids = ids["input_ids"] if isinstance(ids, Mapping) else ids
        ids = ids.tolist() if hasattr(ids, "tolist") else ids
        if not isinstance(ids, list | tuple) or not all(isinstance(i, Integral) for i in ids):
            got = f"{ids!r:.60} from {self.name_or_path}({text[:20]!r})"
            raise InputError(teach("a tokenizer that gives a list of token ids for a text", got, "return a flat list"))
        return [int(i) for i in ids]


def live_tokenizer(tokenizer: Any) -> Any:
    """A tokenizer given as an object: of transformers, of the library tokenizers, or a function from text to ids."""
    if tokenizer is None or isinstance(tokenizer, PreTrainedTokenizerBase | FunctionTokenizer):
        return tokenizer
    if isinstance(tokenizer, Tokenizer):
        return _wrap(tokenizer)
    if callable(tokenizer) and hasattr(tokenizer, "decode") and hasattr(tokenizer, "bos_token_id"):
        return tokenizer  # made like one of transformers
    if callable(tokenizer):
        return FunctionTokenizer(tokenizer)
    expected = "a tokenizer of transformers, a folder or file of one, or a function from text to token ids"
    raise InputError(teach(expected, type(tokenizer).__name__, "pass one of these, or token ids instead of texts"))


def open_tokenizer(tokenizer: Any, *, trust_remote_code: bool = False, offline: bool = False) -> Any:
    """Load a tokenizer from a path, zoo:NAME, hub id or by the name `bytes`; anything else is a tokenizer already."""
    if not isinstance(tokenizer, str | Path):
        return live_tokenizer(tokenizer)
    if str(tokenizer) == BYTES:
        return byte_tokenizer()
    path = checked_folder(str(tokenizer)) if is_zoo(str(tokenizer)) else Path(tokenizer).expanduser()
    if path.exists():
        opened = local_tokenizer(path, trust_remote_code=trust_remote_code)
        if opened is None:
            expected = "a folder with a tokenizer, or a *tokenizer.json file"
            raise InputError(teach(expected, str(path), f"it needs {' or '.join(TOKENIZER_FILES[:3])}"))
        return opened
    opened = hub_tokenizer(str(tokenizer), None, trust_remote_code=trust_remote_code, offline=offline)
    if opened is None:
        raise InputError(teach("a tokenizer folder, file or hub id", repr(str(tokenizer)), "check the path"))
    return opened


def byte_tokenizer() -> Any:
    """A tokenizer of bytes: id v is the byte v of a text in UTF-8, id 256 the end of a text; any text can be written.

    >>> tokenizer = byte_tokenizer()
    >>> tokenizer("né")["input_ids"], tokenizer.decode([110, 195, 169]), tokenizer.eos_token_id, len(tokenizer)
    ([110, 195, 169], 'né', 256, 257)
    """
    vocabulary = {letter: byte for byte, letter in enumerate(_byte_letters())}
    tokenizer = Tokenizer(models.BPE({**vocabulary, END_OF_TEXT: len(vocabulary)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return _wrap(tokenizer)


def _byte_letters() -> list[str]:
    """The letter that stands for each byte inside byte-level vocabularies: itself where it can be seen."""
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in seen else chr(next(others)) for byte in range(256)]


def local_tokenizer(path: Path, *, trust_remote_code: bool = False) -> Any:
    """Tokenizer of a folder or file without any connection; None where there is none."""
    if path.is_file():
        return _from_file(path)
    if any((path / name).exists() for name in TOKENIZER_FILES):
        with _readable(path):
            return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=trust_remote_code)
    if all((path / name).exists() for name in GPT2_FILES):
        return _gpt2(*(path / name for name in GPT2_FILES))
    lone = sorted(path.glob("*tokenizer.json"))
    return _from_file(lone[0]) if len(lone) == 1 else None


def hub_tokenizer(name: str, revision: str | None, *, trust_remote_code: bool = False, offline: bool = False) -> Any:
    """Tokenizer of a hub repository, offline from the cache only; None where it has none."""
    options = {"revision": revision or "main", "trust_remote_code": trust_remote_code, "local_files_only": offline}
    with _readable(name):
        try:
            return AutoTokenizer.from_pretrained(name, **options)
        except (OSError, ValueError, KeyError):
            return None


def gguf_tokenizer(path: Path) -> Any:
    """Tokenizer inside a .gguf file; None where it holds none that transformers can read."""
    with suppress(InputError), _readable(path):
        return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    return None


def _from_file(path: Path) -> Any:
    if path.suffix != ".json":
        raise InputError(teach("a *tokenizer.json file", str(path), "pass the folder that holds the tokenizer"))
    try:
        # the library raises bare Exception for a malformed file, so the JSON is read first
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(teach("a *tokenizer.json file", f"{path}: {words_of(error)}", "download it again")) from error
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        kind = "a model's configuration" if isinstance(data, dict) and "model_type" in data else "other JSON"
        remedy = "pass the folder that holds the tokenizer, or its tokenizer.json"
        raise InputError(teach("a *tokenizer.json file", f"{path}, which is {kind}", remedy))
    with _readable(path):
        return _wrap(Tokenizer.from_file(str(path)))


def _gpt2(vocabulary: Path, merges: Path) -> Any:
    with _readable(vocabulary.parent):
        tokenizer = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        return _wrap(tokenizer)


def _readable(place: Path | str) -> AbstractContextManager[None]:
    return refusing("a tokenizer that can be read", f"that of {place}", "pass --tokenizer FOLDER of another")


def _wrap(tokenizer: Tokenizer) -> Any:
    """Give a bare tokenizer its begin and end tokens where its vocabulary has GPT-2's."""
    if tokenizer.token_to_id(END_OF_TEXT) is None:
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT)
