"""Draw the guides' pictures as a reader would, by the commands on the pages: `python docs/make_figures.py [NAME...]`.

A picture says which command of its page it shows, or the page's own blocks are run up to a command; then `repflow
figures` draws one figure of the runs. All of them take some minutes on two cores and need matplotlib (extra `figures`).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

DOCS = Path(__file__).parent
FOLDER = DOCS / "pictures"
FENCE = r"(?P<skip>^<!-- (?:no-run|study)[^\n]*-->\n)?^```(?P<language>python|bash|toml)\n(?P<body>.*?)^```$"
BLOCK = re.compile(FENCE, re.MULTILINE | re.DOTALL)
COLOURS, SCALE, WIDTH = 256, 0.7, 1100


@dataclass(frozen=True)
class Picture:
    """A picture of a page.

    Attributes:
        page: below docs.
        figure: id of the figure, as `repflow figures --figure` takes it.
        command: of the page, whose runs are drawn; several joined by newlines.
        blocks: run the page's blocks up to the command, since it needs what they make.
        runs: what is drawn; by default every run.
        choose: what to draw where the figure has a menu.
    """

    page: str
    figure: str
    command: str
    blocks: bool = False
    runs: tuple[str, ...] = ("runs",)
    choose: tuple[str, ...] = ()


PICTURES = {
    "measure": Picture(
        "guides/measure-a-checkpoint.md",
        "figure-2",
        "repflow measure zoo:gpt-neox zoo:mamba2 --task kvpr --length 256 --samples 4",
    ),
    "recency": Picture(
        "guides/recency.md",
        "recency-influence",
        "repflow recency zoo:mamba zoo:gpt-neox --task kvpr --length 256 --samples 4",
    ),
    "compare": Picture(
        "guides/compare-two-models.md",
        "figure-4-cross",
        "repflow compare zoo:gpt-neox zoo:mamba2 --task kvpr --length 256 --samples 4",
    ),
    "twins": Picture(
        "guides/random-twin.md",
        "figure-3",
        "repflow twins zoo:gpt-neox --task kvpr --inits default,xavier --lengths 256 --seeds 3 --samples 4",
    ),
    "hybrid": Picture(
        "guides/read-a-hybrid.md",
        "figure-2",
        "repflow measure zoo:hybrid zoo:hybrid-mirror --task kvpr --length 256 --samples 4",
    ),
    "probe": Picture(
        "guides/probe.md",
        "figure-7",
        "repflow probe zoo:gpt-neox zoo:hybrid --label answer --length 256 --samples 300 --seeds 3 --recipes robust",
    ),
    "needle": Picture(
        "guides/needle.md",
        "needle-position",
        "repflow needle zoo:gpt-neox zoo:mamba2 --lengths 256 --samples 16",
        choose=("score=what the needle adds to the log-odds, nats",),
    ),
    "memory": Picture(
        "guides/memory.md",
        "memory-range",
        "repflow memory zoo:mamba zoo:mamba2 --task kvpr --length 256 --samples 4",
    ),
    "corrupt": Picture(
        "guides/corrupt.md",
        "corruption-text",
        "repflow corrupt zoo:gpt-neox zoo:mamba2 --task text --length 128 --samples 32 --regions windows:16 "
        "--replace random",
    ),
    "theory": Picture(
        "guides/theory.md", "theory-layers", "repflow theory apply zoo:gpt-neox --length 64"
    ),
    "dynamics": Picture("guides/token-dynamics.md", "dynamics-paths", "repflow reproduce dynamics-fig5"),
    "paper-figure": Picture(
        "guides/paper-figures.md",
        "figure-2",
        "repflow measure models/tiny-gpt models/tiny-hybrid --task text --text corpus.txt --length 64 --samples 4 "
        "--out runs/flow",
        blocks=True,
        runs=("runs/flow",),
    ),
    "own-metric": Picture(
        "guides/own-metric.md",
        "depth-metrics",
        "repflow measure models/tiny-gpt --task random --length 64 --samples 4 "
        "--metrics default,my_metric.py:participation --name mine",
        blocks=True,
        choose=("metric=participation",),
    ),
    "lost-key": Picture(
        "guides/lose-the-key.md",
        "figure-7",
        "repflow probe models/tiny-hybrid --task order.jsonl --length 100 --samples 300 --seeds 5 --answers 0 --lens 0 "
        "--controls none --recipes robust --ablate branch:attention --name without-attention",
        blocks=True,
        runs=("runs/order-probe", "runs/without-3", "runs/without-attention"),
    ),
    "watched": Picture(
        "guides/watch-training.md", "training-map", "repflow report runs/first --out watched.html", blocks=True,
        runs=("runs/first",),
    ),
    "smooth": Picture(
        "guides/over-smoothing.md", "training-lines", "repflow compare runs/plain runs/excess", blocks=True,
        runs=("runs/plain", "runs/excess"), choose=("metric=token similarity excess",),
    ),
}  # fmt: skip
"""By the name of the file."""


def own(command: str) -> list[str]:
    """A command of the page with this Python's repflow."""
    words = shlex.split(command.partition(" # ")[0].replace("\\\n", " "))
    start = {"repflow": [sys.executable, "-m", "repflow"], "python": [sys.executable]}[words[0]]
    return [*start, *(str(DOCS.parent / word) if word.startswith("docs/") else word for word in words[1:])]


def commands(body: str) -> list[str]:
    """Commands of a bash block that must succeed."""
    lines = body.replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if line.strip() and not re.search(r"# exit \d", line)]


def run_page(picture: Picture, environment: dict[str, str]) -> None:
    """Blocks of a page, in their order, up to the picture's command."""
    text = (DOCS / picture.page).read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        if block["skip"]:
            continue
        if file := re.match(r"# file: (\S+)\n", block["body"]):
            Path(file[1]).write_text(block["body"], encoding="utf-8")
        if block["language"] == "toml":
            continue
        if block["language"] == "python":
            exec(compile(block["body"], picture.page, "exec"), namespace)
            continue
        for command in commands(block["body"]):
            if command.startswith(("repflow", "python")):
                subprocess.run(own(command), check=True, stdout=subprocess.DEVNULL, env=environment)
            if command == picture.command:
                return
    raise SystemExit(f"{picture.page} does not have the command {picture.command!r}")


def draw(name: str) -> Path:
    """Run the command of a picture in a folder of its own, draw its figure and put it beside the pages."""
    picture, back = PICTURES[name], Path.cwd()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(DOCS.parent / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        try:
            if picture.blocks:
                run_page(picture, environment)
            else:
                for command in picture.command.splitlines():
                    subprocess.run(own(command), check=True, stdout=subprocess.DEVNULL, env=environment)
            wanted = ["figures", *picture.runs, "--figure", picture.figure, "--format", "png", "--out", "figures"]
            wanted += [word for choice in picture.choose for word in ("--choose", choice)]
            subprocess.run(
                [sys.executable, "-m", "repflow", *wanted], check=True, stdout=subprocess.DEVNULL, env=environment
            )
            (file,) = Path("figures").glob("*.png")
            return small(file, FOLDER / f"{name}.png")
        finally:
            os.chdir(back)


def small(file: Path, target: Path) -> Path:
    """The picture at the size of a page's text and with fewer colours: a quarter of the bytes."""
    image = Image.open(file).convert("RGB")
    width = min(round(SCALE * image.width), WIDTH)
    image = image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)
    target.parent.mkdir(exist_ok=True)
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)
    return target


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PICTURES:
        written = draw(chosen)
        print(f"wrote {written} ({written.stat().st_size / 1000:.0f} kB)", flush=True)
