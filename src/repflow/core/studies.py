"""The table of studies: name, where the code is, how a stored run is recognised. No torch; it imports no study.

A new study is a module with `STUDY` (an object of `repflow.studies.engine.study.Study`), its views, and one row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repflow.core.errors import InputError, nearest

LOOK, PAPERS = "Look at a model", "Check a paper"
"""Panels of the list of commands that hold studies."""


@dataclass(frozen=True)
class StudyRow:
    """One study.

    Attributes:
        name: under `study` in a stored config; its views have this name too.
        module: the module that holds `STUDY`.
        marks: keys by which a stored config without a name is recognised.
        facts: keys of a result's provenance that do so too, for configs of earlier versions.
        command: words of the command line that run it.
        no_grid: why `repflow run` makes no cells of it, and what to do instead; "" for a kind of cells.
        also: further names under `study` in stored configs, for results that are shown in another way.
        line: of the list of commands; "" for the first line of its summary.
        panel: where that line stands.
        examples: last lines of the command's help.
        at: `module:function` of a command with arguments of its own; "" for the one that all studies share.
        trains: whether it trains a grid of models, a laboratory; these share a command too.
    """

    name: str
    module: str
    marks: tuple[str, ...] = ()
    command: str = ""
    no_grid: str = ""
    also: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    line: str = ""
    panel: str = LOOK
    examples: tuple[str, ...] = ()
    at: str = ""
    trains: bool = False


STUDIES = (
    StudyRow(
        "measure",
        "repflow.studies.measure",
        ("metrics", "keep_samples"),
        "measure",
        line="what layers do to prompts: similarity, norms, CKA",
        examples=(
            "repflow measure zoo:gpt-neox zoo:mamba2 --task kvpr --length 256    built-in models side by side",
            "repflow measure gpt2 --task text --text corpus.txt --length 512 --samples 16",
        ),
    ),
    StudyRow(
        "probe",
        "repflow.studies.probe.study",
        ("recipes", "controls"),
        "probe",
        facts=("probe",),
        line="where the answer can be read, and where it is lost",
        examples=(
            "repflow probe zoo:gpt-neox --samples 100 --seeds 1    a quick try; the real run has another name",
            "repflow probe gpt2 --task mdqa --twin default",
        ),
    ),
    StudyRow(
        "recency",
        "repflow.studies.recency.study",
        command="recency",
        line="how far back a token reaches",
        examples=(
            "repflow recency zoo:mamba2 --task kvpr --length 256 --twin default    a model and its random twin",
            "repflow recency zoo:mamba2 zoo:gpt-neox    and how fast the ratio of the two falls",
        ),
    ),
    StudyRow(
        "twins",
        "repflow.studies.twins.study",
        command="twins",
        line="trained or random weights: is it the architecture?",
        examples=("repflow twins zoo:gpt-neox --inits default,xavier --lengths 128,512 --seeds 3",),
        at="repflow.cli.twins:command",
    ),
    StudyRow(
        "compare",
        "repflow.studies.compare.study",
        command="compare",
        line="two models state by state: CKA, shared neighbours",
        examples=(
            "repflow compare zoo:gpt-neox zoo:mamba2 --task kvpr --length 256",
            "repflow compare zoo:mamba2 twin    a model with its random twin",
        ),
        at="repflow.cli.compare:command",
    ),
    StudyRow(
        "diagnose",
        "repflow.studies.diagnose.study",
        ("flow_samples",),
        "diagnose",
        facts=("statements",),
        line="flow and probes together: what is lost, and where",
        examples=(
            "repflow diagnose zoo:hybrid --task kvpr --length 256",
            "repflow diagnose --flow runs/MEASURED --probe runs/PROBED    runs that are there",
        ),
        at="repflow.cli.diagnose:command",
    ),
    StudyRow(
        "needle",
        "repflow.studies.needle.study",
        command="needle",
        line="is a planted statement found, and where?",
        examples=(
            "repflow needle zoo:gpt-neox zoo:mamba2 --lengths 256,512    where each finds what was planted",
            "repflow needle gpt2 --haystack essays.txt --skip-told --lengths 512,1000 --samples 32",
        ),
    ),
    StudyRow(
        "memory",
        "repflow.studies.memory.study",
        command="memory",
        line="gates and decays of state-space layers",
        examples=(
            "repflow memory zoo:mamba zoo:mamba2 zoo:gpt-neox --task kvpr --length 256"
            "    a Transformer beside two SSMs",
            "repflow memory zoo:mamba --init default --attention    the random twin, with hidden attention",
        ),
    ),
    StudyRow(
        "corrupt",
        "repflow.studies.corrupt.study",
        command="corrupt",
        line="replace parts of what a model reads: what depends on them?",
        examples=(
            "repflow corrupt models/classifier --images cifar-10/ --regions windows:32,992:1024 --replace normal,same",
            "repflow corrupt zoo:mamba2 zoo:gpt-neox --length 256 --samples 16 --regions first:16,middle:16,last:16",
        ),
    ),
    StudyRow(
        "attack",
        "repflow.studies.corrupt.attack",
        command="attack",
        line="can pasted pixels steer a classifier's answer?",
        examples=("repflow attack models/classifier --images cifar-10/ --targets horse --samples 1000",),
    ),
    StudyRow(
        "reproduce",
        "repflow.studies.reproduce.study",
        ("recipe",),
        "reproduce",
        also=("recency-figure", "dynamics-figure", "reproduce-table"),
        no_grid="a recipe is a grid of runs itself; spread them with `repflow run -- reproduce RECIPE`",
        line="figures and tables of three papers, beside ours",
        panel=PAPERS,
        examples=(
            "repflow reproduce flow-fig2 --scale zoo    on the built-in models",
            "repflow reproduce flow-table1 --scale paper --dry-run    what the paper's own size costs",
        ),
        at="repflow.cli.reproduce:command",
    ),
    StudyRow(
        "recall",
        "repflow.studies.recall.study",
        command="recall",
        line="train a grid of stacks to look things up",
        panel=PAPERS,
        examples=(
            "repflow recall --rows none/16,both/16,placebo/16 --layers 2,4 --rates 0.001,0.002 --dry-run"
            "    what it costs",
            "repflow recall --rows none/18,both+/16 --seeds 0,1,2 --seconds 540    stops in time, goes on next time",
        ),
        trains=True,
    ),
    StudyRow(
        "pixels",
        "repflow.studies.pixels.study",
        command="pixels",
        line="train classifiers of pixels, and see what their answers depend on",
        panel=PAPERS,
        examples=(
            "repflow pixels --rows mamba,transformer --images drawn:16 --dry-run    what it costs",
            "repflow pixels --rows mamba,h3 --seeds 0,1,2 --images cifar-10/ --seconds 540    stops in time, goes on"
            " next time",
        ),
        trains=True,
    ),
    StudyRow(
        "architecture",
        "repflow.studies.architecture.study",
        command="architecture",
        line="train a grid of language models on a text",
        panel=PAPERS,
        examples=(
            "repflow architecture --rows mamba,transformer,mamba2.attention --text corpus.txt --dry-run"
            "    what it costs",
            "repflow architecture --rows mamba,mamba+leaky,mamba+chunks --match-row mamba --seeds 0,1,2    equal sizes",
        ),
        trains=True,
    ),
    StudyRow(
        "classify",
        "repflow.studies.classify.study",
        command="classify",
        line="train a grid of classifiers of texts",
        panel=PAPERS,
        examples=(
            "repflow classify --labelled reviews.jsonl --rows mamba,mamba+leaky --dry-run    what it costs",
            "repflow classify --rows mamba,transformer --steps 200    on the built-in sentences, whole or shuffled",
        ),
        trains=True,
    ),
    StudyRow(
        "training",
        "repflow.studies.training",
        no_grid="a history comes from a training loop; call repflow.training.FlowMeter in yours",
    ),
    StudyRow(
        "theory-verify",
        "repflow.studies.theory.verify",
        command="theory verify",
        examples=("repflow theory verify --quick    every theorem, in seconds",),
    ),
    StudyRow(
        "theory-apply",
        "repflow.studies.theory.apply",
        command="theory apply",
        examples=("repflow theory apply zoo:mamba --length 64    what paper 1 predicts, and what is measured",),
    ),
    StudyRow(
        "dynamics-simulate",
        "repflow.studies.dynamics.simulate",
        command="dynamics simulate",
        examples=(
            "repflow dynamics simulate --x0 0.5,1.5 --mu 1 --s-delta 1 --a 1    tokens that blow up",
            'repflow dynamics simulate --x0 "1,2;3,4" --mu "1,0;0,-1" --s-delta "0,0;0,0"    in two dimensions',
        ),
    ),
    StudyRow(
        "dynamics-apply",
        "repflow.studies.dynamics.apply",
        command="dynamics apply",
        examples=("repflow dynamics apply zoo:mamba    its layers beside paper 3",),
    ),
)
"""In the order of `repflow --help`. Of stored configs without a name, one with the keys of another stands below it."""


def row_named(name: str) -> StudyRow:
    """The row of a study.

    >>> row_named("memory").module
    'repflow.studies.memory.study'
    """
    match = next((row for row in STUDIES if row.name == name), None)
    if match is None:
        raise InputError(f"unknown study {name!r}; {nearest(name, [row.name for row in STUDIES])}")
    return match


def row_of(stored: Mapping[str, Any], provenance: Mapping[str, Any] | None = None) -> StudyRow | None:
    """The study that a stored config belongs to; None for what no study of the table made.

    Args:
        stored: the config.
        provenance: that of the result, where it was read too.

    >>> row_of({"study": "recency"}).name, row_of({"metrics": [], "keep_samples": 4}).name, row_of({})
    ('recency', 'measure', None)
    >>> row_of({"study": "recency-figure"}).name, row_of({}, {"probe": {}}).name
    ('reproduce', 'probe')
    """
    if "study" in stored:
        return next((row for row in STUDIES if stored["study"] in (row.name, *row.also)), None)
    known = provenance or {}
    for row in reversed(STUDIES):
        if (row.marks and stored.keys() >= {*row.marks}) or (row.facts and known.keys() >= {*row.facts}):
            return row
    return None
