"""Pages made of arithmetic alone, of one to six models, for the tests of the page shell."""

from __future__ import annotations

import itertools
import math

from repflow.report.data.model import (
    Figure,
    Link,
    Page,
    PageModel,
    Prompts,
    PromptSample,
    Section,
    Table,
    Text,
    Variant,
)

HOSTILE = "</script><script>window.hacked=1</script>"
IMAGE = "<img src=x onerror=window.hacked=2>"
LINK = "<a href='javascript:window.hacked=3'>x</a> &lt;b&gt;"
MARKS = "abc\u202edef\u2028ghi\u2066"
KINDS = ("attention", "ssm")
TASKS = ("kvpr", "mdqa")
LENGTHS = ("300", "1000")
METRICS = ("token_similarity", "token_norm")


def curve(model: int, metric: str, task: str, length: str, layers: int) -> list[float | None]:
    """A smooth curve that differs in every argument; one state is NaN in the first model."""
    shift = 0.07 * model + 0.11 * TASKS.index(task) + 0.03 * LENGTHS.index(length)
    base = [0.3 + 0.5 / (1 + math.exp(-8 * (s / layers - 0.5 - shift))) for s in range(layers + 1)]
    values: list[float | None] = [v if metric == METRICS[0] else 10 ** (3 * v) for v in base]
    if model == 0 and layers > 6:
        values[5] = None
    return values


def model_list(count: int, layers: int, names: tuple[str, ...] = ()) -> list[PageModel]:
    kinds = [[KINDS[at % 2] if model % 3 == 2 else KINDS[model % 2] for at in range(layers)] for model in range(count)]
    labels = [*names, *(f"model-{chr(97 + at)}" for at in range(count))][:count]
    return [PageModel(labels[at], at, layers - 2 * at, kinds[at][: layers - 2 * at]) for at in range(count)]


def similarity_figure(models: list[PageModel]) -> Figure:
    wanted = itertools.product(METRICS, TASKS, LENGTHS)
    variants = [similarity_variant(models, metric, task, length) for metric, task, length in wanted]
    return Figure(
        "similarity",
        "Similarity between tokens by depth",
        "Mean cosine between tokens of one prompt; the strips below the axis say which kind each layer is.",
        "Lines rise from 0.3 at the embedding to 0.8 at the last layer.",
        variants,
        depth_axis=True,
        log_axis=True,
    )


def similarity_variant(models: list[PageModel], metric: str, task: str, length: str) -> Variant:
    traces, shapes, rows = [], [], []
    for model in models:
        values = curve(model.colour, metric, task, length, model.layers)
        absolute = list(range(model.layers + 1))
        place = {"absolute": absolute, "relative": [s / model.layers for s in absolute]}
        band = [None if v is None else v * 1.05 for v in values]
        low = [None if v is None else v * 0.95 for v in values]
        quiet = {"mode": "lines", "hoverinfo": "skip", "showlegend": False, "meta": {"model": model.label, "x": place}}
        traces.append({**quiet, "y": low, "line": {"width": 0}})
        traces.append({**quiet, "y": band, "fill": "tonexty", "fillcolor": f"model:{model.colour}/0.15"})
        traces.append(
            {"name": model.label, "mode": "lines+markers", "y": values, "meta": {"model": model.label, "x": place}}
        )
        for at, kind in enumerate(model.kinds):
            edges = [at, at + 1]
            shapes.append(
                {
                    "type": "rect",
                    "xref": "x",
                    "yref": "y domain",
                    "y0": 0.02 * model.colour,
                    "y1": 0.02 * model.colour + 0.015,
                    "line": {"width": 0},
                    "fillcolor": f"kind:{kind}",
                    "meta": {
                        "model": model.label,
                        "absolute": edges,
                        "relative": [edge / model.layers for edge in edges],
                    },
                }
            )
        rows += [[model.label, state, value] for state, value in enumerate(values)]
    note = "State 5 of the first model is NaN: a gap." if any(row[2] is None for row in rows) else ""
    layout = {"yaxis": {"title": {"text": metric.replace("_", " ")}}, "shapes": shapes}
    when = {"metric": metric, "task": task, "length": length}
    return Variant(when, traces, layout, ("model", "state", metric), rows, note)


