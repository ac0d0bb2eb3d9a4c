"""Paper 2's Figure 4: validation loss of Mambas of several depths and sizes at a short and a long context.

The models are trained here (`repflow architecture`), as large at every depth, by their width, and with as many tokens
in a step at either context. The paper prints a curve per depth and no number. It leaves tokenizer, warm-up, betas,
widths and seeds open, and trains on DataComp-LM; here it is the text that is passed, in bytes unless a tokenizer is.
The paper says of the short context both that depths are alike and that the deepest are worse; both are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError
from repflow.core.intervals import bracketed
from repflow.studies.architecture.config import ArchitectureConfig
from repflow.studies.reproduce.recipe import ReproduceCell, ReproducePlan, cell_name
from repflow.studies.reproduce.statement import Reading, Statement, StatementRecipe

if TYPE_CHECKING:
    from repflow.core.results import Result
    from repflow.studies.engine.cells import Outcome
    from repflow.studies.laboratory.effect import Effect
    from repflow.studies.reproduce.config import ReproduceConfig
    from repflow.studies.reproduce.models import StandIn

SAME = 0.05
"""Difference of losses in nats up to which depths count as alike."""
GRIDS: dict[str, dict[str, Any]] = {
    "tiny": {
        **{"layers": ["2", "3", "4", "6"], "lengths": ["16", "64"], "match_layers": 4, "batch": 2, "rates": ["0.005"]},
        **{"seeds": ["0"], "flow_samples": 2},
    },
    "lab": {
        **{"layers": ["4", "8", "16", "32"], "lengths": ["256", "1024"], "match_layers": 8, "batch": 16},
        **{"rates": ["0.001", "0.003"], "seeds": ["0", "1"]},
    },
    "paper": {
        **{"layers": ["16", "24", "32", "48", "64", "72"], "lengths": ["2048", "8192"], "match_layers": 24},
        **{"batch": 64, "seeds": ["0"], "warmup": 0.01, "second_beta": 0.999},
    },
}
"""Of each scale: batches are windows of the longer context, 0.5 million tokens at `paper`."""
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "tiny": {"small": {"widths": ["96"], "steps": 10}},
    "lab": {"small": {"widths": ["104"], "steps": 2000}, "large": {"widths": ["184"], "steps": 2000}},
    "paper": {
        "100-250M": {"widths": ["1120"], "steps": 4800, "rates": ["0.003"], "last_rate": 1e-5 / 3e-3},
        "250-400M": {"widths": ["1472"], "steps": 13_500, "rates": ["0.0015"], "last_rate": 1e-5 / 1.5e-3},
        "400-550M": {"widths": ["1792"], "steps": 20_000, "rates": ["0.00125"], "last_rate": 1e-5 / 1.25e-3},
    },
}
"""Sizes of each scale, by the width at the depth that all match; steps and rates of `paper` are Table 4's."""


@dataclass(frozen=True, kw_only=True)
class DepthFigure(StatementRecipe):
    """Figure 4 of paper 2.

    Attributes:
        name: in the table of recipes.
        note: how it is read.
    """

    name: str
    note: str
    takes: tuple[str, ...] = ("recipe", "scale", "seed", "device", "text", "tokenizer")
    drawn: tuple[str, ...] = ("perplexity", "loss_by_place", "token_similarity", "half_reach", "parameters")
    work: str = "training language models"

    def cells(self, config: ReproduceConfig, models: Mapping[str, StandIn]) -> Iterator[ReproduceCell]:
        """A grid of depths and contexts for every size."""
        for key, size in SIZES[config.scale].items():
            chosen = {**GRIDS[config.scale], **size}
            chosen["seeds"] = [str(int(seed) + config.seed) for seed in chosen["seeds"]]
            more: dict[str, Any] = {"text": list(config.text), "tokenizer": config.tokenizer, "device": config.device}
            asked = ArchitectureConfig(rows=["mamba"], match_row="mamba", readings=0, **chosen, **more)
            yield ReproduceCell(cell_name("depth", asked), asked, key=key)

    def printed(self, config: ReproduceConfig, models: Mapping[str, StandIn]) -> Sequence[Statement]:
        """The statements, on all sizes of the scale."""
        return self.statements(list(SIZES[config.scale]))

    def statements(self, roles: Sequence[str], *, random: bool = False) -> list[Statement]:
        """What the paper says of the short and of the long context; `roles` are sizes."""
        return list(_statements(tuple(roles)))

    def compare(self, plan: ReproducePlan, outcomes: Sequence[Outcome]) -> Result:
        """The statements with their verdict; then loss by size, depth and context, for which the paper has curves."""
        result = super().compare(plan, outcomes)
        for outcome in outcomes:
            if outcome.result is not None:
                losses = Losses.of([outcome.result])
                result.provenance["lines"] += [losses.line(str(outcome.cell.key), kind) for kind in losses.kinds()]  # type: ignore[attr-defined]
                result.findings += outcome.result.findings
        return result


