"""Parts of the studies' configs: every option that several studies have is declared here, once.

A study's config is a dataclass that inherits the parts it needs and adds what it alone has. Attributes stay flat, so a
field is an option of the command line, a keyword in Python and an entry of the stored config under the same name.
A study for which an option starts elsewhere, or means a little more, says so with `defaults`:

    @dataclass
    @defaults(samples=4)
    class MemoryConfig(OneModel, Prompting, Batches):
        units: int = option(16, "channels of a layer that --attention looks at")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from repflow.core.tasks import WORDS
from repflow.spec.length import parse_length

C = TypeVar("C")


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A field with its help text; `repflow.cli.options` reads `flag`, `aliases`, `shown`, `parser`, `hidden` too."""
    return field(default=default, metadata={"help": help, **metadata})


def listed(help: str, default: Sequence[Any] = (), **metadata: Any) -> Any:
    """A field that takes several values."""
    return field(default_factory=lambda: list(default), metadata={"help": help, **metadata})


def length_option(default: int | None, help: str, **metadata: Any) -> Any:
    """A length in tokens, which the command line also takes as 1K, 2K or 4K."""
    return option(default, help, parser=parse_length, **metadata)


def defaults(helps: dict[str, str] | None = None, /, **values: Any) -> Callable[[type[C]], type[C]]:
    """Inherited fields with another default, another help text (`helps`), or both; put it below `@dataclass`.

    A value may also be a whole field, made with `option` or `listed`; None leaves an option open.

    >>> @dataclass
    ... @defaults({"seed": "seed of everything"}, samples=2)
    ... class Few(Sampling):
    ...     pass
    >>> Few(), Few.__dataclass_fields__["seed"].metadata["help"]
    (Few(seed=0, samples=2), 'seed of everything')
    """

    def change(cls: type[C]) -> type[C]:
        for name in {**(helps or {}), **values}:
            inherited = _inherited(cls, name)
            option_field = values.get(name, inherited.default)
            if not isinstance(option_field, Field):
                factory = inherited.default_factory if name not in values else MISSING
                metadata = dict(inherited.metadata)
                start: dict[str, Any] = (
                    {"default": option_field} if factory is MISSING else {"default_factory": factory}
                )
                option_field = field(**start, metadata=metadata)
            if name in (helps or {}):
                option_field.metadata = {**option_field.metadata, "help": (helps or {})[name]}
            open_now = values.get(name, ...) is None and "None" not in str(inherited.type)
            cls.__annotations__[name] = f"{inherited.type} | None" if open_now else inherited.type
            setattr(cls, name, option_field)
        return cls

    return change


def _inherited(cls: type, name: str) -> Field[Any]:
    """A field as the nearest base has it: of a class that is no dataclass yet."""
    base = next(b for b in cls.__mro__ if name in b.__dict__.get("__dataclass_fields__", {}))
    inherited: Field[Any] = base.__dict__["__dataclass_fields__"][name]
    return inherited


def unread(*names: str) -> Callable[[type[C]], type[C]]:
    """Inherited fields that a study refuses, left out of its help; put it below `@dataclass`.

    They stay options, so that whoever sets one learns why it means nothing here.

    >>> @dataclass
    ... @unread("seed")
    ... class Fixed(Seed):
    ...     pass
    >>> Fixed(), Fixed.__dataclass_fields__["seed"].metadata["hidden"]
    (Fixed(seed=0), True)
    """

    def change(cls: type[C]) -> type[C]:
        for name in names:
            inherited = _inherited(cls, name)
            both = {"default": inherited.default, "default_factory": inherited.default_factory}
            start: Any = {key: value for key, value in both.items() if value is not MISSING}
            cls.__annotations__[name] = inherited.type
            setattr(cls, name, field(**start, metadata={**inherited.metadata, "hidden": True}))
        return cls

    return change


@dataclass
class Seed:
    """Where random draws start."""

    seed: int = option(0, "seed of random prompts and random weights")


