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
| unit | part of a mixer with a map over tokens of its own: a channel (Mamba, RWKV, Griffin) or a head |
| threshold | point of a cumulative histogram; `provenance["thresholds"]` has its value |
| rank | place in a list of the largest, first is largest |
| step | training step of a checkpoint |
| seed | a repetition with other prompts, split and initialisation of the probe |
| position | relative position in the prompt at which a probe reads or a needle stands |
| row | a line of a comparison with printed values; `provenance["rows"]` names it |
| cell | a run of a grid, where several are loaded as one; `provenance["cells"]` names it |
| kind | kind of state, where several stand side by side; `provenance["kinds"]` names it |
| distance | tokens between a token and the output it influences, 0 is the output's own token |
| length | length of a document in tokens; `provenance["lengths"]` lists them |
| candidate | a word that may answer; 0 the planted, 1 the true one |
| window | number of last tokens; `provenance["recency"]["windows"]` lists them |
| pairs | pairs in a row of recall; `provenance["recall"]["pairs"]` lists their numbers |
| gap | bin of the distance between pair and query; `provenance["recall"]["gaps"]` has its bounds |
| region | tokens that are replaced; `provenance["regions"]` names them |
| replacement | what they are replaced by; `provenance["replacements"]` names it |
| end | number of tokens at both ends of a sequence; `provenance["pixels"]["ends"]` lists them |
| attack_region | tokens that another image lends; `provenance["pixels"]["attack_regions"]` names them |
| target | class that an attack aims at; `provenance["targets"]` names it |
| class | class of images; `provenance["classes"]` names it |
| row_pixel, column_pixel, channel | of an example image |
| point | moment of a training at which a model was read; `provenance[STUDY]["watched"]` has its step |
| text | text that a language model is tested on; `provenance["architecture"]["texts"]` names it |
| document | document of a text; `provenance["architecture"]["document_tokens"]` has the tokens of each |
| place | place in the window that a language model reads, from 0 |
| eigenvalue | of a matrix, by its real part |
| regime | scenario of paper 3; `provenance["regimes"]` names it |
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
    "unit",
    "threshold",
    "rank",
    "step",
    "seed",
    "position",
    "row",
    "cell",
    "kind",
    "distance",
    "window",
    "length",
    "candidate",
    "pairs",
    "gap",
    "region",
    "replacement",
    "end",
    "attack_region",
    "target",
    "class",
    "row_pixel",
    "column_pixel",
    "channel",
    "point",
    "text",
    "document",
    "place",
    "eigenvalue",
    "regime",
    "grid",
]
AXES: tuple[str, ...] = get_args(Axis)
