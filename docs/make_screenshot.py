"""Take the picture of a page: `python docs/make_screenshot.py runs/demo.html docs/pictures/report.png [FIGURE]`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

WIDTH, HEIGHT, COLOURS = 1280, 900, 128


def take(page: Path, picture: Path, figure: str | None = None) -> None:
    """Write what a browser shows of a page, from the top or from one figure on."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        tab.goto(page.resolve().as_uri() + (f"#{figure}" if figure else ""))
        tab.wait_for_timeout(1000)  # scrolling is smooth
        tab.wait_for_selector("html[data-ready=true]", state="attached")
        tab.screenshot(path=picture)
        browser.close()
    few = Image.open(picture).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)  # a third of the bytes
    few.save(picture, optimize=True)


if __name__ == "__main__":
    take(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4])
