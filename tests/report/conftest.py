"""Example pages written once."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def example_file(tmp_path_factory):
    """Write an example page once; its file."""
    from repflow.report.page.render import render
    from tests.report.page.example import example_page

    folder = tmp_path_factory.mktemp("pages")

    def file(count: int = 2, layers: int = 12, *, hostile: bool = False):
        path = folder / f"{count}-{layers}-{hostile}.html"
        if not path.exists():
            path.write_text(render(example_page(count, layers, hostile=hostile)), encoding="utf-8")
        return path

    return file


@pytest.fixture(scope="module")
def shared_tab(browser, example_file):
    from tests.report.page.browser import Opened

    tab = Opened(browser, example_file())
    yield tab
    tab.close()


@pytest.fixture
def page(shared_tab):
    """The example of two models, its controls as at the start; opening it for every test would take minutes."""
    shared_tab.reset()
    yield shared_tab
    shared_tab.check()


@pytest.fixture
def opened(browser):
    """Open a file in a tab; at the end nothing may have been logged, asked for elsewhere or run by others."""
    from tests.report.page.browser import Opened

    tabs = []

    def open_page(file, **options):
        tabs.append(Opened(browser, file, **options))
        return tabs[-1]

    yield open_page
    try:
        for tab in tabs:
            tab.check()
    finally:
        for tab in tabs:
            tab.close()