@dataclass(frozen=True)
class Losses:
    """Held-out loss of every model at its best rate.

    Attributes:
        values: nats.
        labels: size, depth and context of each.
        seeds: of each.
        parameters: of each.
    """

    values: Sequence[float]
    labels: Sequence[tuple[int, int, int]]
    seeds: Sequence[int]
    parameters: Sequence[int]

    @classmethod
    def of(cls, results: Sequence[Result]) -> Losses:
        """Of the results of all sizes."""
        import numpy as np

        from repflow.studies.architecture.fit import best_cells

        entries = []
        for size, result in enumerate(results):
            for place in best_cells(result):
                cell = result.provenance["cells"][place]
                label = (size, int(cell["layers"]), int(cell["length"]))
                value = float(np.log(result["perplexity"][place, 0]))
                entries.append((value, label, int(cell["seed"]), int(result["parameters"][place])))
        return cls(*zip(*entries, strict=True))

    def kinds(self) -> list[tuple[int, int, int]]:
        """Size, depth and context, in order."""
        return sorted(set(self.labels))

    def depths(self) -> list[int]:
        """All depths, the least first."""
        return sorted({depth for _, depth, _ in self.labels})

    def contexts(self) -> list[int]:
        """The short and the long one."""
        return sorted({context for *_, context in self.labels})

    def less(self, weights: Mapping[tuple[int, int], float]) -> Effect:
        """A sum over depths and contexts by their weights, mean over sizes."""
        import numpy as np

        from repflow.studies.laboratory.effect import contrast

        sizes = sorted({size for size, *_ in self.labels})
        spread = {(size, *key): weight / len(sizes) for size in sizes for key, weight in weights.items()}
        return contrast(np.array(self.values), list(self.labels), list(self.seeds), spread)

    def line(self, size: str, kind: tuple[int, int, int]) -> dict[str, Any]:
        """Mean loss of one depth and context."""
        import math

        mine = [place for place, label in enumerate(self.labels) if label == kind]
        mean = math.fsum(self.values[place] for place in mine) / len(mine)
        _, depth, context = kind
        text = f"{mean:.3f} nats with {self.parameters[mine[0]]:,} parameters, {len(mine)} seed{'s' * (len(mine) > 1)}"
        what = f"{size}: {depth} layers, {context:,} tokens"
        return {"what": what, "of": what, "stated": "a curve (Figure 4)", "ours": text, "holds": None, "judged": False}


Asked = Callable[[Losses, int, int], list[tuple[str, dict[tuple[int, int], float]]]]
"""Of losses, short and long context: differences to be judged, each with its words."""


def _statements(keys: tuple[str, ...]) -> Iterator[Statement]:
    place = "4.1, Figure 4"
    for what, said, asked, judge in (
        ("short context: all depths alike", "2,048 tokens: depths perform alike", _all_short, _alike),
        (
            "short context: the deepest are worse than the shallowest",
            "over 48 layers worse than 16",
            _deep_short,
            _above,
        ),
        (
            "long context: middle depths are better than the shallowest",
            "8,192 tokens: deeper is better",
            _mid_long,
            _below,
        ),
        ("long context: the middle depths are alike", "32 and 48 layers saturate", _flat_long, _alike),
        ("long context: the deepest rise again", "64 and 72 layers rise", _deep_long, _above),
        ("the long context tolerates depth better", "longer contexts benefit from depth", _tolerance, _below),
    ):
        yield Statement(what, said, place, keys, partial(_read, asked=asked, judge=judge))