@dataclass
class Sampling(Seed):
    """How many prompts, and from which seed."""

    samples: int = option(8, "number of prompts")


@dataclass
class Device:
    """Where a model runs."""

    device: str | None = option(None, "cpu, cuda, cuda:1 ...; default: the first GPU, else the CPU")


@dataclass
class Tokenizing:
    """What turns text into token ids."""

    tokenizer: str | None = option(None, "folder or file of a tokenizer, where the model has none")


@dataclass
class Machine(Tokenizing, Device):
    """What a model is read with, and where it runs."""

    dtype: str | None = option(None, "float32 (default), bfloat16, float16, float64")


@dataclass
class Scans:
    """Which form of a recurrent layer's scan runs."""

    scan: str = option(
        "auto", "scan of state-space layers: auto (the fastest that can run), fast (repflow's), reference"
    )


@dataclass
class Batches:
    """How many prompts run together."""

    batch_size: int | None = option(None, "prompts per forward pass; default by length")


@dataclass
class Permissions:
    """What is refused unless it is allowed."""

    allow_float16: bool = option(False, "measure in float16 although its range is small")
    trust_remote_code: bool = option(False, "run Python code that comes with the model")


@dataclass
class Spec:
    """Which model."""

    model: str = option("", "model: zoo:NAME, folder, hub id[@revision], config:FILE.json or FILE.gguf")


@dataclass
class Init:
    """Trained weights, or random ones."""

    init: str = option(
        "trained",
        "weights: trained, or random: default, gaussian[:std], xavier[:gain], he[:gain], then +residual ...",
    )


@dataclass
class InitSeed:
    """Random weights by a seed of their own."""

    init_seed: int | None = option(None, "seed of random weights, where it is not that of the prompts")


@dataclass
class Ablation:
    """Parts of the model that are taken out, each set under one name."""

    ablate: list[str] = listed(
        "parts taken out, repeated or comma separated: norm-affine, norm, positions, attention-window:W, "
        "attention-uniform, block:N, branch:N.KIND, branch:KIND"
    )

    def __post_init__(self) -> None:
        """Ablations in their fixed order, so that the same set makes the same run."""
        self.ablate = ablation_names(self.ablate)


@dataclass
class Placement:
    """A model over several devices."""

    device_map: str | None = option(None, "auto spreads the model over devices (extra: accelerate)")


@dataclass
class OneModel(Permissions, Scans, Placement, Machine, Ablation, InitSeed, Init, Spec):
    """All that loading one model takes; see `repflow.studies.engine.loading.load_model`."""


@dataclass
class Task:
    """What the model reads."""

    task: str = option("text", f"what the model reads: {WORDS}")


@dataclass
class TextFiles:
    """Files of the task text."""

    text: list[str] = listed("text file for the task text; may be given several times")


@dataclass
class Length:
    """Tokens per prompt."""

    length: int = length_option(512, "tokens per prompt, at most; 1K is 1,000")


@dataclass
class FirstToken:
    """The first token of a prompt."""

    bos: str = option("model", "first token: as the model's tokenizer has it (model), always, never")


@dataclass
class Templates:
    """What retrieval prompts are made of."""

    format: str = option("liu2024", "template of kvpr: liu2024 (valid JSON), or paper (as printed in its appendix B)")
    documents: str | None = option(None, "JSONL of questions and passages for mdqa; default made-up facts")


@dataclass
class Items:
    """How many items a retrieval prompt has, and which surround the gold one."""

    items: int | None = option(None, "pairs or documents per prompt; default as many as fit into --length")
    distractors: str = option("bm25", "other documents of mdqa: bm25 (most like the question), or random")


@dataclass
class GoldIndex:
    """Where the gold item is."""

    index: int | None = option(None, "index of the gold pair or document from 0; swept and balanced unless given")


@dataclass
class Classes:
    """Classes of the gold item's position."""

    classes: int | None = option(None, "bins of the gold item's relative position; default one class per index")


