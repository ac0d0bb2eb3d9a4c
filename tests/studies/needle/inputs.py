"""Tiny models with a tokenizer that can write needles, and a model that finds every needle."""

import functools

import torch
from transformers import AutoModelForCausalLM

from repflow.capture.continuation import Continuation
from repflow.models.transformers_own import config_class
from tests.models.tiny_configs import COMMON, CONFIGS

ARCHITECTURES = ("gpt_neo", "gpt_neox", "mamba", "mamba2", "rwkv", "recurrent_gemma", "bamba")
POSITIONS = 256


@functools.cache
def needle_tokenizer():
    from repflow.studies.reproduce.models import tiny_tokenizer

    return tiny_tokenizer()


def needle_network(kind, *, spread=4.0, seed=0):
    """Random network of one architecture with room for a needle prompt; `spread` makes its branches matter."""
    options = {**COMMON, **CONFIGS[kind], "vocab_size": len(needle_tokenizer())}
    if "max_position_embeddings" in options:
        options["max_position_embeddings"] = POSITIONS
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = AutoModelForCausalLM.from_config(config_class(kind)(**options)).eval()
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                if parameter.ndim >= 2 and name.endswith(("weight", "proj")) and "embed" not in name:
                    parameter.mul_(spread)
                if parameter.ndim >= 2 and not parameter.any():
                    parameter.normal_(0.0, 0.2)
    return network


def needle_model(kind, *, dtype="float32", **options):
    import repflow

    return repflow.load(needle_network(kind, **options), tokenizer=needle_tokenizer(), dtype=dtype)


class Reader:
    """Stands for `repflow.capture.continuation.read_prompts`: a reader whose logits follow from the text alone.

    Args:
        finds: from the prompt's text to the word that it answers, None for no answer.
    """

    def __init__(self, finds):
        self.finds = finds

    def __call__(self, model, ids, *, cached):
        return _Read(model.tokenizer, ids, self.finds)


class _Read(Continuation):
    def __init__(self, tokenizer, ids, finds):
        self.tokenizer, self.rows = tokenizer, ids.tolist()
        self.words = [finds(tokenizer.decode(row)) for row in self.rows]
        self.plans = [tokenizer(f" {word}")["input_ids"] if word else [] for word in self.words]
        self.first = self._logits([[] for _ in self.rows])

    def _logits(self, made):
        """Nearly all probability for the next token of the planned answer, as long as what was made agrees with it."""
        logits = torch.zeros(len(self.rows), len(self.tokenizer))
        for place, (plan, so_far) in enumerate(zip(self.plans, made, strict=True)):
            agrees = plan[: len(so_far)] == so_far
            token = plan[len(so_far)] if agrees and len(so_far) < len(plan) else self.tokenizer.eos_token_id
            logits[place, token] = 30.0
        return logits

    def follow(self, tokens):
        for end in range(tokens.shape[1]):
            yield self._logits([row[: end + 1] for row in tokens.tolist()])

    def greedy(self, tokens, end=None):
        rows = [[] for _ in self.rows]
        for _ in range(tokens):
            best = self._logits(rows).argmax(-1).tolist()
            rows = [[*row, token] for row, token in zip(rows, best, strict=True)]
        return torch.tensor(rows)
