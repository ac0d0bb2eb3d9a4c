"""A report page in a real browser: what it logs, what it asks for, how its charts lie."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
READY = "html[data-ready=true]"
FRAMES = """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(
  () => setTimeout(() => done(document.documentElement.dataset.ready === 'true'), 20))))"""
RESET = """() => {
  const tell = (node) => node.dispatchEvent(new Event('change', {bubbles: true}));
  for (const menu of document.querySelectorAll('select:not([data-shared])')) {
    const first = menu.querySelector('option:not([disabled])');
    if (first && menu.value !== first.value) { menu.value = first.value; tell(menu); }
  }
  document.querySelectorAll('input[name=models]:not(:checked)').forEach((box) => { box.checked = true; tell(box); });
  for (const group of document.querySelectorAll('.segments')) {
    const first = group.querySelector('input');
    if (!first.checked) { first.checked = true; tell(first); }
  }
  document.querySelectorAll('details[open]').forEach((part) => { part.open = false; });
}"""

REVEAL = """(id) => {
  const part = document.getElementById(id);
  for (let fold = part.closest('details'); fold; fold = fold.parentElement.closest('details')) fold.open = true;
  part.scrollIntoView({behavior: 'instant'});
}"""

OVERLAPS = """(chart) => {
  const kinds = ['.xtick text', '.ytick text', '[class^="g-"][class$="title"] text', '.annotation-text', '.legendtext',
    '.colorbar text'];
  const slanted = (node) => /rotate\\((?!0|-90|90)/.test(node.getAttribute('transform') || '');  // a box says little
  const seen = new Map();
  for (const kind of kinds) for (const node of chart.querySelectorAll(kind)) {
    const box = node.getBoundingClientRect();
    if (box.width > 1 && box.height > 1 && node.textContent.trim()) seen.set(node, box);
  }
  const found = [];
  const all = [...seen];
  const frame = chart.getBoundingClientRect();
  for (let a = 0; a < all.length; a += 1) {
    const p = all[a][1];
    if (p.left < frame.left - 1 || p.right > frame.right + 1 || p.bottom > frame.bottom + 1 || p.top < frame.top - 1)
      found.push(`${all[a][0].textContent} leaves its chart`);
    for (let b = a + 1; b < all.length; b += 1) {
      const q = all[b][1];
      const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      const [one, other] = [all[a][0], all[b][0]];
      if (wide > 2 && high > 3 && !(slanted(one) && slanted(other)))
        found.push(`${one.textContent} over ${other.textContent}`);
    }
  }
  for (const bar of chart.querySelectorAll('.colorbar')) {
    const title = bar.querySelector('.cbtitle text'), fill = bar.querySelector('.cbfills').getBoundingClientRect();
    const box = title ? title.getBoundingClientRect() : fill;
    if (title && Math.min(box.bottom, fill.bottom) > Math.max(box.top, fill.top)
      && Math.min(box.right, fill.right) > Math.max(box.left, fill.left))
      found.push(`${title.textContent} over its bar`);
  }
  return found;
}"""

APART = """() => {
  const found = [];
  const parts = (root, selector) => [...root.querySelectorAll(selector)]
    .filter((node) => node.checkVisibility())
    .map((node) => [node, node.getBoundingClientRect()]).filter(([, box]) => box.width && box.height);
  const check = (list) => list.forEach(([a, p], at) => list.slice(at + 1).forEach(([b, q]) => {
    const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (wide > 1 && high > 1) found.push(`${a.id || a.className} over ${b.id || b.className}`);
  }));
  check(parts(document, 'main .card, main section > h2, main .lead'));
  for (const card of document.querySelectorAll('.card')) {
    check(parts(card, '.card-head, :scope > .menus, .chart, .readout, .reading, .basis, details'));
    check(parts(card, '.card-head > *'));
    check(parts(card, ':scope > .menus > *'));
    check(parts(card, '.tokens, .split .chart, .ramp'));
  }
  return found;
}"""


def without(said: str):
    """Skip a test that has no browser, and say why; in CI that is a failure."""
    if os.environ.get("CI"):
        pytest.fail(said)
    pytest.skip(said)


def launch(playwright):
    """The system's chromium."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        without(f"no browser: none of {', '.join(NAMES)} is installed; on Debian: apt-get install chromium")
    return playwright.chromium.launch(executable_path=found, args=list(FLAGS))


_idle: dict = {}
"""Tabs of a browser that are free: a new one would compile the page's scripts again, most of the time of opening it."""


class Opened:
    """A page in a tab of its own; `check` fails on console errors, on requests to others and on script that ran."""

    def __init__(
        self, browser, file: Path, width: int = 1280, height: int = 900, theme: str = "light", address: str = ""
    ):
        self.complaints: list[str] = []
        self.file = file
        self._idle = _idle.setdefault(browser, [])
        self.tab = self._idle.pop() if self._idle else browser.new_context(accept_downloads=True).new_page()
        self.tab.set_viewport_size({"width": width, "height": height})
        self.tab.emulate_media(media="null", color_scheme=theme)
        self.tab.set_default_timeout(60000)
        self.tab.route("**/*", self._only_own)
        self._listeners = {
            "console": lambda told: self.complaints.append(f"console {told.type}: {told.text[:300]}"),
            "pageerror": lambda error: self.complaints.append(f"error: {error}"),
            "dialog": lambda dialog: (self.complaints.append("a dialog"), dialog.dismiss()),
            "popup": lambda _: self.complaints.append("a popup"),
        }
        for event, listener in self._listeners.items():
            self.tab.on(event, listener)
        self.tab.goto(file.as_uri() + (f"#{address}" if address else ""))
        self.tab.wait_for_selector(READY, state="attached")

    def _only_own(self, route):
        if route.request.url.split("#")[0] == self.file.as_uri():
            route.continue_()
        else:
            self.complaints.append(f"request to {route.request.url[:200]}")
            route.abort()

    def show(self, figure: str):
        """Open the folds around a figure, scroll to it and wait until it is drawn; its chart."""
        self.tab.evaluate(REVEAL, figure)
        chart = self.tab.locator(f"#{figure} .chart").first
        chart.locator(".main-svg").first.wait_for(state="attached")
        self.settle()
        return chart

    def show_part(self, part: str):
        """Open the folds around a table or text and scroll to it."""
        self.tab.evaluate(REVEAL, part)

    def settle(self):
        """Wait until nothing is left to draw."""
        if not self.tab.evaluate(FRAMES):  # what came into view is known a frame later
            self.tab.wait_for_selector(READY, state="attached")

    def reset(self):
        """Every control as it was at the start."""
        self.tab.evaluate(RESET)
        self.settle()

    def traces(self, figure: str) -> list[dict]:
        """What Plotly draws now."""
        return self.tab.evaluate("id => document.querySelector(`#${id} .chart`).data", figure)

    def layout(self, figure: str) -> dict:
        return self.tab.evaluate(
            "id => JSON.parse(JSON.stringify(document.querySelector(`#${id} .chart`).layout))", figure
        )

    def download(self, figure: str, what: str) -> tuple[str, bytes]:
        """Name and content of what a button saves."""
        with self.tab.expect_download() as waited:
            self.tab.locator(f"#{figure} .tools").get_by_text(what, exact=True).click()
        return waited.value.suggested_filename, Path(waited.value.path()).read_bytes()

    def check(self):
        assert self.complaints == []
        assert self.tab.evaluate("() => window.hacked") is None

    def close(self):
        """Leave an empty tab without listeners, stored values or a mouse over something, for the next page."""
        self.tab.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
        for event, listener in self._listeners.items():
            self.tab.remove_listener(event, listener)
        self.tab.unroute("**/*")
        self.tab.mouse.move(0, 0)
        self.tab.goto("about:blank")
        self._idle.append(self.tab)
