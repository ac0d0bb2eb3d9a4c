"""Word tokenizers over the vocabulary a..z, 0..99, with and without tokens that they add by themselves."""

import functools
import string

from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers import models as kinds
from transformers import PreTrainedTokenizerFast

WORDS = ["<unk>", "<s>", "</s>", *string.ascii_lowercase, *map(str, range(100))]
UNK, BOS, EOS, A = 0, 1, 2, 3


@functools.cache
def word_tokenizer(adds: str = "", *, bos: bool = True):
    """One token per word; `adds` is a template such as "<s> $A" of what is added to a text."""
    tokenizer = Tokenizer(kinds.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if adds:
        special = [("<s>", BOS), ("</s>", EOS)]
        tokenizer.post_processor = processors.TemplateProcessing(single=adds, special_tokens=special)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>" if bos else None)
