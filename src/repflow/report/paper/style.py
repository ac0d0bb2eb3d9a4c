"""Look of figures for papers: sizes of a column, fonts that come with matplotlib, nothing that depends on the day."""

from __future__ import annotations

from typing import Any

from repflow.core.errors import InputError, MissingExtraError, nearest, teach

WIDTHS = {"column": 3.25, "page": 6.75}
"""Inches: one column and both columns of the usual two-column conference page."""
FORMATS = ("pdf", "svg", "png")
TEXTS = ("outlines", "editable")
SALT = "repflow"
"""Seed of the ids inside an SVG file, which matplotlib else draws at random."""
DPI = 300
FONTS = ["STIXGeneral", "DejaVu Sans"]
"""Both come with matplotlib, so that every machine draws the same; the second has what the first lacks."""
_SIZES = {"font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7}
STYLES: dict[str, dict[str, Any]] = {
    "paper": {
        **_SIZES,
        "legend.fontsize": 7,
        "font.family": FONTS,
        "mathtext.fontset": "stix",
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": False,
        "axes.axisbelow": True,
        "axes.titlepad": 4.0,
        "axes.labelpad": 2.5,
        "axes.unicode_minus": True,
        "axes.formatter.use_mathtext": True,
        "lines.linewidth": 1.2,
        "lines.markersize": 2.8,
        "patch.linewidth": 0.6,
        "hatch.linewidth": 0.4,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "xtick.major.size": 2.5,
        "ytick.major.size": 2.5,
        "xtick.minor.size": 1.5,
        "ytick.minor.size": 1.5,
        "legend.frameon": False,
        "legend.handlelength": 2.4,
        "legend.columnspacing": 1.2,
        "legend.labelspacing": 0.3,
        "figure.dpi": DPI,
        "savefig.dpi": DPI,
    },
}
FILES: dict[str, Any] = {"pdf.fonttype": 42, "ps.fonttype": 42, "pdf.compression": 6, "svg.hashsalt": SALT}


def need_matplotlib() -> Any:
    """The module matplotlib, with the drawing engine that needs no display.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError(
            teach("matplotlib, which draws figures for papers", "none", "pip install 'repflow[figures]'")
        ) from None
    return matplotlib


def style(name: str, text: str = "outlines") -> dict[str, Any]:
    """Settings of matplotlib for a style.

    Args:
        name: `paper`.
        text: in SVG files, `outlines` (letters drawn, so that no font is needed) or `editable` (letters kept as text).

    Raises:
        InputError: No such style or treatment of text.

    >>> style("paper")["pdf.fonttype"], style("paper", "editable")["svg.fonttype"]
    (42, 'none')
    """
    if name not in STYLES:
        raise InputError(teach(f"a style of {', '.join(STYLES)}", repr(name), nearest(name, STYLES)))
    if text not in TEXTS:
        raise InputError(teach(f"text as {' or '.join(TEXTS)}", repr(text), nearest(text, TEXTS)))
    return {**STYLES[name], **FILES, "svg.fonttype": "path" if text == "outlines" else "none"}


def metadata(kind: str, title: str) -> dict[str, Any]:
    """What a file says of itself: its title and maker, never a date or a machine.

    Raises:
        InputError: No such format.
    """
    if kind not in FORMATS:
        raise InputError(teach(f"a format of {', '.join(FORMATS)}", repr(kind), nearest(kind, FORMATS)))
    if kind == "pdf":
        return {"Title": title, "Creator": "repflow", "Producer": "matplotlib", "CreationDate": None}
    if kind == "svg":
        return {"Title": title, "Creator": "repflow", "Date": None}
    return {"Title": title, "Software": "repflow"}
