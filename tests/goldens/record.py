"""Goldens: what every command does on tiny models, recorded so that a refactoring can be compared with before.

    python tests/goldens/record.py record FOLDER        # everything, uncompacted: a JSON file per command
    python tests/goldens/record.py compare OLD NEW      # two recordings; exit code 1 and a list where they differ
    python tests/goldens/record.py check [OLD]          # record now and compare with OLD; default the committed goldens
    python tests/goldens/record.py update               # record now and replace the committed goldens

commands.toml lists the commands. They run in one process through the public entry, in a folder of their own; what each
prints, returns and leaves on disk is recorded. Times, places, versions and checksums become placeholders; numbers may
differ by 1e-4 of their array's magnitude, as CPUs round differently, or with --same-machine by 1e-6.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import csv
import difflib
import gzip
import html.parser
import io
import json
import math
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
import tomllib
import traceback
import zlib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COMMANDS = HERE / "commands.toml"
COMMITTED = HERE / "recorded"
WIDTH = "120"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "COLUMNS": WIDTH,
    "TERMINAL_WIDTH": WIDTH,
    "NO_COLOR": "1",
    "TERM": "dumb",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",
}
"""Set before the process starts: nothing here may depend on the terminal, the network or the number of cores."""
UNSET = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "REPFLOW_DEBUG", "REPFLOW_ZOO", "REPFLOW_SYNC_PHASES")

# ------------------------------------------------------------------------------------------- what changes by itself

VARYING = {
    *("created", "at", "seconds", "sum", "sha256", "bytes", "free", "started", "finished_at"),
    *("packages", "python", "repflow", "transformers", "torch", "device_name", "cores", "threads", "host"),
}
"""Keys whose values are of the moment, the machine or the installed versions."""
ROUNDING = ("error", "gradient", "gradient_check", "gain")
"""Last parts of the names of values that are rounding errors, or differences of almost equal numbers: not compared."""
DRAWN = "digests/weights"
"""Checksum of weights, whose last bits CPUs draw differently: held with --same-machine only."""
PATTERNS = [
    (re.compile(pattern), word)
    for pattern, word in {
        r"\x1b\[[0-9;?]*[A-Za-z]": "",
        r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(\+00:00|Z| UTC)?": "<TIME>",
        r"(?m)^(seconds: ).*$": r"\1<SECONDS>",
        r"(, [\d,]+ tokens/s)?, \d+:\d\d(:\d\d)? left": "<PACE>",
        r"; [\d,]+ tokens/s, [\d,]+ s left": "<PACE>",
        r"free: [\d.,]+ [GM]B": "free: <FREE>",
        r"\brepflow \d+\.\d+\.\w+": "repflow <VERSION>",
        r"\bPython \d+\.\d+\.\d+": "Python <VERSION>",
        r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b": "<UUID>",
        r"\[[0-9a-f]{8}\]": "[<WEIGHTS>]",
        r"\b(weights|digest) [0-9a-f]{12}\b": r"\1 <WEIGHTS>",
        r"'sha256-[\w+/=]+'|&#39;sha256-[\w+/=]+&#39;": "<SHA>",
    }.items()
]
MAYBE = re.compile(
    r"\x1b|\d\d-\d|[0-9a-f]{4}-[0-9a-f]{4}|seconds: | left|free: |repflow |Python |\[|weights |digest |sha256-"
)
"""A part of each pattern: most of a million words and numbers have none, and are not searched a dozen times."""


def clean_text(text: str, places: dict[str, str]) -> str:
    """Text without times, places and versions."""
    for place, word in places.items():
        text = text.replace(place, word)
    if MAYBE.search(text) is None:
        return text
    for pattern, word in PATTERNS:
        text = pattern.sub(word, text)
    return text


def clean(value: Any, places: dict[str, str]) -> Any:
    """A JSON value without what changes by itself."""
    if isinstance(value, dict):
        # seconds by phase stand beside a result in memory and in the manifest, not in result.json
        content = {k: v for k, v in value.items() if not (k == "seconds" and isinstance(v, dict))}
        return {clean_text(k, places): f"<{k}>" if k in VARYING else clean(v, places) for k, v in content.items()}
    if isinstance(value, list | tuple):
        return [clean(item, places) for item in value]
    return clean_text(value, places) if isinstance(value, str) else value


def lines_of(text: str, places: dict[str, str]) -> list[str]:
    """Printed lines; progress that a slow machine prints more often is left out."""
    lines = [line.rstrip() for line in clean_text(text, places).splitlines()]
    return [line for line in lines if not _midway(line)]


def _midway(line: str) -> bool:
    counts = re.search(r": (\d+)/(\d+) (?:prompts|models)<PACE>", line)
    return counts is not None and counts[1] != counts[2]


# ------------------------------------------------------------------------------------------------- reading files


def array_record(array: Any) -> dict[str, Any]:
    """Kind, shape and values of an array."""
    import numpy as np

    array = np.asarray(array)
    values = array.astype(str).tolist() if array.dtype.kind in "OUSM" else array.tolist()
    return {"dtype": str(array.dtype), "shape": list(array.shape), "values": _plain(values)}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_safetensors(path: Path) -> Any:
    """Arrays and metadata of a file."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in sorted(file.keys())}
        meta = file.metadata()
    arrays = {}
    for key, tensor in tensors.items():
        half = str(tensor.dtype) in ("torch.bfloat16", "torch.float16")
        arrays[key] = array_record((tensor.float() if half else tensor).numpy()) | {"dtype": str(tensor.dtype)}
    return {"metadata": meta, "arrays": arrays}


