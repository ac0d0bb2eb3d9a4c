"""Options of `repflow probe`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError, nearest, teach
from repflow.core.tasks import LABELLED, OWN, UNLABELLED
from repflow.studies.engine.naming import Names, spell
from repflow.studies.engine.parts import (
    AnswerTokens,
    Batches,
    Chat,
    Classes,
    FirstToken,
    GoldIndex,
    Items,
    Leaks,
    Length,
    Matching,
    OneModel,
    Repetitions,
    Sampling,
    StateKind,
    Task,
    Templates,
    Twin,
    ablation_names,
    defaults,
    length_option,
    listed,
    option,
)
from repflow.studies.engine.prompts import check_task, own_file

RECIPES = ("paper", "robust")
CONTROLS = ("task", "capacity")
VARY = ("split", "all", "init")

LENGTHS = {"mdqa": 1000}
LENGTH = 300
"""Tokens per prompt by default: two documents of mdqa with their question do not fit into 300."""


SAMPLES = 1000
"""Prompts by default."""
FRACTIONS = (0.6, 0.2, 0.2)
"""Shares that fit, choose and test by default."""


def task_length() -> Any:
    """A length whose default depends on the task."""
    text = f"tokens per prompt, at most; 1K is 1,000; default {LENGTH}, for mdqa {LENGTHS['mdqa']:,}"
    return length_option(None, text, shown=False)


def prompt_total(*aliases: str) -> Any:
    """Number of prompts, which --train and --test also set; aliases are other names of the option."""
    text = (
        f"prompts: 80 % to train on (a fourth of them to choose with), 20 % to test; default {SAMPLES:,}, or --train "
        "plus --test"
    )
    return option(None, text, shown=False, aliases=aliases)


@dataclass
@defaults({"seeds": "repetitions of the probe; intervals cover refitting from 3 on"})
class Probing(Twin, Leaks, Repetitions):
    """What `repflow probe` and `repflow diagnose` ask of a probe."""

    train: int | None = option(None, "prompts to train on, those that validate among them; the rest of --samples test")
    test: int | None = option(None, "prompts to test on; the rest of --samples train")
    seeds_vary: str = option(
        "split", "what a seed redraws: split (and initialisation), all (prompts too, run once per seed), or init alone"
    )
    label: str = option("index", "what is probed for: index of the gold item, or first symbol of the answer")
    answers: int = option(100, "prompts the model answers greedily, 0 for none")
    lens: int = option(200, "prompts whose answer is looked up in every state through the logit lens, 0 for none")


TWIN_HELP = "also probe the random twin: default, gaussian[:std], xavier[:gain], he[:gain]"


@dataclass
@defaults(
    {
        "task": f"what the model reads: {', '.join(LABELLED[:-1])}, or {OWN} with a label per line",
        "seed": "first seed",
        "twin": TWIN_HELP,
    },
    task="kvpr",
    length=task_length(),
    samples=prompt_total(),
)
class ProbeConfig(
    StateKind,
    Batches,
    AnswerTokens,
    Probing,
    FirstToken,
    Matching,
    Chat,
    Items,
    Classes,
    GoldIndex,
    Templates,
    Sampling,
    Length,
    Task,
    OneModel,
):
    """What to probe; the fields are the command line's options and the `config` of the Result."""

    recipes: list[str] = listed("how probes are trained, repeated or comma separated: paper, robust", RECIPES)
    epochs: int = option(150, "epochs of the recipe paper")
    rate: float = option(0.05, "learning rate of the recipe paper")
    position: str = option("last", "token to read: last, mean over all, or a relative position from 0 to 1")
    sweep: list[str] = listed("further relative positions to read, repeated or comma separated, such as 0,0.5,1")
    controls: list[str] = listed(
        "task (labels by the queried key alone), capacity (shuffled labels), none; comma separated", CONTROLS
    )
    drop_features: bool = option(
        False,
        "remove the stored features once the run is finished; of a finished run, too, when the command is run again",
    )

    def __post_init__(self) -> None:
        """Convert lists to their canonical form, so that the same request makes the same run."""
        self.length = LENGTHS.get(self.task, LENGTH) if self.length is None else self.length
        self.samples = total_prompts(self.samples, self.train, self.test)
        self.ablate = ablation_names(self.ablate)
        self.recipes = _words(self.recipes, RECIPES, "--recipes")
        self.controls = _words(self.controls, CONTROLS, "--controls", none=True)
        self.sweep = [part.strip() for value in self.sweep for part in str(value).split(",") if part.strip()]

    @property
    def fractions(self) -> tuple[float, float, float]:
        """Shares of the prompts that fit, choose and test.

        A fourth of the training prompts chooses penalty, recipe and state, or as many as test where these are fewer.

        >>> ProbeConfig().fractions, [round(22_000 * f) for f in ProbeConfig(train=20_000, test=2000).fractions]
        ((0.6, 0.2, 0.2), [18000, 2000, 2000])
        """
        if self.train is None and self.test is None:
            return FRACTIONS
        test = self.samples - self.train if self.test is None and self.train is not None else self.test or 0
        valid = min(test, (self.samples - test) / 4)
        return (1 - (test + valid) / self.samples, valid / self.samples, test / self.samples)

    @property
    def text(self) -> list[str]:
        """No text files: running text has no labels."""
        return []


