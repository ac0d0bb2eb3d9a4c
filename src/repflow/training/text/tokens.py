"""Text as token ids: documents one after the other, kept by the number of each, and split into parts to train and test.

    [END] the first document [END] the second [END] ...

Every document begins with the end-of-text token, so that its first word is predicted too, from nothing. A tokenizer
without such a token gets one more id.

Texts can be prepared once and carried to another machine as a folder: `TextData.save`, and the folder in place of a
text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from repflow.core.errors import DamagedRunError, InputError, refusing, teach
from repflow.models.tokenizer import BYTES, open_tokenizer
from repflow.store.disk import make_folder, write_atomic
from repflow.tasks.documents import Document, read_documents, split_off
from repflow.tasks.prompt import encode

BATCH = 256
"""Documents that are encoded at once."""
SHARE = 0.1
"""Share of the documents that is held out where no held-out text is named."""
RECORD, FORMAT = "text.json", 1
TRAIN, HELD_OUT = "train", "held_out"


@dataclass(frozen=True)
class Tokens:
    """Documents as token ids.

    Attributes:
        ids: of all documents, each begun by the end-of-text id (token,).
        starts: place of each document's first id, and the number of all (document + 1,).
        sizes: bytes of each document's text in UTF-8 (document,).
        vocabulary: number of ids that the tokenizer has.
    """

    ids: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    vocabulary: int

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of ids and places, the same whatever type the ids are kept in."""
        state = hashlib.sha256(self.ids.astype("<i4").tobytes())
        state.update(self.starts.astype("<i8").tobytes())
        return state.hexdigest()

    def document(self, number: int) -> np.ndarray:
        """Ids of one document, its first one among them."""
        return self.ids[self.starts[number] : self.starts[number + 1]]

    def some(self, most: int | None) -> Tokens:
        """The first documents, as many as have this many tokens together, one at least; all for None."""
        if most is None or most >= len(self.ids):
            return self
        count = max(1, int(np.searchsorted(self.starts, most, side="right")) - 1)
        end = int(self.starts[count])
        return Tokens(self.ids[:end], self.starts[: count + 1], self.sizes[:count], self.vocabulary)

    def facts(self) -> dict[str, Any]:
        """Counts and digest, as plain JSON values."""
        counts = {"documents": len(self), "tokens": len(self.ids), "bytes": int(self.sizes.sum())}
        return {**counts, "vocabulary": self.vocabulary, "digest": self.digest}


def end_of(tokenizer: Any) -> tuple[int, int]:
    """The id that begins a document, and the number of ids with it."""
    count = len(tokenizer) if hasattr(tokenizer, "__len__") else None
    if count is None:
        got = f"{getattr(tokenizer, 'name_or_path', type(tokenizer).__name__)}, a function from text to ids alone"
        remedy = f"pass a tokenizer of transformers, or {BYTES}"
        raise InputError(teach("a tokenizer that knows how many ids it has", got, remedy))
    for own in (getattr(tokenizer, "eos_token_id", None), getattr(tokenizer, "bos_token_id", None)):
        if own is not None:
            return int(own), count
    return count, count + 1


def encode_documents(documents: Sequence[Document], tokenizer: Any) -> Tokens:
    """Token ids of documents.

    Args:
        documents: texts.
        tokenizer: of transformers.

    Raises:
        InputError: there is no document.
    """
    if not documents:
        raise InputError(teach("at least one document", "none", "pass a text with words"))
    end, vocabulary = end_of(tokenizer)
    kind = np.uint16 if vocabulary <= 2**16 else np.int32
    parts: list[np.ndarray] = []
    for start in range(0, len(documents), BATCH):
        texts = [document.text for document in documents[start : start + BATCH]]
        parts += [np.array([end, *ids], dtype=kind) for ids in encode(tokenizer, texts)]
    starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    sizes = np.array([len(document.text.encode()) for document in documents], dtype=np.int64)
    return Tokens(np.concatenate(parts), starts, sizes, vocabulary)


@dataclass(frozen=True)
class TextData:
    """What a language model is trained and tested on.

    Attributes:
        train: documents to train on.
        held_out: documents of the same text that are not trained on.
        others: further texts to test on, by name.
        tokenizer: opened.
        source: what was asked for.
    """

    train: Tokens
    held_out: Tokens
    others: dict[str, Tokens]
    tokenizer: Any
    source: dict[str, Any] = field(default_factory=dict)

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return self.train.vocabulary

    @property
    def tests(self) -> dict[str, Tokens]:
        """Every text that perplexity is measured on, by name."""
        return {HELD_OUT: self.held_out, **self.others}

    def parts(self) -> dict[str, Tokens]:
        """Everything, by name."""
        return {TRAIN: self.train, **self.tests}

    def facts(self) -> dict[str, Any]:
        """Counts and digests of every part."""
        return {name: part.facts() for name, part in self.parts().items()}

    def save(self, folder: str | Path) -> Path:
        """Write a folder that stands for the text: token ids, tokenizer, and a record with digests."""
        place = Path(folder)
        make_folder(place)
        self.tokenizer.save_pretrained(place)
        for name, part in self.parts().items():
            np.savez_compressed(place / f"{name}.npz", ids=part.ids, starts=part.starts, sizes=part.sizes)
        record = {"format": FORMAT, "source": self.source, "parts": self.facts()}
        write_atomic(place / RECORD, json.dumps(record, indent=1).encode())
        return place