def read_npz(path: Path) -> Any:
    """Arrays of a file."""
    import numpy as np

    with np.load(path, allow_pickle=False) as file:
        return {key: array_record(file[key]) for key in sorted(file.files)}


def read_parquet(path: Path) -> Any:
    """Columns of a file."""
    import pandas as pd

    table = pd.read_parquet(path)
    return {name: array_record(table[name].to_numpy()) for name in table.columns}


def read_netcdf(path: Path) -> Any:
    """Variables and their dimensions."""
    import xarray as xr

    with xr.open_dataset(path) as data:
        return {str(k): {"dims": list(map(str, v.dims)), **array_record(v.values)} for k, v in data.variables.items()}


def read_csv(path: Path) -> Any:
    """Header, then columns; numbers where a whole column is of numbers."""
    head, *rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    columns = zip(*rows, strict=False) if rows else [[] for _ in head]
    return {"header": head, "columns": [[_number(word) for word in column] for column in columns]}


def _number(word: str) -> Any:
    try:
        return _plain(float(word))
    except ValueError:
        return word


class Page(html.parser.HTMLParser):
    """What a page says: ids, headings, paragraphs, rows of tables, and the data of its charts."""

    BLOCKS = ("h1", "h2", "h3", "h4", "p", "li", "tr", "summary", "title", "button", "figcaption", "option", "label")

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.said: list[str] = []
        self.data: dict[str, Any] = {}
        self._open: list[tuple[str, list[str]]] = []
        self._script: str | None = None
        self._skip = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A block begins, or something with an id."""
        fields = dict(attrs)
        if tag == "script" or tag == "style":
            self._skip, self._script = True, fields.get("id")
            return
        if fields.get("id"):
            self.ids.append(f"{tag}#{fields['id']}")
        if tag in self.BLOCKS:
            self._open.append((tag, []))
        elif tag in ("td", "th") and self._open:
            self._open[-1][1].append("|")

    def handle_endtag(self, tag: str) -> None:
        """A block ends: one line."""
        if tag in ("script", "style"):
            self._skip, self._script = False, None
        elif self._open and self._open[-1][0] == tag:
            name, words = self._open.pop()
            if words:
                self.said.append(f"{name}: {' '.join(' '.join(words).split())}")

    def handle_data(self, data: str) -> None:
        """Text, or the data of a chart."""
        if not self._skip:
            if self._open and data.strip():
                self._open[-1][1].append(data.strip())
        elif self._script:
            self.data[self._script] = _unpacked(data)


def _unpacked(data: str) -> Any:
    with contextlib.suppress(ValueError, OSError):
        return json.loads(gzip.decompress(base64.b64decode(data, validate=True)))
    with contextlib.suppress(ValueError):
        return json.loads(data)
    return f"script of {len(data)} characters"


def read_page(path: Path, places: dict[str, str]) -> Any:
    """A page as what it says, and its whole text but for scripts."""
    text = path.read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    bare = re.sub(r"(<script[^>]*>).*?(</script>)|(<style[^>]*>).*?(</style>)", r"\1\2\3\4", text, flags=re.S)
    said = [clean_text(line, places) for line in page.said]
    ids = [clean_text(name, places) for name in page.ids]
    return {"ids": ids, "said": said, "data": clean(page.data, places), "html": lines_of(bare, places)}


def read_file(path: Path, places: dict[str, str]) -> Any:
    """Content of a file that a command wrote."""
    readers = {".safetensors": read_safetensors, ".npz": read_npz, ".parquet": read_parquet, ".nc": read_netcdf}
    if path.name in ("model.safetensors", "tokenizer.json"):  # of tiny models that a recipe makes: 20 MB, not a result
        return "there"
    if path.suffix in readers:
        return clean(readers[path.suffix](path), places)
    if path.suffix == ".csv":
        return clean(read_csv(path), places)
    if path.suffix == ".html":
        return read_page(path, places)
    if path.suffix in (".pdf", ".png"):
        return "there"
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return clean(json.loads(text), places)
    if path.suffix == ".jsonl":
        return [clean(json.loads(line), places) for line in text.splitlines()]
    return {"svg": lines_of(text, places)} if path.suffix == ".svg" else lines_of(text, places)


# --------------------------------------------------------------------------------------------------- recording


class Workshop:
    """A folder in which commands run one after the other, and a record of what each does."""

    def __init__(self, folder: Path) -> None:
        import repflow

        self.folder = folder.resolve()
        package = Path(repflow.__file__).resolve().parent
        self.places = {str(self.folder): "<WORK>", str(package): "<REPFLOW>", str(Path.home()): "<HOME>"}
        self._seen: dict[str, tuple[int, int]] = {}

    def furnish(self, plan: dict[str, Any]) -> None:
        """Write the models, the tokenizer and the files that commands read."""
        models, tokenizer = self.folder / "models", self.folder / "tok"
        models.mkdir()
        tokenizer.mkdir()
        for name, config in plan["models"].items():
            (models / f"{name}.json").write_text(json.dumps(config), encoding="utf-8")
        for name, text in plan["files"].items():
            (self.folder / name).write_text(text.lstrip(), encoding="utf-8")
        _, out, _ = call(["zoo", "path", "mamba2"])
        for file in Path(out.strip()).glob("tokenizer*"):
            shutil.copy(file, tokenizer)
        save_classifier(plan["classifier"], models / "classifier")
        self.changed()

    def changed(self) -> list[Path]:
        """Files that are new or were written again since the last call."""
        now = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and not path.name.endswith(".lock") and ".repflow" not in path.parts:
                stat = path.stat()
                now[str(path.relative_to(self.folder))] = (stat.st_mtime_ns, stat.st_size)
        fresh = [self.folder / name for name, state in now.items() if self._seen.get(name) != state]
        self._seen = now
        return fresh

    def command(self, step: dict[str, Any]) -> dict[str, Any]:
        """Run a command and record all it does."""
        if "damage" in step:
            file = self.folder / step["damage"]
            whole = file.read_bytes()
            file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
            self.changed()
        code, out, err = call(shlex.split(step["run"].replace(";", r"\;")))
        record: dict[str, Any] = {"run": step["run"], "code": code, "stderr": lines_of(err, self.places)}
        if "--json" in step["run"].split():
            record["json"] = [clean(json.loads(line), self.places) for line in out.splitlines()]
        else:
            record["stdout"] = lines_of(out, self.places)
        record["files"] = self.files()
        return record | {key: step[key] for key in ("loose", "brief") if key in step}

    def files(self) -> dict[str, Any]:
        """Content of the files that changed."""
        return {str(path.relative_to(self.folder)): read_file(path, self.places) for path in self.changed()}


def call(words: list[str]) -> tuple[int, str, str]:
    """One command through the public entry: exit code, stdout, stderr."""
    from repflow.cli.main import main

    before, sys.argv = sys.argv, ["repflow", *words]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:  # noqa: BLE001  a traceback is a behaviour too, and a bad one
            traceback.print_exc()
            code = 99
        finally:
            sys.argv = before
    return code, out.getvalue(), err.getvalue()


def save_classifier(config: dict[str, Any], folder: Path) -> None:
    """A checkpoint of random weights that `corrupt` and `attack` read; these two take no architecture alone."""
    import torch

    from repflow.models import StackConfig, StackForSequenceClassification

    torch.manual_seed(0)
    StackForSequenceClassification(StackConfig(**config)).save_pretrained(folder)


def command_names() -> list[list[str]]:
    """Every command and group of commands, the root first."""
    import typer

    from repflow.cli.main import app

    def below(command: Any, words: list[str]) -> list[list[str]]:
        inner = getattr(command, "commands", {})
        return [words, *(name for key in sorted(inner) for name in below(inner[key], [*words, key]))]

    return below(typer.main.get_command(app), [])


def result_record(result: Any, places: dict[str, str]) -> dict[str, Any]:
    """A Result as JSON, and as it shows itself."""
    return {"result": clean(result.to_json(), places), "repr": lines_of(repr(result), places)}


def python_records(places: dict[str, str]) -> Any:
    """The public calls on tiny live models: name and record of each."""
    import torch
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, MambaConfig, MambaForCausalLM

    import repflow

    plan = tomllib.loads(COMMANDS.read_text(encoding="utf-8"))["models"]
    torch.manual_seed(0)
    network = GPTNeoXForCausalLM(GPTNeoXConfig(**plan["gpt_neox"])).eval()
    mamba = MambaForCausalLM(MambaConfig(**plan["mamba"])).eval()
    ids = torch.randint(3, 4096, (2, 24), generator=torch.Generator().manual_seed(0))
    texts = ["The quick brown fox jumps over the lazy dog.", "What a layer adds is not what it keeps."]
    model = repflow.load(network, tokenizer="tok")
    results = {
        "measure": lambda: repflow.measure(network, ids),
        "measure-branch": lambda: repflow.measure(mamba, ids, states="branch", metrics=["token_similarity"]),
        "compare": lambda: repflow.compare(model, model, texts, neighbours=3),
        "probe": lambda: repflow.probe(model, "kvpr", length=160, samples=40, seeds=1, answers=2, lens=2),
        "influence": lambda: repflow.influence(mamba, ids, probes=2),
        "needle": lambda: repflow.needle(model, lengths=[128], positions=[0.5], samples=2),
        "hidden-attention": lambda: repflow.hidden_attention(mamba, 1, ids, channels=2),
    }
    for name, make in results.items():
        yield f"python-{name}", result_record(make(), places)
    seen = repflow.states(model, texts)
    yield "python-states", {
        "hidden": array_record(seen.hidden.numpy()), "mask": array_record(seen.mask.numpy()), "tokens": seen.tokens
    }  # fmt: skip
    with torch.no_grad():
        saved = mamba(ids, output_hidden_states=True).hidden_states
    repaired = repflow.from_hidden_states(saved, model_type="mamba")
    yield "python-from-hidden-states", {"hidden": array_record(repaired.hidden.numpy()), "missing": repaired.missing}
    yield "python-names", {"public": sorted(repflow.__all__), "metrics": sorted(repflow.metrics.__all__)}


def records(folder: Path, *, compact: bool, only: str = "") -> Any:
    """Name and record of everything, in the order of commands.toml."""
    plan = tomllib.loads(COMMANDS.read_text(encoding="utf-8"))
    for words in command_names():
        code, out, err = call([*words, "--help"])
        name = "-".join(["help", *words])
        yield name, {"run": " ".join([*words, "--help"]), "code": code, "help": lines_of(out + err, {})}
    shop = Workshop(folder)
    shop.furnish(plan)
    for step in plan["step"]:
        if only in step["name"] and not (compact and step.get("full_only")):
            yield step["name"], shop.command(step)
    if only in "python":
        for name, record in python_records(shop.places):
            yield name, record | {"files": shop.files()}


def record_all(target: Path, *, compact: bool, only: str = "") -> None:
    """Record everything into a folder, a JSON file each."""
    target.mkdir(parents=True, exist_ok=True)
    target = target.resolve()
    for old in target.glob("*.json"):
        old.unlink()
    compactor = Compactor()
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        for name, record in records(Path(place), compact=compact, only=only):
            small = compactor.record(name, record) if compact else record
            (target / f"{name}.json").write_text(dumped(small) + "\n", encoding="utf-8")
            print(f"{time.process_time():6.1f} s  {name}: {record.get('code', 0)}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------------------- compacting

FEW = 6  # numbers or words that stand as they are
LONG = 120  # characters of JSON from which a repeated part is only named
BASED = ("config", "provenance", "model", "metrics", "checks")
"""Keys whose dictionaries are kept as what differs from the first with the same keys, or of the same command."""
NUMERIC = ("identity", "digests")
"""Parts of a provenance that follow from the weights' bits, which CPUs draw differently: only that they are there."""