def _pair(deep: int, shallow: int, context: int) -> dict[tuple[int, int], float]:
    return {(deep, context): 1.0, (shallow, context): -1.0}


def _deepest(losses: Losses) -> list[int]:
    """Those behind the two in the middle: 64 and 72 of the paper's."""
    return losses.depths()[len(losses.depths()) // 2 + 1 :]


def _middle(losses: Losses) -> list[int]:
    """The two in the middle: 32 and 48 of the paper's."""
    half = len(losses.depths()) // 2
    return losses.depths()[half - 1 : half + 1]


def _against_first(
    losses: Losses, depths: Sequence[int], context: int
) -> list[tuple[str, dict[tuple[int, int], float]]]:
    first = losses.depths()[0]
    return [(f"{depth} less {first} layers", _pair(depth, first, context)) for depth in depths if depth != first]


def _all_short(losses: Losses, short: int, long: int) -> list[tuple[str, dict[tuple[int, int], float]]]:
    return _against_first(losses, losses.depths(), short)


def _deep_short(losses: Losses, short: int, long: int) -> list[tuple[str, dict[tuple[int, int], float]]]:
    return _against_first(losses, _deepest(losses), short)


def _mid_long(losses: Losses, short: int, long: int) -> list[tuple[str, dict[tuple[int, int], float]]]:
    return _against_first(losses, _middle(losses), long)


def _flat_long(losses: Losses, short: int, long: int) -> list[tuple[str, dict[tuple[int, int], float]]]:
    one, other = _middle(losses)
    return [(f"{other} less {one} layers", _pair(other, one, long))]


def _deep_long(losses: Losses, short: int, long: int) -> list[tuple[str, dict[tuple[int, int], float]]]:
    last = _middle(losses)[-1]
    return [(f"{depth} less {last} layers", _pair(depth, last, long)) for depth in _deepest(losses)]


def _tolerance(losses: Losses, short: int, long: int) -> list[tuple[str, dict[tuple[int, int], float]]]:
    first = losses.depths()[0]
    rows = []
    for depth in _deepest(losses):
        weights = {**_pair(depth, first, long), **{key: -value for key, value in _pair(depth, first, short).items()}}
        rows.append((f"({depth} less {first} layers) at {long:,} less at {short:,} tokens", weights))
    return rows


def _above(effect: Effect) -> bool | None:
    return effect.sign


def _below(effect: Effect) -> bool | None:
    return None if effect.sign is None else not effect.sign


def _alike(effect: Effect) -> bool | None:
    inside, outside = effect.low > -SAME and effect.high < SAME, effect.low > SAME or effect.high < -SAME
    return True if inside else False if outside else None


def _read(*results: Result, asked: Asked, judge: Callable[[Effect], bool | None]) -> Reading:
    """Differences with their intervals; shown where all are, shown not to be where all are not."""
    losses = Losses.of(results)
    short, long = losses.contexts()
    rows = asked(losses, short, long)
    try:
        effects = [(words, losses.less(weights)) for words, weights in rows]
    except InputError as error:
        return Reading(f"cannot be compared: {error}", None)
    answers = {judge(effect) for _, effect in effects}
    shown = [f"{words} {effect.mean:+.3f}{bracketed(effect.low, effect.high, '+.3f')}" for words, effect in effects]
    seeds = len(set(losses.seeds))
    text = f"{'; '.join(shown)} nats, {seeds} seed{'s' * (seeds > 1)}{'' if seeds > 1 else ', too few for intervals'}"
    return Reading(text, answers.pop() if len(answers) == 1 else None)


RECIPES = {
    "recency-fig4": DepthFigure(
        name="recency-fig4",
        note=(
            f"each model at its better rate; depths are alike within {SAME} nats; intervals from the scatter of seeds "
            "about each depth, context and size, taken to be the same for all"
        ),
    )
}
