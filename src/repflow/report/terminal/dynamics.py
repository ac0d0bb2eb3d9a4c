"""Tables of `repflow dynamics` and of paper 3's figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from repflow.core.results import Result
from repflow.core.verdict import DOES_NOT, HOLDS, OPEN
from repflow.report.terminal.cell import ABSENT
from repflow.report.terminal.fitted import FittedTable

MOST_TOKENS = 20
SHORT = 4
"""Digits of what is measured on a model; a simulation has more."""


def view(result: Result) -> list[RenderableType]:
    """What the command line shows of a simulation, of a model's layers or of one of paper 3's figures."""
    views = {"dynamics-simulate": simulation_view, "dynamics-apply": apply_view, "dynamics-figure": figure_view}
    return views[result.config["study"]](result)


def figure_view(result: Result) -> list[RenderableType]:
    """What `repflow reproduce dynamics-figN` prints: what the paper states, what follows exactly, what we measure."""
    facts = result.provenance
    rows = [
        {
            "quantity": line["quantity"],
            "measured": _number(line["measured"], line["digits"]),
            "exact": _number(line["theory"], line["digits"]),
            "stated": line["stated"],
            "verdict": line["verdict"],
        }
        for line in facts["lines"]
    ]
    sources = {panel["source"]: None for panel in facts["panels"].values()}
    caption = f"parameters: paper 3, {', '.join(sources)}; {ABSENT}: no exact value, or infinite"
    table = _table(["quantity", "measured", "exact", "stated", "verdict"], rows, caption, texts=("quantity", "verdict"))
    summary = counts([str(line["verdict"]) for line in facts["lines"]])
    return [
        Text(f"{result.config['recipe']}: {facts['title']}"),
        table,
        *([Text(summary)] if summary else []),
        *_found(result),
    ]


def counts(verdicts: Sequence[str]) -> str:
    """How many statements hold; nothing for runs of earlier versions, which had other words.

    >>> counts(["holds, sharp", "does not hold: settles", "holds"])
    '3 statements: 2 hold, 1 does not hold, 0 open'
    """
    holding, failed, left = (sum(verdict.startswith(word) for verdict in verdicts) for word in (HOLDS, DOES_NOT, OPEN))
    if holding + failed + left < len(verdicts):
        return ""
    verbs = ("holds" if holding == 1 else "hold", "does not hold" if failed == 1 else "do not hold")
    return f"{len(verdicts)} statements: {holding} {verbs[0]}, {failed} {verbs[1]}, {left} open"


def simulation_view(result: Result) -> list[RenderableType]:
    """What `repflow dynamics simulate` prints: scenario, tokens at the first and last time, events."""
    verdict = result.provenance["classification"]
    lines: list[RenderableType] = [Text(f"{verdict['scenario']} ({verdict['theorem']})")]
    if reason := verdict["evidence"].get("reason"):
        lines.append(Text(str(reason)))
    time = result["t"]
    norms = result["log_norms"]
    alive = np.flatnonzero(np.isfinite(norms).all(axis=1))
    first, last = int(alive[0]), int(alive[-1])
    rows = [_token(result, token, first, last) for token in range(min(norms.shape[1], MOST_TOKENS))]
    names = [f"t = {time[first]:.6g}", f"t = {time[last]:.6g}"]
    rest = norms.shape[1] - len(rows)
    caption = f"and {rest} more tokens" if rest > 0 else ""
    table = _table(["token", *names, "slope"], [_named(row, names) for row in rows], caption)
    return [*lines, table, *_found(result)]


def _named(row: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    return dict(zip(["token", *names, "slope"], row, strict=True))


def _token(result: Result, token: int, first: int, last: int) -> list[str]:
    """Token, its value at two times, and d ln‖x‖ / d ln t at the end."""
    values = [result["tokens"][i, token] for i in (first, last)]
    cells = [_number(float(v)) if np.ndim(v) == 0 else ", ".join(_number(float(x)) for x in v) for v in values]
    time, norms = result["t"], result["log_norms"][:, token]
    slope = None
    if last > 0 and time[last - 1] > 0:
        slope = float((norms[last] - norms[last - 1]) / np.log(time[last] / time[last - 1]))
    return [str(token), *cells, _number(slope)]


def apply_view(result: Result) -> list[RenderableType]:
    """What `repflow dynamics apply` prints: a line per Mamba layer, then the prediction and what happens."""
    norms = result["token_norm"].mean(axis=1)
    bare = result["token_norm_without_norms"].mean(axis=1)
    rows = []
    for i, layer in enumerate(result.provenance["ssm_layers"]):
        rows.append(
            {
                "block": str(layer + 1),
                "− eig": str(int(result["negative"][i])),
                "+ eig": str(int(result["positive"][i])),
                "x'Mx > 0": f"{100 * float(result['form_positive'][i].mean()):.0f} %",
                "norm": _number(float(norms[layer + 1]), SHORT),
                "norm, no norms": _number(float(bare[layer + 1]), SHORT),
                "0 eig": str(int(result["zero"][i])),
                "lowest": _number(float(result["lowest"][i]), SHORT),
                "highest": _number(float(result["highest"][i]), SHORT),
            }
        )
    caption = (
        "eigenvalues of the symmetric part of S_C'S_B by sign, zeros of rank deficiency apart; x'Mx over prompts; mean "
        "token norm behind the block, with the model's norms and without those at the stream"
    )
    facts = result.provenance["model"]
    title = Text(f"{facts['name']}, {facts['type']}, {facts['layers']} blocks, on {result.config['task']}")
    return [title, _table(list(rows[0]), rows, caption, needed=5), *_found(result)]


def _found(result: Result) -> list[RenderableType]:
    return [Text.assemble((f"{finding.code}: ", "yellow"), finding.message) for finding in result.findings]


def _table(
    names: Sequence[str], rows: Sequence[dict[str, str]], caption: str, *, texts: Sequence[str] = (), needed: int = 2
) -> FittedTable:
    def build(shown: Sequence[str], note: Text) -> Table:
        table = Table(box=box.SIMPLE, caption=note, caption_justify="left")
        for name in shown:
            left = name in texts
            table.add_column(name, justify="left" if left else "right", no_wrap=not left, overflow="fold")
        for row in rows:
            table.add_row(*(Text(row[name]) for name in shown))
        return table

    return FittedTable(names, len(names) if texts else needed, build, caption, folds=texts)


def _number(value: Any, digits: int = 6) -> str:
    """A number, or a dash.

    >>> _number(0.49724090991), _number(6.7e11), _number(None), _number(float("nan"))
    ('0.497241', '6.7e+11', '–', '–')
    """
    return ABSENT if value is None or not np.isfinite(value) else f"{value:.{digits}g}"
