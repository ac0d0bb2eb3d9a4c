"""The built site: no dead link, nothing loaded from elsewhere, every public name, search without a network."""

import html.parser
import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import ROOT
from tests.docs.test_reference import PACKAGES

LOADS = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}


class Page(html.parser.HTMLParser):
    """What a page links to, what it loads, and the places that can be linked to."""

    def __init__(self, file):
        super().__init__()
        self.links, self.loads, self.ids = set(), set(), set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.ids.add(value)
            elif (tag, name) in LOADS:
                self.loads.add(value)
            elif (tag, name) == ("a", "href") and value is not None:
                self.links.add(value)


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    for name in ("docs", "tools/site"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "mkdocs.yml", folder)
    (folder / "src").symlink_to(ROOT / "src")
    builder = Path(sys.executable).with_name("zensical")
    done = subprocess.run([builder, "build", "--strict"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture(scope="session")
def pages(site):
    return {file.relative_to(site).as_posix(): Page(file) for file in site.rglob("*.html")}


def dead(site, pages):
    """Links and loads of the built pages that lead nowhere."""
    for name, page in pages.items():
        for target in page.links | page.loads:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or name == "404.html":  # that one is shown in place of any page
                continue
            file = (site / name).parent / unquote(parts.path) if parts.path else site / name
            file = file / "index.html" if file.is_dir() else file
            if not file.exists():
                yield f"{name}: {target}"
            elif parts.fragment and file.suffix == ".html":
                known = pages[file.resolve().relative_to(site.resolve()).as_posix()].ids
                if unquote(parts.fragment) not in known:
                    yield f"{name}: {target}"


def test_no_link_is_dead(site, pages):
    assert sorted(dead(site, pages)) == []


def test_a_dead_link_would_be_seen(site, tmp_path):
    (tmp_path / "a.html").write_text('<p id="x"><a href="#x"></a><a href="#y"></a><img src="gone.png"></p>')
    wrong = {"a.html": Page(tmp_path / "a.html")}
    assert sorted(dead(tmp_path, wrong)) == ["a.html: #y", "a.html: gone.png"]


def test_nothing_is_loaded_from_elsewhere(site, pages):
    outside = [f"{name}: {target}" for name, page in pages.items() for target in page.loads if urlsplit(target).netloc]
    styles = [file.name for file in site.rglob("*.css") if re.search(r"url\(\s*['\"]?(?:https?:)?//", file.read_text())]
    assert (outside, styles) == ([], [])


def test_no_fence_or_heading_is_left_as_text(site):
    """Markdown that one reader shows as code and another as prose."""
    odd = [file.name for file in site.rglob("*.html") if re.search(r"<p>(?:```|- |\| |#+ )", file.read_text("utf-8"))]
    assert odd == []


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_on_the_site(pages, package):
    module = importlib.import_module(f"repflow.{package}")
    ids = pages[f"api/{package}.html"].ids
    constants = {"CLOSED_FORMS", "RECIPES", "RETRIEVAL", "TASKS"}
    shown = {place.rpartition(".")[2] for place in ids if place.startswith(f"repflow.{package}.")}
    assert {*module.__all__} - constants - shown == set()


def test_search_finds_words_without_a_network_from_a_folder(site, browser):
    tab = browser.new_page()
    asked, said = [], []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto((site / "start.html").as_uri())
    tab.locator(".md-search__button").click()
    tab.get_by_placeholder("Search").fill("direction_stability")
    tab.locator("a", has_text="direction_stability").first.wait_for()
    tab.close()
    assert [url for url in asked if not url.startswith("file:")] == []
    assert said == []