def text_data(
    train: str | Path | Sequence[str | Path],
    *,
    held_out: str | Path | None = None,
    others: Mapping[str, str | Path] | None = None,
    tokenizer: str | Path | None = None,
    share: float = SHARE,
    seed: int = 0,
) -> TextData:
    """Read and encode a text to train on, with what is held out of it and others to test on.

    Args:
        train: a file, a folder, `english` (`repflow.tasks.documents`), several of these, or a folder that
            `TextData.save` wrote.
        held_out: a text of its own to test on; by default a share of the documents to train on is kept apart.
        others: further texts to test on, by name.
        tokenizer: folder, file, zoo:NAME, hub id, or `bytes`, which is the default.
        share: of documents that are held out; of a single one, as a plain file is, its end.
        seed: of the split.

    >>> data = text_data("english", share=0.2)
    >>> data.vocabulary, len(data.train) + len(data.held_out)
    (257, 48)
    """
    places = [train] if isinstance(train, str | Path) else list(train)
    if len(places) == 1 and is_prepared(places[0]):
        return _prepared(Path(places[0]), held_out, others or {}, tokenizer)
    opened = open_tokenizer(BYTES if tokenizer is None else tokenizer)
    documents = [document for place in places for document in read_documents(place)]
    if held_out is None:
        documents, kept = split_off(documents, share, seed)
    else:
        kept = read_documents(held_out)
    source: dict[str, Any] = {"text": [*map(str, places)], "tokenizer": str(tokenizer), "share": share, "seed": seed}
    source["held_out"] = None if held_out is None else str(held_out)
    source["others"] = {name: str(path) for name, path in (others or {}).items()}
    further = {name: encode_documents(read_documents(path), opened) for name, path in (others or {}).items()}
    return TextData(encode_documents(documents, opened), encode_documents(kept, opened), further, opened, source)


def is_prepared(path: str | Path) -> bool:
    """Whether a folder holds a text that `TextData.save` wrote."""
    return (Path(path) / RECORD).is_file()


def _prepared(
    folder: Path, held_out: str | Path | None, others: Mapping[str, str | Path], tokenizer: str | Path | None
) -> TextData:
    """A folder that was prepared, with further texts where they are asked for."""
    if held_out is not None or tokenizer is not None:
        got = "a tokenizer" if held_out is None else "a held-out text"
        remedy = "leave it out, or name the text itself"
        raise InputError(teach(f"a prepared text alone ({folder}), which has both", f"{got} beside it", remedy))
    with refusing("a prepared text", str(folder), "prepare it again"):
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        facts, source = dict(record["parts"]), dict(record["source"])
        known = record["format"] == FORMAT and {TRAIN, HELD_OUT} <= facts.keys()
    if not known:
        raise InputError(teach("a text prepared by this version", f"another in {folder}", "prepare it again"))
    opened = open_tokenizer(folder)
    parts = {name: _loaded(folder, name, entry) for name, entry in facts.items()}
    further = {name: part for name, part in parts.items() if name not in (TRAIN, HELD_OUT)}
    for name, path in others.items():
        if name not in further:
            further[name] = encode_documents(read_documents(path), opened)
    return TextData(parts[TRAIN], parts[HELD_OUT], further, opened, source)


def _loaded(folder: Path, name: str, facts: Mapping[str, Any]) -> Tokens:
    file = folder / f"{name}.npz"
    with refusing("token ids of a prepared text", str(file), "prepare it again"):
        if Path(name).name != name:
            raise ValueError(f"a name {name!r} that is not a file's")
        with np.load(file, allow_pickle=False) as arrays:
            ids, starts, sizes = (arrays[key] for key in ("ids", "starts", "sizes"))
        part = Tokens(ids, starts, sizes, int(facts["vocabulary"]))
        whole = ids.ndim == starts.ndim == sizes.ndim == 1 and len(starts) == len(sizes) + 1
        same = whole and part.digest == facts["digest"]
    if not same:
        raise DamagedRunError(teach(f"{file} as it was written", "other bytes", "prepare the text again"))
    return part
