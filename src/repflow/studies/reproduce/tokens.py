"""Paper 3's tables and figures of trained models: signs of eigenvalues, sorted tokens, parts taken out, token norms.

Language models are trained here (`repflow architecture`), classifiers of texts too (`repflow classify`). The paper's
sorted language models read their future; so do ours with `+leaky`, in lines of their own, and beside them stand causal
ones with their controls. Its scenarios differ in scale as well as in sign, which its text does not say; so do ours with
`+shift`, and beside them stand rows of one scale. The text is the one that is passed, the paper's is WikiText-103.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from repflow.papers.tokens import (
    CAUSAL,
    IDENTITY,
    LEAKY,
    NAMES,
    RANDOM,
    TABLE2,
    TABLE6,
    TABLE7,
    TABLE8,
    TABLE9,
    TABLE10,
    UNCONSTRAINED,
    RowValues,
)
from repflow.studies.architecture.config import ArchitectureConfig
from repflow.studies.classify.config import ClassifyConfig
from repflow.studies.laboratory.volume import batch_parts
from repflow.studies.reproduce.recipe import ReproduceCell, ReproducePlan, cell_name
from repflow.studies.reproduce.statement import Reading, Statement, StatementRecipe

if TYPE_CHECKING:
    import numpy as np

    from repflow.core.results import Result
    from repflow.studies.engine.cells import Outcome
    from repflow.studies.reproduce.config import ReproduceConfig
    from repflow.studies.reproduce.models import StandIn

KEY, NOT_PRINTED = "models", "not printed"
FREE, KINDS = "mamba", ("positive", "mixed", "negative")
PUBLISHED = {"positive": "mamba+positive+shift", "mixed": "mamba+mixed", "negative": "mamba+negative+shift"}
"""Scenarios as the paper's public code scales them."""
EQUAL = {kind: f"mamba+{kind}+scaled" for kind in KINDS}
ORDERS = ("", LEAKY, CAUSAL, IDENTITY, RANDOM)
NORMLESS = {"free": "mamba-norm", **{kind: f"mamba+{kind}-norm" for kind in KINDS}}
NORMED = {"free": "mamba", **{kind: f"mamba+{kind}" for kind in KINDS}}
ROWS = {
    "scenarios": (FREE, "mamba+scaled", *PUBLISHED.values(), *EQUAL.values()),
    "orders": tuple(f"{model}{order}" for model in TABLE6 for order in ORDERS),
    "ablations": tuple(f"{model}{order}" for model in TABLE10 for order in ORDERS),
    "norms": (*NORMLESS.values(), *NORMED.values()),
}
"""Grids; recipes of one grid share its run."""
LANGUAGE: dict[str, dict[str, Any]] = {
    "tiny": {
        **{"layers": ["2"], "widths": ["16"], "lengths": ["32"], "chunk": 8, "steps": 10, "batch": 4},
        **{"rates": ["0.01"], "seeds": ["0"], "readings": 2, "reading_tokens": 200, "leak_positions": 20},
    },
    "lab": {
        **{"layers": ["4"], "widths": ["128"], "lengths": ["256"], "steps": 600, "batch": 64, "warmup": 0.1},
        **{"rates": ["0.005", "0.01"], "seeds": ["0", "1", "2"]},
    },
    "paper": {
        **{"layers": ["24"], "widths": ["768"], "lengths": ["1024"], "steps": 22_500, "batch": 128, "warmup": 0.01},
        **{"rates": ["0.0015"], "seeds": ["42"], "decay": 0.25, "second_beta": 0.999, "last_rate": 0.1},
        **{"dropout": 0.25, "heads": 12},
    },
}
"""Of each scale; `paper` has 25 epochs of 900 steps. `lab` has 10 million tokens a model, so that a table takes
minutes on one GPU; docs/laboratories/tokens.md trains three times as long."""
SMALL: dict[str, Any] = {"layers": ["2"], "widths": ["64"], "batch": 32}
"""At `lab` of grids with many rows that cannot be trained side by side: 5 million tokens a model."""
NORMLESS_RATES = ["0.00015", "0.0015"]
"""At `paper` of grids with rows that have no norms. The paper names no rate of theirs; at that of its other models,
the second, four such rows diverged at step 3 or 4 of a try on a GPU."""
LABELLED: dict[str, dict[str, Any]] = {
    "tiny": {
        **{"layers": ["1"], "widths": ["16"], "length": 32, "steps": 10, "batch": 8, "folds": 3},
        **{"seeds": ["0", "1", "2"], "rates": ["0.01"]},
    },
    "lab": {"layers": ["2"], "widths": ["64"], "length": 512, "steps": 1000, "rates": ["0.001", "0.003"]},
    "paper": {"layers": ["24"], "widths": ["768"], "length": 1024, "steps": 5000},
}
"""Of each scale; the paper says nothing of how its classifiers were trained."""