class Compactor:
    """Makes records small enough for the repository: arrays as statistics, repeated parts named, pages as outlines."""

    def __init__(self) -> None:
        self._bases: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {}
        self._seen: dict[str, str] = {}
        self._study = ""

    def record(self, name: str, record: dict[str, Any]) -> dict[str, Any]:
        """A record for the repository."""
        if "help" in record:
            return record | {"help": [line for line in map(_unboxed, record["help"]) if line]}
        self._seen, self._study = {}, name.partition("-")[0]
        fields = dict(record)
        if record.get("brief"):
            fields["files"] = sorted(record["files"])
        elif "files" in record:
            fields["files"] = self._value(merged_runs(record["files"]), f"{name}:files", "files")
        if "json" in record:  # of several models the first is enough
            rest = [briefly(part) if part.get("metrics") else part for part in record["json"][1:]]
            record = record | {"json": [*record["json"][:1], *rest]}
        for key in sorted(record.keys() - {"files"}):
            fields[key] = self._value(record[key], f"{name}:{key}", key)
        return fields

    def _value(self, value: Any, path: str, key: str) -> Any:
        if key in NUMERIC:
            return "there"
        if key.endswith((".html", ".csv")):
            return outline(value, whole=key in WHOLE_PAGES)
        if isinstance(value, dict) and {"shape", "values"} <= value.keys():
            return array_summary(value)
        if key == "metrics" and isinstance(value, dict):
            value = by_family(value)
        if not isinstance(value, dict | list):
            return self._leaf(value)
        if isinstance(value, list):
            if key in PRINTED:
                return [line for line in map(_unboxed, value) if line]
            if key.endswith(".txt"):
                return [_cut(line) for line in value if line]
            if (text := summary(value)) is not None:
                return text
            if len(value) > 2 and all(isinstance(item, dict) for item in value):
                value = columns(value)
        if isinstance(value, list):
            small: Any = [self._value(item, f"{path}/{place}", "") for place, item in enumerate(value)]
        else:
            small = {k: self._value(v, f"{path}/{k}", k) for k, v in value.items()}
        return self._once(small, path, key)

    @staticmethod
    def _leaf(value: Any) -> Any:
        if isinstance(value, str):
            return _cut(value)
        return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else value

    def _once(self, small: Any, path: str, key: str) -> Any:
        """A part that stands in this step already is only named; one like the command's first as what differs."""
        text, name = json.dumps(small, sort_keys=True), "/".join(path.split("/")[-2:])
        if len(text) > LONG and self._seen.setdefault(text, name) != name:
            return f"same as {self._seen[text]}"
        if not isinstance(small, dict) or key not in BASED or len(small) < FEW:
            return small
        exact, near = (key, " ".join(sorted(small))), (key, self._study)
        where, first = self._bases.get(exact) or self._bases.get(near) or (path, small)
        for base in (exact, near):
            self._bases.setdefault(base, (path, small))
        if first is small:
            return small
        changed = {k: v for k, v in small.items() if k not in first or first[k] != v}
        gone = sorted(first.keys() - small.keys())
        short: dict[str, Any] = {f"as in {where.partition(':')[0]}, but": changed}
        if gone:
            short["without"] = " ".join(gone)
        return short if len(changed) < len(small) else small


def columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A list of many rows as its columns."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return {"rows": len(rows)} | {key: [row.get(key) for row in rows] for key in keys}


PRINTED = ("stdout", "stderr", "said", "repr")
"""Lines that people read: kept whole."""
WHOLE_PAGES = ("two.html",)
"""Pages kept with all they say; of others the headings, and how much there is of the rest."""


def _unboxed(line: str) -> str:
    return re.sub(r"  +", "  ", re.sub(r"[│╭╮╰╯─]+", " ", line)).strip()


def merged_runs(files: dict[str, Any]) -> dict[str, Any]:
    """Files by run folder: what stands in two of them once, and of several runs of a kind the first as a whole."""
    runs = [name.removesuffix("/result.json") for name in files if name.endswith("/result.json")]
    kept: dict[str, Any] = {}
    kinds: set[str] = set()
    for run in runs:
        inside = {
            name.removeprefix(f"{run}/"): content for name, content in files.items() if name.startswith(f"{run}/")
        }
        kind = " ".join(sorted(inside["result.json"]["metrics"]))
        kept[run] = one_run(inside, whole=kind not in kinds)
        kinds.add(kind)
    for name, content in files.items():
        if not any(name.startswith(f"{run}/") for run in runs) and not name.endswith(".svg"):  # its name is printed
            kept[name] = " ".join(row["kind"] for row in content) if name.endswith("manifest.jsonl") else content
    return kept


