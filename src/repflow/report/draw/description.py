"""A chart in words, from the very traces that are drawn: one sentence to read, and every line for a screen reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from repflow.report.data.model import Figure, Variant

MOST = 12
"""Lines that the text alternative names; more are counted."""
LENGTH_DIGITS = 3


@dataclass(frozen=True)
class Line:
    """The finite points of one trace.

    Attributes:
        name: whose it is.
        x: places.
        y: values.
    """

    name: str
    x: list[Any]
    y: list[float]

    @property
    def top(self) -> int:
        """Index of the highest value."""
        return max(range(len(self.y)), key=self.y.__getitem__)

    def words(self) -> str:
        """Start, highest value and end.

        >>> Line("gpt2", [0, 1, 2], [0.1, 0.9, 0.5]).words()
        'gpt2 from 0.1 to 0.5, highest 0.9 at 1'
        """
        if len(self.y) == 1:
            return f"{self.name} {shown(self.y[0])}"
        text = f"{self.name} from {shown(self.y[0])} to {shown(self.y[-1])}"
        inside = 0 < self.top < len(self.y) - 1
        return f"{text}, highest {shown(self.y[self.top])} at {shown(self.x[self.top])}" if inside else text


def described(figure: Figure) -> Figure:
    """The figure with a reading and a text alternative for every variant that brings none."""
    return replace(
        figure,
        variants=[
            replace(
                variant,
                reading=variant.reading or reading(variant),
                alt=f"{figure.alt} {variant.alt or alternative(variant)}".strip(),
            )
            for variant in figure.variants
        ],
    )


def alternative(variant: Variant) -> str:
    """What is drawn, line by line or map by map."""
    parts = [line.words() for line in lines(variant)] + maps(variant)
    more = f"; and {len(parts) - MOST} more" if len(parts) > MOST else ""
    return f"{'; '.join(parts[:MOST])}{more}." if parts else ""


def reading(variant: Variant) -> str:
    """One sentence on the lines or maps of a variant; "" where it has none.

    >>> two = [{"name": "a", "y": [1, 3]}, {"name": "b", "y": [1, 2]}]
    >>> reading(Variant({}, two, {"yaxis": {"title": {"text": "norm"}}}))
    'Norm at the end: highest in a (3), lowest in b (2).'
    >>> reading(Variant({}, [two[0], {**two[0], "name": "c"}], {"yaxis": {"title": {"text": "norm"}}}))
    'Norm at the end: 3 in all 2.'
    """
    named = lines(variant)
    if not named:
        return _map_reading(variant)
    what = _capital(_quantity(variant))
    if len(named) == 1:
        return f"{what}: {named[0].words()}."
    ends = sorted(named, key=lambda line: line.y[-1])
    place = "at the end: " if any(len(line.y) > 1 for line in named) else ""
    least, most = (shown(line.y[-1]) for line in (ends[0], ends[-1]))
    if least == most:
        return f"{what} {place}{most} in all {len(named)}."
    high, low = f"{ends[-1].name} ({most})", f"{ends[0].name} ({least})"
    return f"{what} {place}highest in {high}, lowest in {low}." if place else f"{what}: highest {high}, lowest {low}."


def lines(variant: Variant) -> list[Line]:
    """Named lines, markers and bars with a value; bands, keys of the legend and what stands beside a line are not."""
    named = []
    for trace in variant.traces:
        if trace.get("type", "scatter") == "heatmap" or trace.get("hoverinfo") == "skip" or not trace.get("name"):
            continue
        y = trace.get("y") or ()
        x = trace.get("x") or range(len(y))
        points = [(a, float(b)) for a, b in zip(x, y, strict=False) if isinstance(b, int | float)]
        beside = trace.get("showlegend") is False and len(y) == 1  # a peak, a final norm
        if points and not beside:
            named.append(Line(_owner(trace), [a for a, _ in points], [b for _, b in points]))
    return named


def maps(variant: Variant) -> list[str]:
    """Size and range of every heat map, and where it is lowest and highest."""
    parts = []
    for trace in variant.traces:
        cells = _cells(trace)
        if cells:
            low, high = min(cells), max(cells)
            size = f"{len(trace['z'])} by {len(trace['z'][0])} cells"
            where = [f"{shown(one[0])} at {_place(one, variant)}" for one in (low, high)]
            parts.append(f"{_owner(trace) or 'map'}: {size} from {where[0]} to {where[1]}")
    return parts


def _map_reading(variant: Variant) -> str:
    """Which map reaches lowest, and where."""
    lowest = [(min(cells), _owner(trace)) for trace in variant.traces if (cells := _cells(trace))]
    if not lowest:
        return ""
    highest = max(max(cells)[0] for trace in variant.traces if (cells := _cells(trace)))
    (cell, name), what = min(lowest), _capital(_quantity(variant))
    return f"{what} runs from {shown(cell[0])} ({name or 'lowest'}, {_place(cell, variant)}) to {shown(highest)}."


def _cells(trace: Mapping[str, Any]) -> list[tuple[float, Any, Any]]:
    """Value, x and y of every finite cell of a heat map."""
    rows: Sequence[Sequence[Any]] = trace.get("z") or ()
    if trace.get("type") != "heatmap" or not rows:
        return []
    x, y = trace.get("x") or range(len(rows[0])), trace.get("y") or range(len(rows))
    return [
        (float(value), place, other)
        for other, row in zip(y, rows, strict=False)
        for place, value in zip(x, row, strict=False)
        if isinstance(value, int | float)
    ]


def _place(cell: tuple[float, Any, Any], variant: Variant) -> str:
    names = [_axis(variant, f"{side}axis") or usual for side, usual in (("x", "depth"), ("y", "row"))]
    return ", ".join(f"{name} {shown(place)}" for name, place in zip(names, cell[1:], strict=True))


def _owner(trace: Mapping[str, Any]) -> str:
    """Name of a trace; with its model where the legend does not say it."""
    name, model = str(trace.get("name") or ""), (trace.get("meta") or {}).get("model")
    return f"{model}, {name}" if isinstance(model, str) and model not in name and name else name or str(model or "")


def _quantity(variant: Variant) -> str:
    """What is drawn: the title of the y axis, or of a heat map's colours."""
    bars = [((trace.get("colorbar") or {}).get("title") or {}).get("text") for trace in variant.traces]
    heat = next((str(text) for text in bars if text), "")
    return (heat or _axis(variant, "yaxis") or "value").replace("\n", " ")


def _axis(variant: Variant, name: str) -> str:
    title = (variant.layout.get(name) or {}).get("title") or ""
    return str(title.get("text") or "") if isinstance(title, Mapping) else str(title)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def shown(value: Any) -> str:
    """A number in a sentence.

    >>> shown(0.12345), shown(1234.5), shown("kvpr"), shown(2.0)
    ('0.123', '1234', 'kvpr', '2')
    """
    if not isinstance(value, int | float):
        return str(value)
    return f"{value:.{LENGTH_DIGITS}g}" if abs(value) < 1000 else f"{value:.0f}"
