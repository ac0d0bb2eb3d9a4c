"""What stands for each of the papers' models: its checkpoint, a built-in or tiny random one, or one the user names."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError, nearest, teach
from repflow.core.recipes import recipe_row
from repflow.papers import values as papers
from repflow.spec.zoo import PREFIX

if TYPE_CHECKING:
    from repflow.core.results import Result
    from repflow.studies.reproduce.config import ReproduceConfig

WIDTH = 64
POSITIONS = 2048
VOCABULARY = 2048
SAMPLE, SAMPLE_SEED = 200, 2**31
INIT = "xavier"
"""Under the library's own scheme (standard deviation 0.02) blocks this narrow add next to nothing to the stream."""
SHARED: dict[str, Any] = {"hidden_size": WIDTH, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
MAMBA_2: dict[str, Any] = {"model_type": "mamba2", "head_dim": 16, "state_size": 16, "n_groups": 1, "chunk_size": 64}

TINY: dict[str, dict[str, Any]] = {
    "tiny-gpt-neo": {
        "model_type": "gpt_neo",
        "num_layers": 4,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 2]],
        "window_size": 64,
        "max_position_embeddings": POSITIONS,
        **SHARED,
    },
    "tiny-pythia": {
        "model_type": "gpt_neox",
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 4 * WIDTH,
        "max_position_embeddings": POSITIONS,
        **SHARED,
    },
    "tiny-mamba2-small": {**MAMBA_2, **SHARED, "num_hidden_layers": 4, "hidden_size": WIDTH // 2, "num_heads": 4},
    "tiny-mamba": {"model_type": "mamba", "num_hidden_layers": 8, "state_size": 8, **SHARED},
    "tiny-mamba2": {**MAMBA_2, **SHARED, "num_hidden_layers": 8, "num_heads": 8},
}
"""Architectures that stand for the papers' at scale tiny: the same families and proportions of depth."""


@dataclass(frozen=True)
class Role:
    """A model of a paper and what stands for it.

    Attributes:
        name: as the paper calls it.
        family: first word of the recipes that show it.
        hub: hub id of the checkpoint, inferred from its name.
        tiny: random model that stands for it at scale tiny.
        zoo: built-in model that does at scale zoo, None where there is none of its size.
        tokenizer: hub id of its tokenizer, where its repository has none.
        config: its architecture, from which size and cost are computed.
        parameter_bytes: bytes per published parameter.
    """

    name: str
    family: str
    hub: str
    tiny: str
    zoo: str | None
    tokenizer: str | None = None
    config: dict[str, Any] = field(default_factory=dict, hash=False)
    parameter_bytes: int = 4


_FLOW = {  # paper 1's model → tiny and built-in ones; the zoo has one size, so nothing stands for Mamba2-130M
    "GPT-Neo-2.7B": ("tiny-gpt-neo", "gpt-neo"),
    "Pythia-2.8B": ("tiny-pythia", "gpt-neox"),
    "Mamba2-130M": ("tiny-mamba2-small", None),
    "Mamba-2.8B": ("tiny-mamba", "mamba"),
    "Mamba2-2.7B": ("tiny-mamba2", "mamba2"),
}
_FLOW_BYTES = {"Pythia-2.8B": 2}
_MAMBA = {"model_type": "mamba", "state_size": 16, "vocab_size": 50280, "tie_word_embeddings": True}
_NEOX = {"model_type": "gpt_neox", "vocab_size": 50304, "max_position_embeddings": 2048, "tie_word_embeddings": False}
_MISTRAL = {
    "model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "max_position_embeddings": 32768,
}  # fmt: skip
_CODESTRAL = {
    "model_type": "mamba2", "hidden_size": 4096, "num_hidden_layers": 64, "num_heads": 128, "head_dim": 64,
    "state_size": 128, "n_groups": 8, "vocab_size": 32768, "tie_word_embeddings": False,
}  # fmt: skip


def _mamba(layers: int, width: int) -> dict[str, Any]:
    return {**_MAMBA, "hidden_size": width, "num_hidden_layers": layers}


def _pythia(layers: int, width: int, heads: int) -> dict[str, Any]:
    return {**_NEOX, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
            "intermediate_size": 4 * width}  # fmt: skip


ROLES: dict[str, Role] = {
    role.name: role
    for role in (
        *(
            Role(name, "flow", entry.hub, *_FLOW[name], entry.tokenizer, entry.config, _FLOW_BYTES.get(name, 4))
            for name, entry in papers.CHECKPOINTS.items()
        ),
        Role("Mamba-130M", "recency", "state-spaces/mamba-130m-hf", "tiny-mamba", "mamba", config=_mamba(24, 768)),
        Role("Mamba-1.4B", "recency", "state-spaces/mamba-1.4b-hf", "tiny-mamba", "mamba", config=_mamba(48, 2048)),
        Role("Mamba-Codestral-7B", "recency", "mistralai/Mamba-Codestral-7B-v0.1", "tiny-mamba2", "mamba2",
             config=_CODESTRAL, parameter_bytes=2),
        Role("Mistral-7B", "recency", "mistralai/Mistral-7B-v0.1", "tiny-pythia", "gpt-neox",
             config=_MISTRAL, parameter_bytes=2),
        Role("Pythia-160M", "recency", "EleutherAI/pythia-160m", "tiny-pythia", "gpt-neox",
             config=_pythia(12, 768, 12), parameter_bytes=2),
        Role("Pythia-1.4B", "recency", "EleutherAI/pythia-1.4b", "tiny-pythia", "gpt-neox",
             config=_pythia(24, 2048, 16), parameter_bytes=2),
    )
}  # fmt: skip
"""Both papers name sizes, not repositories."""