def one_run(files: dict[str, Any], *, whole: bool) -> dict[str, Any]:
    """The files of one run: their names, the result, and what is not in the result."""
    result = files["result.json"]
    shards = [name for name in files if name.startswith("shards/")]
    arrays = sum(len(files[name]["arrays"]) for name in shards if name.endswith(".safetensors"))
    short = {
        "files": f"{' '.join(name for name in files if name not in shards)}; {len(shards)} shards, {arrays} arrays",
        "result.json": result if whole else briefly(result),
    }
    if "manifest.jsonl" in files:
        short["manifest.jsonl"] = " ".join(row["kind"] for row in files["manifest.jsonl"])
    if "run.json" in files and not _same_request(files["run.json"], result):
        short["run.json"] = files["run.json"]
    if whole and "result.safetensors" in files:
        found = files["result.safetensors"]["arrays"]
        named = {key.removeprefix("metrics/"): array for key, array in found.items()}
        rest = {key: array for key, array in named.items() if not _same_values(array, result["metrics"].get(key))}
        short["arrays that result.json does not hold"] = one_line(rest)
    return short


def _same_request(run: dict[str, Any], result: dict[str, Any]) -> bool:
    said = {key: value for key, value in run["provenance"].items() if key not in NUMERIC}
    return run["config"] == result["config"] and said.items() <= result["provenance"].items()


