"""What stands for each of paper 1's models: its checkpoint, a tiny random one made here, or one the user names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError, teach
from repflow.papers import values as papers
from repflow.spec.zoo import PREFIX

WIDTH = 64
POSITIONS = 2048
VOCABULARY = 2048
SAMPLE, SAMPLE_SEED = 200, 2**31
INIT = "xavier"
"""Under the library's own scheme (standard deviation 0.02) blocks this narrow add next to nothing to the stream."""
SHARED: dict[str, Any] = {"hidden_size": WIDTH, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
MAMBA_2: dict[str, Any] = {"model_type": "mamba2", "head_dim": 16, "state_size": 16, "n_groups": 1, "chunk_size": 64}

TINY: dict[str, dict[str, Any]] = {
    "GPT-Neo-2.7B": {
        "model_type": "gpt_neo",
        "num_layers": 4,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 2]],
        "window_size": 64,
        "max_position_embeddings": POSITIONS,
        **SHARED,
    },
    "Pythia-2.8B": {
        "model_type": "gpt_neox",
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 4 * WIDTH,
        "max_position_embeddings": POSITIONS,
        **SHARED,
    },
    "Mamba2-130M": {**MAMBA_2, **SHARED, "num_hidden_layers": 4, "hidden_size": WIDTH // 2, "num_heads": 4},
    "Mamba-2.8B": {"model_type": "mamba", "num_hidden_layers": 8, "state_size": 8, **SHARED},
    "Mamba2-2.7B": {**MAMBA_2, **SHARED, "num_hidden_layers": 8, "num_heads": 8},
}
"""Architectures that stand for the paper's at scale tiny: the same families and proportions of depth."""
ZOO = {"GPT-Neo-2.7B": "gpt-neo", "Pythia-2.8B": "gpt-neox", "Mamba-2.8B": "mamba", "Mamba2-2.7B": "mamba2"}
"""Built-in models that stand for the paper's at scale zoo; the zoo has one size, so nothing stands for Mamba2-130M."""


@dataclass(frozen=True)
class StandIn:
    """What is measured for a model of the paper.

    Attributes:
        role: the paper's name.
        spec: what `repflow.load` gets.
        tokenizer: tokenizer where the model has none.
        own: it is the published checkpoint.
        trained: its weights are not random.
    """

    role: str
    spec: str
    tokenizer: str | None = None
    own: bool = False
    trained: bool = True


STAND_IN = "nothing here speaks for or against its checkpoints"


def stand_in_label(role: str, spec: str | None, parameters: int | None = None, *, trained: bool = True) -> str:
    """What a row is of: the paper's name, and what ran for it.

    Args:
        role: the paper's name.
        spec: what ran, None for the checkpoint itself.
        parameters: how many it has, None where that is not known.
        trained: whether its weights are not random.

    >>> stand_in_label("Mamba-1.4B", "zoo:mamba", 4_712_000), stand_in_label("Mamba-1.4B", None)
    ('Mamba-1.4B → zoo:mamba, 4.7M', 'Mamba-1.4B')
    """
    if spec is None:
        return role
    size = "" if parameters is None else f", {_short_count(parameters)}"
    return f"{role} → {spec if spec.startswith(PREFIX) else Path(spec).name}{size}{'' if trained else ', random'}"


def _short_count(parameters: int) -> str:
    """Parameters in millions or billions.

    >>> _short_count(4_712_000), _short_count(2_768_000_000), _short_count(61_000)
    ('4.7M', '2.8B', '0.06M')
    """
    if parameters >= 1e9:
        return f"{parameters / 1e9:.1f}B"
    return f"{parameters / 1e6:.{1 if parameters >= 1e5 else 2}f}M"


TINY_NAMES = dict(
    zip(papers.MODELS, ("tiny-gpt-neo", "tiny-pythia", "tiny-mamba2-small", "tiny-mamba", "tiny-mamba2"), strict=True)
)
"""Folders of the tiny models."""


def parse_models(given: Sequence[str]) -> dict[str, str]:
    """Read `ROLE=SPEC` options.

    >>> parse_models(["pythia-2.8b=models/tiny-gpt"])
    {'Pythia-2.8B': 'models/tiny-gpt'}
    """
    named: dict[str, str] = {}
    for entry in given:
        role, equals, spec = entry.partition("=")
        if not equals or not spec:
            known = ", ".join(papers.MODELS)
            raise InputError(
                teach("--model ROLE=SPEC", repr(entry), f"ROLE is one of {known}; SPEC a folder or hub id")
            )
        name = papers.checkpoint(role.strip()).name
        if name in named:
            raise InputError(teach("one --model for each model of the paper", f"{name} twice", "leave one out"))
        named[name] = spec.strip()
    return named


def stand_ins(scale: str, given: Sequence[str], tokenizer: str | None, folder: Path) -> dict[str, StandIn]:
    """Model for each role; only the named roles where any is named.

    Args:
        scale: tiny, zoo or paper.
        given: `ROLE=SPEC` options.
        tokenizer: tokenizer for all of them, where the user named one.
        folder: where the tiny models are, or will be once `make_tiny` ran.
    """
    if named := parse_models(given):
        return {
            role: StandIn(role, named[role], tokenizer, trained=not named[role].startswith("config:"))
            for role in papers.MODELS
            if role in named
        }
    if scale == "zoo":
        return {role: StandIn(role, f"{PREFIX}{ZOO[role]}", tokenizer) for role in papers.MODELS if role in ZOO}
    if scale == "tiny":
        return {role: StandIn(role, str(folder / TINY_NAMES[role]), tokenizer, trained=False) for role in papers.MODELS}
    return {
        role: StandIn(role, entry.hub, tokenizer or entry.tokenizer, own=True)
        for role, entry in papers.CHECKPOINTS.items()
    }


def make_tiny(folder: Path, roles: Sequence[str]) -> None:
    """Write the tiny models that are not there yet, each with the same tokenizer."""
    missing = [role for role in roles if not (folder / TINY_NAMES[role] / "config.json").is_file()]
    if not missing:
        return
    from repflow.models.load import without_progress
    from repflow.models.transformers_own import config_class
    from repflow.models.weights.initialise import random_model

    tokenizer = tiny_tokenizer()
    for role in missing:
        options = dict(TINY[role])
        config = config_class(options.pop("model_type"))(vocab_size=len(tokenizer), **options)
        network = random_model(config, INIT, seed=0)
        part = folder / f"{TINY_NAMES[role]}.part"
        with without_progress():
            tokenizer.save_pretrained(part)
            network.save_pretrained(part)
        part.rename(folder / TINY_NAMES[role])  # whole or not at all


def tiny_tokenizer() -> Any:
    """Byte-level BPE trained on the prompts of both tasks, so that a key takes some twenty tokens and a word a few.

    Everything can be written in it, and it is the same on every machine.
    """
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    trained = ByteLevelBPETokenizer()
    end = "<|endoftext|>"
    trained.train_from_iterator(_sample(), vocab_size=VOCABULARY, special_tokens=[end], show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, bos_token=end, eos_token=end)


def _sample() -> Iterator[str]:
    """Prompts of a seed that no run has, to learn pieces from."""
    from repflow.tasks.facts.articles import article
    from repflow.tasks.key_value import draw_pairs, key_value_text
    from repflow.tasks.multi_document import multi_document_text

    for number in range(SAMPLE):
        yield key_value_text(draw_pairs(SAMPLE_SEED, number, 2), 0)
        passage, question = article(SAMPLE_SEED, number)
        yield multi_document_text([passage], question.text)