@dataclass(frozen=True)
class StandIn:
    """What is measured for a model of a paper.

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

    @property
    def made_here(self) -> str:
        """Name of the tiny model that it is and that the run itself makes; "" where it is another."""
        tiny = ROLES[self.role].tiny
        return tiny if not self.own and not self.trained and Path(self.spec).name == tiny else ""


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


def parse_models(entries: Sequence[str], family: str) -> dict[str, str]:
    """Read `ROLE=SPEC` options.

    >>> parse_models(["pythia-2.8b=models/tiny-gpt"], "flow")
    {'Pythia-2.8B': 'models/tiny-gpt'}
    """
    known = {name.lower(): name for name, role in ROLES.items() if role.family == family}
    named: dict[str, str] = {}
    for entry in entries:
        role, equals, spec = entry.partition("=")
        if not equals or not spec.strip():
            remedy = f"ROLE is one of {', '.join(known.values())}; SPEC a folder, zoo:NAME or hub id"
            raise InputError(teach("--model ROLE=SPEC", repr(entry), remedy))
        name = known.get(role.strip().lower())
        if name is None:
            raise InputError(f"unknown model of the paper {role.strip()!r}; {nearest(role.strip(), known.values())}")
        if name in named:
            raise InputError(teach("one --model for each model of the paper", f"{name} twice", "leave one out"))
        named[name] = spec.strip()
    return named


def stand_ins(config: ReproduceConfig, roles: Sequence[str], folder: Path) -> dict[str, StandIn]:
    """Model for each role; only the named roles where any is named, and a model that stands for several once.

    Args:
        config: the request.
        roles: models that the recipe shows.
        folder: where the tiny models are, or will be once `make_tiny` ran.
    """
    named = parse_models(config.models, recipe_row(config.recipe).family)
    if named:
        models = {
            role: StandIn(role, named[role], config.tokenizer, trained=not named[role].startswith("config:"))
            for role in roles
            if role in named
        }
        if not models:
            expected = f"a --model for one of {', '.join(roles)}"
            raise InputError(teach(expected, "others", f"{config.recipe} shows no other model"))
        return models
    if config.scale == "paper":
        return {
            role: StandIn(role, ROLES[role].hub, config.tokenizer or ROLES[role].tokenizer, own=True) for role in roles
        }
    firsts = [role for role in sharing(config, roles) if config.scale != "zoo" or ROLES[role].zoo]
    if config.scale == "zoo":
        return {role: StandIn(role, f"{PREFIX}{ROLES[role].zoo}", config.tokenizer) for role in firsts}
    return {role: StandIn(role, str(folder / ROLES[role].tiny), config.tokenizer, trained=False) for role in firsts}


def sharing(config: ReproduceConfig, roles: Sequence[str]) -> dict[str, list[str]]:
    """Roles that one model stands for, under the first of them: it is run, and said, once."""
    if config.models or config.scale == "paper":
        return {role: [role] for role in roles}
    shared: dict[str, list[str]] = {}
    for role in roles:
        spec = getattr(ROLES[role], config.scale)
        first = next((other for other in shared if getattr(ROLES[other], config.scale) == spec), role)
        shared.setdefault(first, []).append(role)
    return shared


def stand_in_labels(
    config: ReproduceConfig, roles: Sequence[str], models: Mapping[str, StandIn], results: Mapping[str, Result]
) -> dict[str, str]:
    """What each row is of: the paper's models and what ran for them.

    Args:
        config: the request.
        roles: models that the recipe shows.
        models: what stands for them.
        results: a run of each, for its number of parameters.
    """
    together, labels = sharing(config, roles), {}
    for role, model in models.items():
        count = results[role].provenance["model"]["parameters"] if role in results else None
        names = ", ".join(together.get(role, [role]))
        labels[role] = stand_in_label(names, None if model.own else model.spec, count, trained=model.trained)
    return labels


def make_tiny(folder: Path, names: Sequence[str]) -> None:
    """Write the tiny models that are not there yet, each with the same tokenizer."""
    missing = [name for name in dict.fromkeys(names) if not (folder / name / "config.json").is_file()]
    if not missing:
        return
    from repflow.models.load import without_progress
    from repflow.models.transformers_own import config_class
    from repflow.models.weights.initialise import random_model
    from repflow.store.disk import make_folder

    tokenizer = tiny_tokenizer()
    make_folder(folder)
    for name in missing:
        options = dict(TINY[name])
        config = config_class(options.pop("model_type"))(vocab_size=len(tokenizer), **options)
        network = random_model(config, INIT, seed=0)
        with tempfile.TemporaryDirectory(dir=folder, prefix=f"{name}.part") as part, without_progress():
            whole = Path(part) / name
            tokenizer.save_pretrained(whole)
            network.save_pretrained(whole)
            try:  # whole or not at all
                whole.rename(folder / name)
            except OSError:  # a command beside this one made the same model meanwhile: that one stays
                if not (folder / name / "config.json").is_file():
                    raise


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
