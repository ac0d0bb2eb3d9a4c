"""Tokenizers that cut text differently, and a small library of questions."""

import functools
import json

from tokenizers import Tokenizer, decoders, pre_tokenizers, processors, trainers
from tokenizers import models as kinds
from transformers import PreTrainedTokenizerFast

from repflow.tasks import Encoder

CHAT = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</{{ m['role'] }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TEXT = [
    "the value of the key in the JSON object is the one that was asked for: Document [1](Title: River) 4e2f-a0a9",
    "Write a high-quality answer for the given question using only the provided search results, some of which might",
]


@functools.cache
def bytes_tokenizer(size=420, *, split=True, bos=False, chat=None):
    """Byte-level BPE; without `split` it merges over the ends of words and lines: tokens are far from additive."""
    tokenizer = Tokenizer(kinds.BPE())
    levels = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(levels)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=special,
        show_progress=False,
    )
    lines = ['": "', '",\n "', '"}\n\nKey: "', "-4", "-a", "-8", "ab", "0f", "e1", "\nDocument ["] * 9
    tokenizer.train_from_iterator([*TEXT * 4, *lines], trainer)
    if bos:
        at = tokenizer.token_to_id("<s>")
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", at)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>" if bos or chat else None, chat_template=chat
    )


@functools.cache
def words_tokenizer():
    """Runs of letters and of punctuation, all unknown: only their number matters."""
    tokenizer = Tokenizer(kinds.WordLevel({"[UNK]": 0, "<s>": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def bytes_encoder(**options):
    return Encoder(bytes_tokenizer(**options))


def words_encoder():
    return Encoder(words_tokenizer())


def write_library(file, count=40):
    """Questions about numbered towns, whose passages differ in length."""
    lines = []
    for i in range(count):
        filler = " ".join(f"filler{i}x{j}" for j in range(12 + i % 7))
        entry = {
            "question": f"who founded town{i}",
            "answers": [f"Founder{i}q", f"the {i}th founder"],
            "title": f"Town {i}",
            "text": f"town{i} was founded by Founder{i}q long ago. {filler}",
        }
        lines.append(json.dumps(entry))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file