@dataclass
class Chat:
    """Prompts as instruct models were trained on."""

    chat_template: bool = option(False, "put each prompt into the tokenizer's chat template")


@dataclass
class Matching:
    """The same prompts for several models."""

    match: str = option("text", "several models get the same text, items (same number of them), or tokens")
    match_with: list[str] = listed(
        "another model whose tokenizer the prompts must fit too; set where several are measured"
    )


@dataclass
class Prompting(FirstToken, Matching, Chat, Items, Classes, GoldIndex, Templates, Sampling, Length, TextFiles, Task):
    """All that making prompts for one model takes; see `repflow.studies.engine.prompts.make_prompts`."""


@dataclass
class ImageSource:
    """Images, and what a token is; see `repflow.tasks.pixels`."""

    images: str = option(
        "drawn",
        "images: drawn[:SIDE], a folder (CIFAR-10, PNG files by class, or .npy), an archive, its parts as FILE.*, .npz",
    )
    patch: int | None = option(None, "pixels a side of a token; default the model's own, or 1")
    grey: bool = option(False, "brightness in place of colours")


@dataclass
class Pictures(ImageSource):
    """Images, and how they become sequences."""

    order: str | None = option(None, "order of pixels: row, reversed, column, snake, hilbert; default the model's own")


@dataclass
class StateKind:
    """Which states are read."""

    states: str = option(
        "residual", "kind of state: residual, branch, branch:attention|mlp|ssm|recurrent|conv, hf-tuple, stream:K"
    )


@dataclass
class Metrics:
    """What is computed of them."""

    metrics: list[str] = listed("names of metrics")


@dataclass
class FlowSamples:
    """Prompts of a study that measures the flow beside other things."""

    flow_samples: int = option(16, "prompts whose flow is measured")


@dataclass
class CkaForm:
    """The estimator of CKA."""

    cka_form: str = option("unbiased", "CKA estimator: unbiased, or paper (biased)")


@dataclass
class Twin:
    """The model's random twin beside it."""

    twin: str | None = option(None, "also measure the random twin: default, gaussian[:std], xavier[:gain], he[:gain]")


@dataclass
class Leaks:
    """Labels that can be read without the model."""

    allow_leak: bool = option(False, "continue even if a sentinel reads the label without the model")


@dataclass
class Lengths:
    """Several lengths."""

    lengths: list[str] = listed("tokens per prompt, repeated or comma separated; 1K is 1,000", aliases=("--length",))


@dataclass
class Inits:
    """Several kinds of weights."""

    inits: list[str] = listed("kinds of random weights, repeated or comma separated", aliases=("--init",))


@dataclass
class Repetitions:
    """How often what is random is drawn again."""

    seeds: int = option(5, "number of seeds")


@dataclass
class AnswerTokens:
    """How long a greedy answer may be."""

    answer_tokens: int | None = option(None, "most tokens of an answer; default 16 more than the longest right one")


def words(entry: Any) -> list[str]:
    """A list as it may be typed: repeated, comma separated, or a lone value.

    >>> words(["a,b", "c"]), words("a, b"), words(3)
    (['a', 'b', 'c'], ['a', 'b'], ['3'])
    """
    values = [entry] if isinstance(entry, str | int | float | Path) else entry
    return [part.strip() for value in values for part in str(value).split(",") if part.strip()]


def ablation_names(ablate: Sequence[str]) -> list[str]:
    """Names of ablations in their fixed order, so that the same set makes the same run; unknown ones are refused."""
    if not ablate:
        return []
    from repflow.spec.ablation import parse_ablations

    return [str(ablation) for ablation in parse_ablations(as_list(ablate))]


def as_list(value: Any) -> list[str]:
    """Strings of a list, or of a lone one, which Python would take for a list of letters."""
    return [str(entry) for entry in ([value] if isinstance(value, (str, Path)) else value)]


def help_of(config: type, name: str) -> str:
    """Help text of a config's field."""
    return str(config.__dataclass_fields__[name].metadata["help"])  # type: ignore[attr-defined]
