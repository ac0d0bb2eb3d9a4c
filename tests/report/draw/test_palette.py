"""The palette: read by everyone, and every name resolved in one place."""

import json
import re

import numpy as np
import pytest

from repflow.core.errors import InputError
from repflow.report.draw.palette import DARK, INK, KINDS, LIGHT, css, is_name, resolve
from repflow.report.page.render import render
from tests.report.page.example import example_page


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """WCAG 2 contrast ratio."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [0, 1])
def test_text_and_lines_stand_out_from_their_ground(dark):
    ground = [INK["paper"][dark], INK["ground"][dark]]
    for name in ("ink", "muted", "accent", "good", "bad"):
        assert all(contrast(INK[name][dark], paper) >= 4.5 for paper in ground), name
    assert all(contrast(colour, ground[0]) >= 3 for colour in (LIGHT, DARK)[dark])
    assert contrast(INK["edge"][dark], ground[0]) >= 3  # borders of controls
    assert all(contrast(pair[dark], ground[0]) >= 2 for pair in KINDS.values())  # strips: named in text as well


SIGHT = {
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}
"""Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB."""


def lab(colour: str, matrix=None) -> np.ndarray:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    if matrix is not None:
        linear = np.clip(np.array(matrix) @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    f = np.cbrt(xyz / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", [None, *SIGHT])
@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_models_are_told_apart_by_colour_blind_readers(colours, sight):
    seen = [lab(colour, SIGHT.get(sight)) for colour in colours]
    nearest = min(np.linalg.norm(a - b) for at, a in enumerate(seen) for b in seen[at + 1 :])
    assert nearest > 10, nearest  # CIE76; about 2.3 is just noticeable


NAMES = ("model:0", "model:11/0.18", "kind:ssm", "kind:never heard of", "on:attention", "muted", "grid/0.5")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_written_colour_is_the_resolved_one(name, dark):
    assert is_name(name)
    assert resolve(css(name, dark=dark)) == pytest.approx(resolve(name, dark=dark))


@pytest.mark.parametrize("name", ["#123456", "rgba(1, 2, 3, 0.5)", "transparent"])
def test_a_colour_stays_as_it_is(name):
    assert css(name) == css(name, dark=True) == name
    assert resolve(name) == resolve(name, dark=True)


def test_what_is_not_a_colour_is_refused():
    with pytest.raises(InputError, match="a colour such as model:0"):
        resolve("reddish")


def test_the_page_is_given_every_colour_that_its_figures_name():
    page = example_page(3, 12)
    settings = re.search(r'id="page-settings">(.*?)</script>', render(page), re.DOTALL).group(1)
    colours = json.loads(settings)["palette"]["colours"]
    figures = [block for section in page.sections for block in section.blocks if hasattr(block, "variants")]
    text = repr([(variant.traces, variant.layout) for figure in figures for variant in figure.variants])
    named = {name for name in re.findall(r"color': '([^']*)'", text) if is_name(name)}
    assert named
    assert named <= set(colours)
    assert all(pair == [css(name), css(name, dark=True)] for name, pair in colours.items())