def total_prompts(samples: int | None, train: int | None, test: int | None) -> int:
    """Number of prompts: the training and the test ones; numbers that do not agree are refused.

    >>> total_prompts(None, None, None), total_prompts(None, 800, 100), total_prompts(500, None, 100)
    (1000, 900, 500)
    """
    counts = [(name, value) for name, value in (("--train", train), ("--test", test)) if value is not None]
    for name, value in counts:
        if value < 1:
            raise InputError(teach(f"{name} of at least 1", f"{value}", "leave it out for the default"))
    if not counts:
        return SAMPLES if samples is None else samples
    if len(counts) == 2:
        total = sum(value for _, value in counts)
        if samples not in (None, total):
            got = f"--samples {samples}, --train {train} and --test {test}"
            raise InputError(teach("--samples equal to --train + --test", got, f"leave --samples out for {total}"))
        return total
    name, value = counts[0]
    other = "--test" if name == "--train" else "--train"
    if samples is None:
        raise InputError(teach(f"{name} together with {other} or --samples", f"{name} {value} alone", f"add {other}"))
    if value >= samples:
        got = f"{name} {value} of --samples {samples}"
        raise InputError(teach(f"{name} below --samples", got, f"leave --samples out and add {other}"))
    return samples


def _words(entry: Sequence[str], known: Sequence[str], option: str, *, none: bool = False) -> list[str]:
    listed = [entry] if isinstance(entry, str) else entry
    words = [part.strip() for value in listed for part in value.split(",") if part.strip()]
    if none and (words == ["none"] or not words):
        return []
    if none and "none" in words:
        others = [word for word in words if word != "none"]
        raise InputError(teach(f"{option} none, or names without it", ",".join(words), f"drop none or {others[0]}"))
    for word in words:
        if word not in known:
            raise InputError(teach(f"{option} {' or '.join(known)}", repr(word), nearest(word, known)))
    if not words:
        raise InputError(teach(f"{option} {' or '.join(known)}", "none", "name at least one"))
    return [word for word in known if word in words]


def check_words(config: ProbeConfig) -> None:
    """Refuse what can be seen to be wrong before a model is loaded, which may take minutes."""
    from repflow.studies.engine.loading import check_files
    from repflow.tasks.make import check_size

    if config.task in UNLABELLED:
        expected = f"a task with labels: {', '.join(LABELLED)}"
        raise InputError(teach(expected, repr(config.task), "a probe needs something to read"))
    whole: Any = config  # its text is no field, which the type of prompts' configs asks for
    check_task(whole)
    check_files(*own_file(config.task))
    check_size(config.length, config.samples)
    if config.index is not None and config.label == "index":
        got = f"--index {config.index}, one class"
        raise InputError(teach("a gold index that varies", got, "leave --index out or pass --label answer"))
    check_numbers(config)


def check_numbers(config: ProbeConfig) -> None:
    """Refuse numbers and words that mean nothing, whatever the prompts."""
    from repflow.spec.request import check_readings
    from repflow.spec.scheme import parse_scheme
    from repflow.studies.engine.loading import check_loading

    check_loading(config)
    check_readings([config.position, *config.sweep])
    if config.twin is not None and parse_scheme(config.twin).name == "trained":
        raise InputError(teach("a random scheme for the twin", repr(config.twin), "pass --twin default, gaussian, ..."))
    if config.seeds_vary not in VARY:
        expected = f"--seeds-vary {', '.join(VARY[:-1])} or {VARY[-1]}"
        raise InputError(teach(expected, repr(config.seeds_vary), nearest(config.seeds_vary, VARY)))
    for name, least in (("seeds", 1), ("samples", 10), ("seed", 0), ("answers", 0), ("lens", 0), ("epochs", 1)):
        if (value := getattr(config, name)) < least:
            raise InputError(teach(f"--{name} of at least {least}", f"{value}", "see repflow probe --help"))
    if not 0 < config.rate < float("inf"):
        raise InputError(teach("a finite --rate above 0", f"{config.rate:g}", "the paper's is 0.05"))
    if config.answer_tokens is not None and config.answer_tokens < 1:
        raise InputError(teach("--answer-tokens of at least 1", f"{config.answer_tokens}", "pass --answers 0 for none"))


def names(config: ProbeConfig) -> Names:
    """Names of a run: model, weights, task, length and prompts x seeds.

    >>> names(ProbeConfig(model="gpt2")).current, names(ProbeConfig(model="gpt2", samples=50, seeds=1, items=3)).current
    ('gpt2-probe-kvpr-300-1000x5', 'gpt2-probe-kvpr-300-50x1-1059cded')
    """
    parts = [config.init] if config.init != "trained" else []
    parts += [f"init{config.init_seed}"] if config.init_seed is not None else []
    parts += [f"no-{name}" if name in ("norm", "positions") else name for name in config.ablate]
    parts += ["probe", Path(config.task).stem, str(config.length), f"{config.samples}x{config.seeds}"]
    parts += [config.states] if config.states != "residual" else []
    parts += [f"at-{config.position}"] if config.position != "last" else []
    parts += [config.label] if config.label != "index" else []
    return spell(config, parts, NAMED)


NAMED = frozenset(
    ("model", "init", "init_seed", "ablate", "task", "length", "samples", "seeds", "states", "position", "label")
)
"""Options that the name of a run spells out."""
