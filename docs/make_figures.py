"""Draw the pictures of the guides as a reader would, a command and `repflow figures`: `python docs/make_figures.py`.

It takes a minute on two cores and needs matplotlib (extra `figures`).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
PICTURES = {
    "measure.png": ("measure zoo:gpt-neox zoo:mamba2 --task kvpr --length 256 --samples 4", "figure-2"),
    "recency.png": ("recency zoo:mamba zoo:gpt-neox --task kvpr --length 256 --samples 4", "recency-influence"),
}
"""Picture, the command whose runs it shows, and the figure's id."""


def draw(picture: str, folder: Path) -> Path:
    """Run the command of a picture, draw its figure and put it beside the pages."""
    command, figure = PICTURES[picture]
    runs, figures = str(folder / "runs"), folder / "figures"
    own = [sys.executable, "-m", "repflow"]
    subprocess.run([*own, *command.split(), "--out", runs], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(
        [*own, "figures", runs, "--figure", figure, "--format", "png", "--out", str(figures)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return Path(shutil.copy(figures / f"{figure}.png", DOCS / picture))


if __name__ == "__main__":
    for name in PICTURES:
        with tempfile.TemporaryDirectory() as place:
            print(f"wrote {draw(name, Path(place))}")
