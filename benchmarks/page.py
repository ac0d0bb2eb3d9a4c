"""How long a report page takes to open in the system's chromium: by the clock, and its own thread's work.

    repflow report RUN... --out page.html
    python benchmarks/page.py page.html [...] [--runs 5] [--json FILE]

The smallest of several runs, each in a new tab. The work is chromium's TaskDuration of the page's thread.
"""

import argparse
import json
import shutil
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
READY = "html[data-ready=true]"


def open_once(browser, file):
    """Seconds until the page says that it is ready, and those of its thread's work."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    session = context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    start = time.perf_counter()
    tab.goto(file.resolve().as_uri())
    tab.wait_for_selector(READY, state="attached")
    seconds = time.perf_counter() - start
    told = {entry["name"]: entry["value"] for entry in session.send("Performance.getMetrics")["metrics"]}
    context.close()
    return seconds, told["TaskDuration"]


def main():
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = {}
    with sync_playwright() as playwright:
        chromium = next(path for name in NAMES if (path := shutil.which(name)))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for file in arguments.pages:
            seconds, work = map(min, zip(*(open_once(browser, file) for _ in range(arguments.runs)), strict=True))
            found[str(file)] = {"bytes": file.stat().st_size, "seconds": seconds, "work": work}
            print(f"{file}: {file.stat().st_size / 1e6:.1f} MB, {seconds:.2f} s, of which {work:.2f} s its own work")
        browser.close()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
