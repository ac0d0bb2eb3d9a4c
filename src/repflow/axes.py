"""Glossary of axes: every array of repflow names its axes with these words.

| axis | meaning |
|---|---|
| state | position along depth: 0 is the embedding output, s is the output of block s; S = blocks + 1 |
| layer | a block, or the step from one state to the next; there are S - 1 |
| batch | prompts that run together; called `sample` in a Result |
| sample | one prompt |
| token | position in the prompt; padding is on the right; over 256 positions a Result pools (see `repflow.capture`) |
| width | channel of the residual stream |
| head | attention or SSM head |
| rank | place in a list of the largest, first is largest |
| step | training step of a checkpoint |
| seed | a repetition with other prompts, split and initialisation of the probe |
| position | relative position in the prompt at which a probe reads |
| row | a line of a comparison with printed values; `provenance["rows"]` names it |
| cell | a run of a grid, where several are loaded as one; `provenance["cells"]` names it |
| kind | kind of state, where several stand side by side; `provenance["kinds"]` names it |
| grid | point of the shared relative-depth grid of `granularity="matched"` |
"""

from typing import Literal, get_args

Axis = Literal[
    "state",
    "layer",
    "batch",
    "sample",
    "token",
    "width",
    "head",
    "rank",
    "step",
    "seed",
    "position",
    "row",
    "cell",
    "kind",
    "grid",
]
AXES: tuple[str, ...] = get_args(Axis)