def briefly(result: dict[str, Any]) -> dict[str, Any]:
    """A further result of a command: its request, its findings, and the rest in a line each."""
    rest = {key: result[key] for key in ("run", "model", "task", "cell", "status", "config") if key in result}
    return rest | {
        "findings": " ".join(finding["code"] for finding in result["findings"]),
        "metrics": one_line(result["metrics"]),
        "provenance": " ".join(sorted(result["provenance"])),
    }


def one_line(metrics: dict[str, Any]) -> str:
    """Number of metrics, and statistics of all their values."""
    values = [
        _leaves(entry.get("values", []))
        for name, entry in sorted(metrics.items())
        if name.rpartition("/")[2] not in ROUNDING
    ]
    sizes = [math.sqrt(sum(x * x for x in flat if _is_number(x)) / max(len(flat), 1)) for flat in values]
    names = zlib.crc32(" ".join(sorted(metrics)).encode()) % 10**6
    return f"{len(metrics)} arrays, names {names}, {summary(sizes) or ' '.join(f'{x:.4e}' for x in sizes)}"


def by_family(metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics by name; those of a family, such as `final_norm/NAME`, on one line where they are many."""
    families: dict[str, dict[str, Any]] = {}
    for name, entry in metrics.items():
        families.setdefault(name.rpartition("/")[0], {})[name] = entry
    fields = dict(families.pop("", {}))
    for family, members in families.items():
        fields |= {f"{family}/…": one_line(members)} if len(members) > 3 else members
    return fields


def _same_values(array: dict[str, Any], metric: dict[str, Any] | None) -> bool:
    if metric is None or "values" not in metric:
        return False
    return array_summary(array) == array_summary({key: metric[key] for key in ("shape", "values")})


def array_summary(entry: dict[str, Any]) -> str:
    """Axes or shape, and values or their statistics."""
    shape = "×".join(map(str, entry["shape"]))
    axes = f"({', '.join(entry['axes'])}) " if "axes" in entry else ""
    flat = _leaves(entry["values"])
    text = summary(flat)
    return f"{axes}{shape}: {text.partition(': ')[2] if text else _few(flat)}"


def _few(flat: list[Any]) -> str:
    """A few numbers, relative to their magnitude, as tolerances are."""
    numbers = [x for x in flat if isinstance(x, float)]
    rms = math.sqrt(sum(x * x for x in numbers) / max(len(numbers), 1))
    if not rms:
        return " ".join(map(str, flat))
    return f"rms {rms:.4e}, each " + " ".join(f"{x / rms:.4f}" if isinstance(x, float) else str(x) for x in flat)


def _leaves(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, list) else [value]


def summary(value: list[Any]) -> str | None:
    """Numbers that any change, also of order, would change, relative to their magnitude; None for a short list.

    >>> summary([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, None]])
    '2×4: rms 4.4721e+00, mean 0.8944, mix -0.2513, gaps 1'
    """
    flat = _leaves(value)
    texts = [x for x in flat if isinstance(x, str) and x not in ("nan", "inf", "-inf")]
    if any(isinstance(x, dict) for x in flat) or len(flat) <= FEW or (texts and not _wordy(flat)):
        return None
    shape, inner = [], value
    while isinstance(inner, list):
        shape.append(len(inner))
        inner = inner[0] if inner else None
    size = "×".join(map(str, shape))
    if texts:
        return f"{size}: {texts[0]} … {texts[-1]}, checksum {zlib.crc32(json.dumps(flat).encode()) % 10**6}"
    there = [(place, float(x)) for place, x in enumerate(flat) if isinstance(x, int | float)]
    count = max(len(there), 1)
    rms = math.sqrt(sum(x * x for _, x in there) / count)
    mean = sum(x for _, x in there) / count / (rms or 1.0)
    mix = sum(x * math.cos(1.0 + 0.7 * place) for place, x in there) / count / (rms or 1.0)
    gaps = f", gaps {len(flat) - len(there)}" if len(flat) > len(there) else ""
    return f"{size}: rms {rms:.4e}, mean {mean:.4f}, mix {mix:.4f}{gaps}"


def _wordy(flat: list[Any]) -> bool:
    return all(x is None or isinstance(x, str) for x in flat)


def outline(content: Any, *, whole: bool) -> Any:
    """A page as ids, headings and traces of its charts; a table as its header and size."""
    if "header" in content:
        return _cut(f"{len((content['columns'] or [[]])[0])} rows of {', '.join(content['header'])}")
    rows = "\n".join(NUMBER.sub("#", line) for line in content["said"] if line.startswith("tr:"))
    kept = r"(?!tr)" if whole else r"h\d|title"
    said = [_cut(line) for line in content["said"] if re.match(kept, line)]
    tags = [line.partition(":")[0] for line in content["said"]]
    counts = ", ".join(f"{tags.count(tag)} {tag}" for tag in sorted(set(tags)))
    return {"ids": " ".join(content["ids"]), "said": said, "counts": counts,
            "words of tables": zlib.crc32(rows.encode()) % 10**6 if whole else "many",
            "data": _by_figure(content["data"])}  # fmt: skip


def _cut(line: str) -> str:
    """The beginning of a line; a checksum of the words in the rest, but not of its numbers."""
    head, rest = line[:80], NUMBER.sub("#", line[80:])
    return f"{head} … {zlib.crc32(rest.encode()) % 10**6}" if rest else head


def _by_figure(data: dict[str, Any]) -> dict[str, str]:
    """What each figure draws, all choices of its menus together."""
    by_figure: dict[str, list[str]] = {}
    for key, content in data.items():
        by_figure.setdefault(re.sub(r"-\d+$", "", key), []).append(_traces(content))
    return {key: f"{len(drawn)}: {_cut(' | '.join(sorted(set(drawn))))}" for key, drawn in by_figure.items()}


def _traces(data: Any) -> str:
    """Kinds and names of a chart's traces; of other data its keys."""
    if not isinstance(data, dict):
        return f"list of {len(data)}" if isinstance(data, list) else str(data)
    traces = next((data[key] for key in ("data", "traces") if isinstance(data.get(key), list)), None)
    if traces is None:
        return f"keys {' '.join(sorted(data))}"
    named = [f"{trace.get('type', 'scatter')} {trace.get('name', '')}" for trace in traces if isinstance(trace, dict)]
    return "; ".join(f"{named.count(name)} {name.strip()}" for name in dict.fromkeys(named))


