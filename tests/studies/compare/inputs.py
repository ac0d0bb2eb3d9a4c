"""Two tokenizers that cut text differently, and tiny models that use them."""

import functools
from pathlib import Path

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, processors, trainers
from tokenizers import models as kinds
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from repflow.models import load
from tests.models.tiny_configs import tiny_config

transformers.logging.set_verbosity_error()

TEXTS = [
    "the river runs past the old mill and the miller counts the sacks of grain by the light of a lamp",
    "the café by the river was fermé so the 🙂 miller counts the sacks of grain and runs past the old über mill",
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen",
]


@functools.cache
def bytes_tokenizer(bos=False, trim=True):
    """Byte-level BPE with few merges: a character beyond ASCII is several tokens."""
    tokenizer = Tokenizer(kinds.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=["<s>"])
    ascii_only = [text.encode("ascii", "ignore").decode() for text in TEXTS]
    tokenizer.train_from_iterator(ascii_only * 4, trainer)
    return _wrap(tokenizer, bos)


@functools.cache
def words_tokenizer(bos=False):
    """Whole words and runs of punctuation, spaces dropped."""
    tokenizer = Tokenizer(kinds.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(vocab_size=400, special_tokens=["[UNK]", "<s>"])
    tokenizer.train_from_iterator(TEXTS, trainer)
    return _wrap(tokenizer, bos)


@functools.cache
def characters_tokenizer():
    """One token per character."""
    tokens = ["[UNK]", "[BOS]", *sorted(set("".join(TEXTS)))]
    tokenizer = Tokenizer(kinds.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return _wrap(tokenizer, False)


def _wrap(tokenizer, bos):
    if bos:
        at = tokenizer.token_to_id("<s>")
        own = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", at)])
        steps = [tokenizer.post_processor, own] if tokenizer.post_processor else [own]
        tokenizer.post_processor = processors.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>" if bos else None)


def network(kind, *, vocab=400, seed=0):
    """Tiny random network with a larger vocabulary and room for the texts."""
    config = tiny_config(kind)
    config.vocab_size = vocab
    for name in ("max_position_embeddings", "n_positions"):
        if hasattr(config, name):
            setattr(config, name, 256)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for name, parameter in built.named_parameters():
                if parameter.ndim >= 2 and "embed" not in name:
                    parameter.mul_(4)
    return built


@functools.cache
def model(kind, tokenizer=None, seed=0):
    """Loaded tiny model; `tokenizer` is one of the functions above. Shared, so never change it."""
    return load(network(kind, seed=seed), tokenizer=None if tokenizer is None else tokenizer())


def save(kind, folder, *, tokenizer=None, seed=0):
    """Write a tiny model as a Hugging Face folder."""
    network(kind, seed=seed).save_pretrained(folder)
    if tokenizer is not None:
        tokenizer().save_pretrained(folder)
    return Path(folder)