@dataclass(frozen=True, kw_only=True)
class Trained(StatementRecipe):
    """A table or figure of paper 3 on models that are trained.

    Attributes:
        name: in the table of recipes.
        note: how it is read.
        grid: which rows.
        said: gives its statements.
        beside: gives lines of printed numbers beside ours, judged by none.
        seeds: of the scale `paper`, where there are several.
    """

    name: str
    note: str
    grid: str
    said: Callable[[], Iterator[Statement]]
    beside: Callable[[Result], Iterator[tuple[str, str, str]]]
    seeds: tuple[int, ...] = ()
    takes: tuple[str, ...] = ("recipe", "scale", "seed", "device", "text", "tokenizer", "try_steps")
    drawn: tuple[str, ...] = ("perplexity", "perplexity_on_the_way", "leak", "token_norm", "parameters")
    work: str = "training language models"

    def cells(self, config: ReproduceConfig, models: Mapping[str, StandIn]) -> Iterator[ReproduceCell]:
        """One grid."""
        many = config.scale == "lab" and self.grid in ("orders", "ablations")
        chosen = LANGUAGE[config.scale] | (SMALL if many else {})
        if config.scale == "paper":
            chosen |= {"seeds": [str(seed) for seed in self.seeds]} if self.seeds else {}
            chosen |= {"rates": NORMLESS_RATES} if self.grid in ("norms", "ablations") else {}
        chosen["seeds"] = [str(int(seed) + config.seed) for seed in chosen["seeds"]]
        if config.try_steps:
            tokens = int(chosen["lengths"][0])
            # layers that share weights are wider for as many parameters: about by the root of their number
            wider = math.sqrt(int(chosen["layers"][0])) if self.grid == "ablations" else 1.0
            chosen |= tried(chosen, config.try_steps, round(wider * tokens)) | {"readings": 1, "leak_positions": 20}
        if self.grid == "ablations":  # narrower ones could not be matched closely
            chosen |= {"match_row": "mamba", "widths": ["48"] if config.scale == "tiny" else chosen["widths"]}
        more: dict[str, Any] = {"text": list(config.text), "tokenizer": config.tokenizer, "device": config.device}
        asked = ArchitectureConfig(rows=list(ROWS[self.grid]), flow_samples=0, **chosen, **more)
        yield ReproduceCell(cell_name(self.grid, asked), asked, key=KEY)

    def statements(self, roles: Sequence[str], *, random: bool = False) -> list[Statement]:
        """What the paper says."""
        return list(self.said())

    def compare(self, plan: ReproducePlan, outcomes: Sequence[Outcome]) -> Result:
        """The statements with their verdict; then printed numbers beside ours, judged by none at another size."""
        result = super().compare(plan, outcomes)
        trained = next((outcome.result for outcome in outcomes if outcome.result is not None), None)
        if trained is not None:
            for what, stated, ours in self.beside(trained):
                line = {"what": what, "of": what, "stated": stated, "ours": ours, "holds": None, "judged": False}
                result.provenance["lines"].append(line)
            result.findings += trained.findings
        return result


@dataclass(frozen=True, kw_only=True)
class Labelled(Trained):
    """Table 7: classifiers of texts."""

    takes: tuple[str, ...] = ("recipe", "scale", "seed", "device", "labelled", "tokenizer", "try_steps")
    drawn: tuple[str, ...] = ("accuracy", "accuracy_on_the_way", "parameters")
    work: str = "training classifiers"

    def cells(self, config: ReproduceConfig, models: Mapping[str, StandIn]) -> Iterator[ReproduceCell]:
        """Mamba, sorted and not."""
        usual: dict[str, Any] = {"batch": 32, "seeds": ["0", "1", "2", "3", "4"]}
        chosen = usual | LABELLED[config.scale]
        chosen["seeds"] = [str(int(seed) + config.seed) for seed in chosen["seeds"]]
        chosen |= tried(chosen, config.try_steps, chosen["length"]) if config.try_steps else {}
        more: dict[str, Any] = {"labelled": config.labelled, "tokenizer": config.tokenizer, "device": config.device}
        asked = ClassifyConfig(rows=["mamba", f"mamba{LEAKY}"], **chosen, **more)
        yield ReproduceCell(cell_name("labelled", asked), asked, key=KEY)


