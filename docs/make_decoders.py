"""Write docs/decoders.md: every decoder of the installed transformers, and what repflow makes of a tiny model of it.

Run `python -m docs.make_decoders`; it builds, loads and observes some 180 models and takes one to two minutes. Rows
that `python -m tools.decoders.survey --json FILE` has kept are taken from there: `python -m docs.make_decoders FILE`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import transformers

from repflow.models.families import FAMILIES
from tools.decoders.survey import Row, survey
from tools.decoders.tiny import decoders

PAGE = Path(__file__).parent / "decoders.md"
HEAD = """# Decoders

Made by `docs/make_decoders.py` with transformers {version}: {count} model types with a causal language model (or a text
model of their own), each as a tiny random model. {read} are read, {named} of them tested by name: in every build they
are measured, ablated and, where they have a memory that is read, read. Encoders that can be decoders are built with
`is_decoder`; without it they are refused.

Those tested by name were also run once on a GPU (one H200, transformers 5.17.0, which has 87 of them): 85 were measured
and ablated there, 19 memories read, no kind wrong, none refused; two could not be built by that version
(`python -m tools.decoders.survey --named --device cuda`).

Kinds of layers come from the configuration's `layer_types`, where it has them, and from the modules. Every row was
compared with what the layers do: whether what a layer keeps of a prompt grows with every token (attention), or has a
fixed size and remembers (ssm, recurrent), or is a short window (conv), and how far back its output reaches. No kind
was wrong.

A model type that is not here is read if it passes the [checks at load](guarantees.md); its kinds are compared with what
its layers keep of a prompt, and a block that does otherwise than its names say is called by what it does.

- **layers**: kinds of a tiny model's blocks. Several residual streams are named: their `residual` states are a
  [mixture](concepts.md#several-residual-streams).
- **sublayers**: what `--ablate branch:…` takes out and, of one residual stream, `--states branch:…` reads; a dash where
  the parts of a block do not sum to what it adds, mostly since it norms the stream itself: there whole blocks can be
  taken out.
- **memory**: whether [`repflow memory`](guides/memory.md) and `hidden_attention` read its recurrence.
- **tuple lacks**: what transformers' own `hidden_states` leave out.
- **tested**: by name in every build, or its kinds alone.
"""
REFUSED = """
## Refused

| model type | why |
|---|---|
"""
UNBUILT = """
## Not built

No tiny model of these could be made here; a real one may be read all the same.

| model type | why |
|---|---|
"""


def table_row(row: Row) -> str:
    """Line of the table of one model type that is read."""
    kinds = ", ".join(dict.fromkeys(row.kinds)) + (f"; {row.streams} streams" if row.streams > 1 else "")
    having, read = row.memory
    memory = "–" if not having else "read" if read == having else f"{read} of {having} layers" if read else "not read"
    cells = [row.model_type, kinds, ", ".join(row.sublayers) or "–", memory, row.lacks or "–"]
    return f"| {' | '.join([*cells, 'by name' if row.model_type in FAMILIES else 'kinds'])} |"


def why_row(row: Row) -> str:
    """Line of the table of one model type that is not read."""
    why = (row.refused or row.unbuilt or "").replace("|", "\\|")
    return f"| {row.model_type} | {why if len(why) <= 300 else why[:300] + '…'} |"


def line(row: Row) -> str:
    """Line of one model type, whatever became of it."""
    return table_row(row) if row.kinds else why_row(row)


def page(rows: Sequence[Row]) -> str:
    """The whole page."""
    read = [row for row in rows if row.kinds]
    if wrong := [f"{row.model_type}: {row.wrong[0]}" for row in rows if row.wrong]:
        raise SystemExit("\n".join(wrong))
    named = sum(row.model_type in FAMILIES for row in read)
    head = HEAD.format(version=transformers.__version__, count=len(rows), read=len(read), named=named)
    table = ["", "| model type | layers | sublayers | memory | tuple lacks | tested |", "|---|---|---|---|---|---|"]
    parts = [head + "\n".join([*table, *map(table_row, read)]) + "\n"]
    parts.append(REFUSED.lstrip("\n") + "\n".join(why_row(row) for row in rows if row.refused) + "\n")
    parts.append(UNBUILT.lstrip("\n") + "\n".join(why_row(row) for row in rows if row.unbuilt) + "\n")
    return "\n".join(parts)


def main(arguments: Sequence[str]) -> None:
    """Survey, or read what was surveyed, and write."""
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    if arguments:
        rows = [Row(**entry) for entry in json.loads(Path(arguments[0]).read_text(encoding="utf-8"))["rows"]]
    else:
        rows = [survey(model_type, exercised=False) for model_type in decoders()]
    PAGE.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
