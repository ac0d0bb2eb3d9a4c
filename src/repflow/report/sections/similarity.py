"""Figure 2 of paper 1 and every other metric by depth: how alike the tokens of a prompt are."""

from __future__ import annotations

from collections.abc import Sequence

from repflow.core.catalogue import METRICS
from repflow.core.results import Result
from repflow.report.data.comparable import Group, group_runs
from repflow.report.data.context import Context, measured_runs
from repflow.report.data.model import Content, Figure, PageModel
from repflow.report.data.runs import StoredRun
from repflow.report.data.summary import Summary, alike_sentence
from repflow.report.draw.curve import joined
from repflow.report.draw.depth import strip_note
from repflow.report.draw.lines import Curve, curves, median_band, words_of
from repflow.report.sections.tokens import figure_1
from repflow.report.sections.trainings import trainings_figure

MEASURES = {"raw": "token_similarity", "excess over other prompts": "token_similarity_excess"}
ALL_TOKENS = "all"
SHOWN = ("figure-1",)
"""What stands on the page beside the headline."""
FLAT = ("token_similarity", "token_similarity_excess")


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """How tokens flow through depth; None where nothing was measured."""
    measured = measured_runs(runs)
    groups = group_runs(measured, allow_mixed=context.allow_mixed)
    candidates = (
        figure_1(groups, context.models),
        figure_2(groups, context),
        trainings_figure(groups, context),
        depth_figure(groups, context),
    )
    figures = [figure for figure in candidates if figure]
    if not figures:
        return None
    lead = (
        "How far each token turns from layer to layer, and how alike the tokens of a prompt are at each depth. Tokens "
        "that become alike (over-smoothing) can no longer be distinguished by what reads them."
    )
    return Content(lead, figures, [figure.id for figure in figures if figure.id in SHOWN] or None)


def figure_2(groups: Sequence[Group], context: Context) -> Figure | None:
    """Inter-token similarity by depth, raw and excess, with and without sink tokens, final norm behind."""
    variants = []
    for group in groups:
        for words, metric in MEASURES.items():
            for tokens, prefix in _token_sets(group.runs, metric):
                when = group.when | {"measure": words, "tokens": tokens}
                plain = Curve(reading=_reading_of) if f"{prefix}{metric}" == "token_similarity" else None
                variant = curves(group, context, f"{prefix}{metric}", when, plain)
                variants += [variant] if variant else []
    if not variants:
        return None
    caption = (
        "Mean cosine between different tokens of a prompt, with its 95 % interval over prompts (band). Excess: what is "
        "left after the cosine between tokens of different prompts is taken off, so that what all prompts share does "
        "not count. Sink tokens are those left out by the run's rule, by default more than ten times the median norm. "
        "The open marker behind the last layer is the output of the final norm."
    )
    alt = "Line chart of token similarity over depth, one line per model with its interval."
    title = "How alike the tokens of a prompt are, by depth"
    return Figure(
        "figure-2",
        title,
        joined(caption, strip_note(context.models, variants)),
        alt,
        variants,
        depth_axis=True,
    )


def _reading_of(runs: Sequence[StoredRun]) -> str:
    return alike_sentence([Summary(PageModel(run.label, 0, run.layers), flow=run) for run in runs])


def _token_sets(runs: Sequence[StoredRun], metric: str) -> list[tuple[str, str]]:
    """Menu values and prefixes: all tokens, and every rule by which runs left some out."""
    rules = dict.fromkeys(str(run.result.config.get("drop", "")) for run in runs)
    used = [rule for rule in rules if rule and any(f"{rule}/{metric}" in run.result for run in runs)]
    return [(ALL_TOKENS, ""), *((f"without sink tokens ({rule})", f"{rule}/") for rule in used)]


def depth_figure(groups: Sequence[Group], context: Context) -> Figure | None:
    """Every other metric with a depth axis, chosen by a menu."""
    names = dict.fromkeys(name for group in groups for run in group.runs for name in depth_metrics(run.result))
    variants = []
    for group in groups:
        for name in names:
            curve = Curve(read=median_band) if name == "token_norm" else Curve()
            variant = curves(group, context, name, group.when | {"metric": words_of(name)}, curve)
            variants += [variant] if variant else []
    if not variants:
        return None
    kinds = "; ".join(
        f"{words_of(name)}: {METRICS[name].summary}{_reading(METRICS[name].direction)}"
        for name in names
        if name in METRICS
    )
    caption = f"Any metric of the runs by depth, mean over prompts with its 95 % interval. {kinds}."
    alt = "Line chart of a chosen metric over depth, one line per model."
    title = "Other metrics by depth"
    return Figure(
        "depth-metrics",
        title,
        joined(caption, strip_note(context.models, variants)),
        alt,
        variants,
        depth_axis=True,
        log_axis=True,
    )


def _reading(direction: str) -> str:
    """How to read a larger value, where that says something.

    >>> _reading("higher is steadier"), _reading("none")
    (' (higher is steadier)', '')
    """
    return "" if direction == "none" else f" ({direction})"


def depth_metrics(result: Result) -> list[str]:
    """Metrics of one value per state or layer and prompt, or per token, that Figure 2 does not draw."""
    kinds = (("state", "sample"), ("layer", "sample"), ("state", "sample", "token"), ("layer", "sample", "token"))
    skipped = ("gram_share_error", "token_similarity_by_token")
    plain = [name for name in result if "/" not in name and result.axes[name] in kinds]
    return [name for name in plain if name not in FLAT and name not in skipped]