def dumped(value: Any, depth: int = 0) -> str:
    """JSON with sorted keys, an entry per line, small ones on one line."""
    flat = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if (depth and len(flat) < 160) or not isinstance(value, dict | list) or not value:
        return flat
    pad = " " * (depth + 1)
    if isinstance(value, dict):
        rows = [f"{pad}{json.dumps(k, ensure_ascii=False)}: {dumped(v, depth + 1)}" for k, v in sorted(value.items())]
    else:
        rows = [pad + dumped(item, depth + 1) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n" + ",\n".join(rows) + f"\n{' ' * depth}{closing}"


# ----------------------------------------------------------------------------------------------------- comparing

NUMBER = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


class Comparison:
    """Differences of two recordings."""

    def __init__(self, tolerance: float, *, loose: bool) -> None:
        self.tolerance, self.heed_loose, self.loose, self._loose_record = tolerance, loose, False, False
        self.found: list[str] = []

    def report(self, path: str, old: Any, new: Any) -> None:
        """Keep a difference."""
        self.found.append(f"{path}\n    old: {_short(old)}\n    new: {_short(new)}")

    def record(self, name: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Compare what a command did."""
        self._loose_record = self.heed_loose and "loose" in old
        self.value(name, old, new)

    def value(self, path: str, old: Any, new: Any, scale: float = 0.0) -> None:
        """Compare two JSON values; numbers within the tolerance of their own size or of the array's."""
        self.loose = self._loose_record or (self.heed_loose and bool(set(path.split("/")) & set(ROUNDING)))
        if self.heed_loose and path.endswith(DRAWN):
            return
        if _is_number(old) and _is_number(new):
            if not self._close(old, new, scale):
                self.report(path, old, new)
        elif isinstance(old, dict) and isinstance(new, dict):
            self._dict(path, old, new, scale)
        elif isinstance(old, list) and isinstance(new, list):
            self._list(path, old, new, scale)
        elif isinstance(old, str) and isinstance(new, str):
            if not self._same_text(old, new):
                self.report(path, old, new)
        elif old != new:
            self.report(path, old, new)

    def _close(self, old: float, new: float, scale: float) -> bool:
        if isinstance(old, int) and isinstance(new, int) and not scale:
            return old == new
        return self.loose or abs(old - new) <= self.tolerance * max(abs(old), abs(new), scale) + 1e-12

    def _dict(self, path: str, old: dict[str, Any], new: dict[str, Any], scale: float) -> None:
        for key in sorted(old.keys() | new.keys()):
            if key not in new or key not in old:
                self.report(f"{path}/{key}", old.get(key, "(not there)"), new.get(key, "(not there)"))
            else:
                self.value(f"{path}/{key}", old[key], new[key], scale)

    def _list(self, path: str, old: list[Any], new: list[Any], scale: float) -> None:
        if all(isinstance(x, str) for x in [*old, *new]):
            self._lines(path, old, new)
            return
        if len(old) != len(new):
            self.report(f"{path} (length {len(old)} → {len(new)})", old, new)
            return
        leaves = _leaves(old)
        numbers = all(x is None or _is_number(x) for x in leaves)
        flat = [abs(x) for x in leaves if isinstance(x, float)] if numbers else []
        scale = max(scale, max(flat, default=0.0))
        before = len(self.found)
        for place, (a, b) in enumerate(zip(old, new, strict=True)):
            self.value(f"{path}/{place}", a, b, scale)
        if len(self.found) > before + 3 and numbers:  # one array is one difference
            first = self.found[before]
            self.found[before:] = [f"{first}\n    and {len(self.found) - before - 1} more numbers of {path}"]

    def _lines(self, path: str, old: list[str], new: list[str]) -> None:
        """Compare printed lines; the differing ones as a diff."""
        if len(old) == len(new) and all(self._same_text(a, b) for a, b in zip(old, new, strict=True)):
            return
        pairs = difflib.SequenceMatcher(None, [self._key(x) for x in old], [self._key(x) for x in new], autojunk=False)
        rows = []
        for kind, a, b, c, d in pairs.get_opcodes():
            same = kind == "equal" or (b - a == d - c and all(map(self._same_text, old[a:b], new[c:d])))
            if same:
                rows += [pair for pair in zip(old[a:b], new[c:d], strict=True) if not self._same_text(*pair)]
            else:
                rows += [("\n         ".join(old[a:b]), "\n         ".join(new[c:d]))]
        for was, now in rows:
            self.report(f"{path} (line)", was, now)

    @staticmethod
    def _key(line: str) -> str:
        return " ".join(line.split())

    def _same_text(self, old: str, new: str) -> bool:
        if self._key(old) == self._key(new):
            return True
        if self._key(NUMBER.sub("#", old)) != self._key(NUMBER.sub("#", new)):
            return False
        pairs = zip(NUMBER.findall(old), NUMBER.findall(new), strict=True)
        return all(self._same_printed(a, b) for a, b in pairs)

    def _same_printed(self, old: str, new: str) -> bool:
        """Two printed numbers: the same, or apart by rounding in the last printed place."""
        if old == new:
            return True
        a, b = (float(word.replace(",", "").replace("−", "-")) for word in (old, new))
        if "." not in old + new and "e" not in (old + new).lower():
            return False
        return self.loose or abs(a - b) <= self.tolerance * max(abs(a), abs(b)) + 1.01 * max(_unit(old), _unit(new))


def _unit(word: str) -> float:
    """Worth of the last printed digit."""
    digits, _, power = word.lower().partition("e")
    return 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return text if len(text) < 600 else f"{text[:500]} … ({len(text)} characters)"


def differences(old: Path, new: Path, *, same_machine: bool = False) -> list[str]:
    """What differs between two recordings of the same kind, command by command."""
    comparison = Comparison(1e-6 if same_machine else 1e-4, loose=not same_machine)
    names = {folder: {path.stem for path in folder.glob("*.json")} for folder in (old, new)}
    for folder in (old, new):
        if not names[folder]:
            raise SystemExit(f"expected recordings in {folder}, got none; make them with: record.py record {folder}")
    for name in sorted(names[old] | names[new]):
        if name not in names[new] or name not in names[old]:
            comparison.found.append(f"{name}\n    recorded only in {old if name in names[old] else new}")
            continue
        pair = [json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for folder in (old, new)]
        comparison.record(name, *pair)
    return comparison.found


# ---------------------------------------------------------------------------------------------------- command line


def in_fixed_environment() -> None:
    """Start this script again where the environment is another: some of it is read when Python or torch start."""
    if all(os.environ.get(key) == value for key, value in ENVIRONMENT.items()) and not any(
        key in os.environ for key in UNSET
    ):
        return
    by_key = {key: value for key, value in os.environ.items() if key not in UNSET}
    os.execve(sys.executable, [sys.executable, *sys.argv], {**by_key, **ENVIRONMENT})


def main() -> int:
    """Read the arguments and do what they ask."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare", "check", "update"))
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--compact", action="store_true", help="record as the committed goldens are")
    parser.add_argument("--only", default="", help="steps whose name holds this; later ones may need earlier ones")
    parser.add_argument("--same-machine", action="store_true", help="hold every number to 1e-6")
    args = parser.parse_args()
    if args.what == "record":
        record_all(args.folders[0], compact=args.compact, only=args.only)
        return 0
    if args.what == "update":
        record_all(COMMITTED, compact=True)
        return 0
    if args.what == "compare":
        return _print(differences(*args.folders, same_machine=args.same_machine))
    old = args.folders[0] if args.folders else COMMITTED
    with tempfile.TemporaryDirectory() as place:
        record_all(Path(place), compact=old == COMMITTED)
        return _print(differences(old, Path(place), same_machine=args.same_machine))


def _print(found: list[str]) -> int:
    for text in found:
        print(text)
    print(f"{len(found)} differences")
    return 1 if found else 0


if __name__ == "__main__":
    in_fixed_environment()
    sys.exit(main())