def tried(chosen: Mapping[str, Any], steps: int, tokens: int) -> dict[str, Any]:
    """What a few steps need to show that a grid runs: every row once, at its lowest rate, as many rows as memory takes.

    A whole batch is summed over such parts (`batch_parts`), which needs no more memory and shows nothing new.

    >>> tried({"layers": ["24"], "widths": ["768"], "batch": 128, "seeds": ["42", "43"]}, 20, 1024)
    {'steps': 20, 'batch': 16, 'seeds': ['42']}
    >>> tried({"layers": ["2"], "widths": ["64"], "batch": 32, "seeds": ["0"], "rates": ["0.01", "0.005"]}, 5, 256)
    {'steps': 5, 'batch': 32, 'seeds': ['0'], 'rates': ['0.005']}
    """
    layers, width, batch = int(chosen["layers"][0]), int(chosen["widths"][0]), int(chosen["batch"])
    parts = batch_parts(batch * tokens * layers * width, batch)
    few = {"steps": steps, "batch": batch // parts, "seeds": chosen["seeds"][:1]}
    return few | ({"rates": [min(chosen["rates"], key=float)]} if "rates" in chosen else {})


def values_of(
    result: Result,
    name: str = "perplexity",
    place: int | None = 0,
    *,
    log: bool = True,
    chosen: Sequence[int] | None = None,
) -> RowValues:
    """A number by row and seed, every row at its best rate, or of the cells that are chosen."""
    import numpy as np

    from repflow.studies.architecture.fit import best_cells

    chosen = best_cells(result) if chosen is None else list(chosen)
    cells = [result.provenance["cells"][at] for at in chosen]
    values = result[name][chosen] if place is None else result[name][chosen][:, place]
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.log(values) if log else values
    return RowValues.of([cell["row"] for cell in cells], [cell["seed"] for cell in cells], values)


def _below(result: Result, row: str, other: str) -> Reading:
    """Whether a row's perplexity is lower than another's."""
    loss = values_of(result)
    apart = loss.less(row, other)
    return Reading(f"{loss.perplexity(row)} against {loss.perplexity(other)}: {apart.words()}", apart.below)


def _statement(what: str, stated: str, source: str, row: str, other: str) -> Statement:
    return Statement(what, stated, source, (KEY,), partial(_below, row=row, other=other))


def _scenarios(printed: Mapping[str, str], source: str) -> Iterator[Statement]:
    """Signs, as published and at one scale, and the unconstrained model."""
    for a, b in (("positive", "mixed"), ("mixed", "negative")):
        said = f"{printed[a]} against {printed[b]}"
        yield _statement(f"{a} below {b}, scaled as in the public code", said, source, PUBLISHED[a], PUBLISHED[b])
        yield _statement(f"{a} below {b}, at one spectral norm", "no control printed", source, EQUAL[a], EQUAL[b])
    said = f"“could further optimize”; {printed['positive']}, unconstrained {UNCONSTRAINED} in Tables 6 and 10"
    yield _statement("positive below unconstrained", said, source, PUBLISHED["positive"], FREE)
    what = "positive below unconstrained, at one spectral norm"
    yield _statement(what, "no control printed", source, EQUAL["positive"], "mamba+scaled")


def _throughout() -> Iterator[Statement]:
    """Figure 1: positive is best at every reading."""
    for words, rows in (("scaled as in the public code", PUBLISHED), ("at one spectral norm", EQUAL)):
        said = "the lowest curve throughout" if rows is PUBLISHED else "no control printed"
        for other in ("mixed", "negative"):
            reader = partial(_lower_throughout, row=rows["positive"], other=rows[other])
            yield Statement(f"positive below {other} all along, {words}", said, "Figure 1", (KEY,), reader)


def _lower_throughout(result: Result, row: str, other: str) -> Reading:
    """At every reading behind the first, which is before training; each has its part of the level."""
    steps = result.provenance["architecture"]["watched"]
    tests = sum(step > 0 for step in steps)
    sides, parts = [], []
    for place, step in enumerate(steps):
        if step:
            apart = values_of(result, "perplexity_on_the_way", place).less(row, other, tests=tests)
            sides.append(apart.below)
            parts.append(f"step {step:,} {apart.words()}")
    return Reading("; ".join(parts), False if False in sides else True if sides and all(sides) else None)


def _orders(table: Mapping[str, tuple[float, float]], source: str) -> Iterator[Statement]:
    """Leaky lines first, then causal ones."""
    for model, (plain, ordered) in table.items():
        said = f"{ordered} against {plain}"
        name = NAMES[model]
        yield _statement(f"{name}, leaky: sorted below as they come", said, source, f"{model}{LEAKY}", model)
        reader = partial(_prefix_alone, model=model)
        what = f"{name}, leaky model fed the prefix alone: still below as they come"
        yield Statement(what, "not asked", source, (KEY,), reader)
    for model, (plain, ordered) in table.items():
        name, said = NAMES[model], f"{ordered} against {plain}, by a leaky sort"
        yield _statement(f"{name}, causal: sorted below as they come", said, source, f"{model}{CAUSAL}", model)
        for control, words in ((IDENTITY, "in their own order"), (RANDOM, "in a fixed random order")):
            what = f"{name}, causal: sorted below the same chunks {words}"
            yield _statement(what, "no control printed", source, f"{model}{CAUSAL}", f"{model}{control}")


def _prefix_alone(result: Result, model: str) -> Reading:
    """Loss of the leaky model on prefixes less that of the model that keeps the order, at the same positions."""
    if "prefix_loss" not in result:
        return Reading("not read", None)
    prefix, whole = (values_of(result, name, None, log=False) for name in ("prefix_loss", "whole_loss"))
    apart = prefix.less(f"{model}{LEAKY}", f"{model}{IDENTITY}", whole)
    leak = prefix.less(f"{model}{LEAKY}", f"{model}{LEAKY}", whole)
    return Reading(f"{apart.nats()}; leak {leak.nats()}", apart.below)


def _norms(rows: Mapping[str, str], *, normed: bool) -> Iterator[Statement]:
    """Figures 7 and 8: token norms behind the last block over those of the embedding."""
    source = "Figure 8" if normed else "Figure 7"
    said = "“not necessarily” to 0" if normed else "goes to 0"
    reader = partial(_last_norm, row=rows["negative"], grows=normed, rows=tuple(rows.values()))
    does = "with norms: tokens do not shrink" if normed else "without norms: tokens shrink"
    what = f"negative eigenvalues {does}"
    yield Statement(what, said, source, (KEY,), reader)
    if not normed:
        for kind in ("mixed", "positive"):
            reader = partial(_last_norm, row=rows[kind], grows=True, rows=tuple(rows.values()))
            yield Statement(f"{kind} eigenvalues without norms: tokens grow", "diverges", source, (KEY,), reader)


def alike(result: Result, rows: Sequence[str]) -> list[int]:
    """Cells of some rows at one rate, the best at which none of them diverged: norms depend on it.

    Each row at its own best rate, where there is no such one.
    """
    import numpy as np

    from repflow.studies.architecture.fit import best_cells

    cells, loss = result.provenance["cells"], np.log(result["perplexity"][:, 0])
    rates = sorted({cell["rate"] for cell in cells})
    by = {rate: [at for at, cell in enumerate(cells) if cell["rate"] == rate and cell["row"] in rows] for rate in rates}
    whole = {rate: float(loss[mine].mean()) for rate, mine in by.items() if np.isfinite(loss[mine]).all()}
    if whole:
        return by[min(whole, key=lambda rate: whole[rate])]
    return [at for at in best_cells(result) if cells[at]["row"] in rows]


def course_of(result: Result, row: str, rows: Sequence[str]) -> np.ndarray | None:
    """Mean token norm behind every block (state,), mean of logarithms over seeds; None where all diverged."""
    import numpy as np

    mine = [at for at in alike(result, rows) if result.provenance["cells"][at]["row"] == row]
    norms = result["token_norm"][mine]
    norms = norms[np.isfinite(norms).all(1)]
    return np.exp(np.log(norms).mean(0)) if len(norms) else None


def _last_norm(result: Result, row: str, grows: bool, rows: Sequence[str]) -> Reading:
    chosen = alike(result, rows)
    last, first = (values_of(result, "token_norm", place, chosen=chosen) for place in (-1, 0))
    apart = last.less(row, row, first)
    rate = next(result.provenance["cells"][at]["rate"] for at in chosen if result.provenance["cells"][at]["row"] == row)
    words = apart.nats().replace(" nats", "")
    text = f"ln of the last norm over the first {words}, at rate {rate:g}; {_rate(result, row, rows)}"
    return Reading(text, apart.above if grows else apart.below)


def _rate(result: Result, row: str, rows: Sequence[str]) -> str:
    """Which of the theory's rates a row follows."""
    from repflow.dynamics.rates import REGIMES, fit_rates

    norms = course_of(result, row, rows)
    if norms is None:
        return "diverged"
    fit = fit_rates(norms)
    errors = ", ".join(f"{name} {error:.2f}" for name, error in zip(REGIMES, fit.errors, strict=True))
    return f"follows {fit.followed or 'none of the rates'} (errors in ln norm: {errors})"


def _classified() -> Iterator[Statement]:
    said = ", ".join(f"{ordered} against {plain} % on {name}" for name, (plain, ordered) in TABLE7.items())
    yield Statement("sorted texts are classified better", said, "Table 7", (KEY,), _better)


def _better(result: Result) -> Reading:
    """The study's own comparison, which leaves open what its texts could not show."""
    said = next((finding.message for finding in result.findings if finding.code == "difference"), "not compared")
    return Reading(said, {"better": True, "worse": False}.get(said.partition(";")[0].rpartition(" ")[2]))


def _perplexities(result: Result, table: Mapping[str, tuple[str, str]], source: str) -> Iterator[tuple[str, str, str]]:
    """Rows with their printed value and ours; lines of leaky rows say so."""
    loss = values_of(result)
    for row, (words, stated) in table.items():
        what = f"{words}: perplexity{' (reads its future)' if LEAKY in row else ''}"
        place = "Tables 6 and 10" if row == FREE else source
        yield what, stated if stated == NOT_PRINTED else f"{stated} ({place})", f"{loss.perplexity(row)}, {row}"


def _scenario_table(result: Result, printed: Mapping[str, str], source: str) -> Iterator[tuple[str, str, str]]:
    table = {PUBLISHED[kind]: (f"{kind}, scaled as in the public code", printed[kind]) for kind in KINDS}
    table |= {row: (f"{kind}, at one spectral norm", NOT_PRINTED) for kind, row in EQUAL.items()}
    table |= {FREE: ("unconstrained", str(UNCONSTRAINED))}
    yield from _perplexities(result, table, source)


def _order_table(
    result: Result, table: Mapping[str, tuple[float, float]], source: str
) -> Iterator[tuple[str, str, str]]:
    rows: dict[str, tuple[str, str]] = {}
    for model, (plain, ordered) in table.items():
        rows |= {model: (NAMES[model], f"{plain}"), f"{model}{LEAKY}": (f"{NAMES[model]}, leaky", f"{ordered}")}
        rows[f"{model}{CAUSAL}"] = (f"{NAMES[model]}, causal", NOT_PRINTED)
        rows[f"{model}{IDENTITY}"] = (f"{NAMES[model]}, causal, own order", NOT_PRINTED)
        rows[f"{model}{RANDOM}"] = (f"{NAMES[model]}, causal, random order", NOT_PRINTED)
    yield from _perplexities(result, rows, source)
    yield from _cost(result, table)


def _cost(result: Result, models: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Table 8: what sorting costs, in parameters; models of a grid share a device, so their times say little."""
    rows = [cell["row"] for cell in result.provenance["cells"]]
    stated = "; ".join(f"{a:g} to {b:g} {unit}" for unit, (a, b) in TABLE8.items())
    for model in models:
        plain = float(result["parameters"][rows.index(model)])
        more = {order: float(result["parameters"][rows.index(f"{model}{order}")]) - plain for order in (LEAKY, CAUSAL)}
        shown = [f"{words} {more[order]:+,.0f} parameters" for order, words in ((LEAKY, "leaky"), (CAUSAL, "causal"))]
        yield (
            f"{NAMES[model]}: cost of sorting",
            f"{stated} (Table 8, images)",
            f"{'; '.join(shown)}; time: benchmarks/sorting.py",
        )


def _norm_table(result: Result, rows: Mapping[str, str], source: str) -> Iterator[tuple[str, str, str]]:
    every = tuple(rows.values())
    for kind, row in rows.items():
        norms = course_of(result, row, every)
        shown = "diverged" if norms is None else ", ".join(f"{value:.3g}" for value in norms)
        yield (
            f"{kind}: mean token norm behind every block",
            f"a curve ({source})",
            f"{shown}; {_rate(result, row, every)}",
        )


def _way_table(result: Result) -> Iterator[tuple[str, str, str]]:
    for row in (FREE, *PUBLISHED.values(), *EQUAL.values()):
        steps = result.provenance["architecture"]["watched"]
        read = [values_of(result, "perplexity_on_the_way", place) for place in range(len(steps))]
        values = [one.perplexity(row).split(" ")[0] for one in read]
        pairs = ", ".join(f"{step:,}: {value}" for step, value in zip(steps, values, strict=True))
        yield f"{row}: perplexity by step", "a curve (Figure 1)" if row in PUBLISHED.values() else NOT_PRINTED, pairs


def _accuracies(result: Result) -> Iterator[tuple[str, str, str]]:
    from repflow.studies.classify.config import ClassifyCell
    from repflow.studies.classify.difference import best_rates

    names = ClassifyCell.options()
    cells = [ClassifyCell(**{name: cell[name] for name in names}) for cell in result.provenance["cells"]]
    for row, places in best_rates(cells, result["accuracy"]).items():
        mean = 100 * float(result["accuracy"][list(places.values())].mean())
        place = 1 if LEAKY in row else 0
        stated = ", ".join(f"{name} {pair[place]} %" for name, pair in TABLE7.items())
        yield f"{row}: accuracy", f"{stated} (Table 7)", f"{mean:.2f} % over {len(places)} folds"
    smallest = next((finding.message for finding in result.findings if finding.code == "smallest_effect"), "")
    yield "smallest difference that these texts could show", "not said", smallest


NOTE = (
    "trained on the text that is passed (the paper: WikiText-103), each row at its best rate, differences within a seed"
)
NORMS = (
    "trained on the text that is passed (the paper: WikiText-103), all rows at one rate; verdicts are about the last "
    "norm over the first, and which of the theory's rates it follows stands beside"
)
SIGNS = f"the public code adds 0.7 to sizes of positive and negative eigenvalues, none to mixed ones; {NOTE}"
SORTED = f"`leaky` lines are of models that read their future, `causal` ones of models that predict; {NOTE}"
SPOKEN9 = {kind: f"{mean} ± {spread}" for kind, (mean, spread) in TABLE9.items()}
SPOKEN2 = {kind: f"{mean}" for kind, mean in TABLE2.items()}
RECIPES = {
    "dynamics-table2": Trained(
        name="dynamics-table2",
        note=SIGNS,
        grid="scenarios",
        said=partial(_scenarios, SPOKEN2, "Table 2"),
        beside=partial(_scenario_table, printed=SPOKEN2, source="Table 2"),
    ),
    "dynamics-table9": Trained(
        name="dynamics-table9",
        note=SIGNS,
        grid="scenarios",
        said=partial(_scenarios, SPOKEN9, "Table 9"),
        beside=partial(_scenario_table, printed=SPOKEN9, source="Table 9"),
        seeds=(42, 43, 44),
    ),
    "dynamics-fig1": Trained(name="dynamics-fig1", note=SIGNS, grid="scenarios", said=_throughout, beside=_way_table),
    "dynamics-table6": Trained(
        name="dynamics-table6",
        note=f"the paper's Transformer is GPT-2 converted to Mamba and fine-tuned, ours is attention; {SORTED}",
        grid="orders",
        said=partial(_orders, TABLE6, "Table 6"),
        beside=partial(_order_table, table=TABLE6, source="Table 6"),
    ),
    "dynamics-table10": Trained(
        name="dynamics-table10",
        note=f"widths give all rows the parameters of the plain Mamba; {SORTED}",
        grid="ablations",
        said=partial(_orders, TABLE10, "Table 10"),
        beside=partial(_order_table, table=TABLE10, source="Table 10"),
    ),
    "dynamics-fig7": Trained(
        name="dynamics-fig7",
        note=f"no norms at all, the last one neither; {NORMS}",
        grid="norms",
        said=partial(_norms, NORMLESS, normed=False),
        beside=partial(_norm_table, rows=NORMLESS, source="Figure 7"),
    ),
    "dynamics-fig8": Trained(
        name="dynamics-fig8",
        note=f"RMS norms, which Mamba has in place of the LayerNorm that the paper names; {NORMS}",
        grid="norms",
        said=partial(_norms, NORMED, normed=True),
        beside=partial(_norm_table, rows=NORMED, source="Figure 8"),
    ),
    "dynamics-table7": Labelled(
        name="dynamics-table7",
        note="whole texts are sorted, which leaks nothing here; a difference that the texts could not show stays open",
        grid="labelled",
        said=_classified,
        beside=_accuracies,
    ),
}