def cka_figure(models: list[PageModel]) -> Figure:
    """One panel per model, side by side."""
    variants = []
    for form in ("unbiased", "biased"):
        traces, layout, rows = [], {}, []
        for at, model in enumerate(models):
            size = model.layers + 1
            z = [
                [math.exp(-abs(a - b) / (size / (3 if form == "biased" else 2))) for a in range(size)]
                for b in range(size)
            ]
            number = "" if at == 0 else str(at + 1)
            depth = {"absolute": list(range(size)), "relative": [s / model.layers for s in range(size)]}
            traces.append(
                {
                    "type": "heatmap",
                    "z": z,
                    "coloraxis": "coloraxis",
                    "xaxis": f"x{number}",
                    "yaxis": f"y{number}",
                    "name": model.label,
                    "hovertemplate": "%{x}, %{y}<br><b>%{z}</b><extra></extra>",
                    "meta": {"model": model.label, "x": depth, "y": depth},
                }
            )
            layout.setdefault("annotations", []).append(
                {
                    "text": model.label,
                    "xref": f"x{number} domain",
                    "yref": f"y{number} domain",
                    "x": 0,
                    "y": 1,
                    "xanchor": "left",
                    "yanchor": "bottom",
                    "meta": {"model": model.label},
                }
            )
            rows += [[model.label, a, b, z[a][b]] for a in range(size) for b in range(size)]
        columns = min(3, len(models))
        layout["grid"] = {"rows": -(-len(models) // columns), "columns": columns, "pattern": "independent"}
        layout["coloraxis"] = {"colorscale": "sequential", "cmin": 0, "cmax": 1, "colorbar": {"title": "CKA"}}
        variants.append(Variant({"form": form}, traces, layout, ("model", "state", "other", "cka"), rows))
    return Figure(
        "cka", "CKA of every pair of layers", "Bright: alike.", "A bright diagonal.", variants, depth_axis=True
    )


def bar_figure(models: list[PageModel]) -> Figure:
    """Accuracy by length: two tasks, no depth."""
    variants = []
    for task in TASKS:
        traces = [
            {
                "type": "bar",
                "name": model.label,
                "x": list(LENGTHS),
                "y": [0.9 - 0.1 * model.colour - 0.2 * at for at in range(2)],
                "meta": {"model": model.label},
            }
            for model in models
        ]
        rows = [[trace["name"], *point] for trace in traces for point in zip(trace["x"], trace["y"], strict=True)]
        layout = {"xaxis": {"title": "length", "type": "category"}, "yaxis": {"title": {"text": "accuracy"}}}
        variants.append(Variant({"task": task}, traces, layout, ("model", "length", "accuracy"), rows))
    return Figure("accuracy", "Accuracy by length", "Answer accuracy.", "Bars fall with length.", variants)


def prompts(models: list[PageModel], words: list[str]) -> Prompts:
    samples = []
    for model in models:
        for sample in range(2):
            tokens = words if sample == 0 else words[::-1]
            metrics = {
                "layer_cosine": [
                    [math.cos(0.1 * (layer + at + model.colour)) for at in range(len(tokens))]
                    for layer in range(model.layers)
                ],
                "token_norm": [
                    [1.0 + state * (at + 1) for at in range(len(tokens))] for state in range(model.layers + 1)
                ],
                "similarity": [
                    [None if at == 0 else state / (model.layers + at) for at in range(len(tokens))]
                    for state in range(model.layers + 1)
                ],
            }
            samples.append(PromptSample(model.label, f"kvpr, sample {sample}", tokens, metrics, "Answer: 7f3a"))
    return Prompts("explorer", "One prompt, token by token", samples, "Choose a token to see its path.")


def example_page(count: int = 2, layers: int = 12, *, hostile: bool = False, tokens: int = 60) -> Page:
    """A page with one of everything."""
    names = (HOSTILE, IMAGE + MARKS, LINK) if hostile else ()
    models = model_list(count, layers, names)
    extra = [HOSTILE, IMAGE, LINK, MARKS, "\n", "<b>bold</b>"] if hostile else []
    words = [*extra, *(f" word{at}" for at in range(tokens))]
    verdict: list[list] = [
        [model.label, Link(f"{0.5 + 0.01 * model.colour:.2f}", "similarity"), 0.123456789, None, float("nan")]
        for model in models
    ]
    said = f"How representations flow {HOSTILE} {IMAGE}" if hostile else "How representations flow"
    warnings = [f"run {names[1]} is damaged"] if hostile else ["Runs a and b were measured on different prompts."]
    return Page(
        said,
        "Measured on made-up numbers.",
        models,
        warnings,
        [
            Section(
                "verdict",
                "Verdict",
                "What was found, in one sentence per model.",
                [
                    Table(
                        "verdicts", "At a glance", ("model", "depth", "loss", "Sm", "St"), verdict, "A dash: no value."
                    ),
                    Text("words", "In words", [f"{model.label} grows more alike with depth." for model in models]),
                ],
            ),
            Section("flow", "Flow", "Similarity by depth.", [similarity_figure(models), bar_figure(models)]),
            Section("layers", "Layers", "", [cka_figure(models)]),
            Section("prompts", "Prompts", "", [prompts(models, words)]),
            Section("made", "How this was made", "", [Text("commands", "Commands", ["repflow measure x"], mono=True)]),
        ],
    )
