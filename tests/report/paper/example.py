"""A small page with every kind of trace, whose names are as nasty as names can be, for the tests of paper figures."""

from repflow.report.data.model import Figure, Page, PageModel, Section, Table, Variant

NASTY = "x_1 $\\frac{1}{0}$ ^{ \u202eoen\u2028<b>&\x07"
MODELS = (PageModel(NASTY, 0, 4, ("attention", "ssm") * 2), PageModel("mamba", 1, 4, ("ssm",) * 4))
RELATIVE, ABSOLUTE = [0.0, 0.25, 0.5, 0.75, 1.0], [0.0, 1.0, 2.0, 3.0, 4.0]
CURVES = {NASTY: [0.1, 0.2, None, 0.6, 0.8], "mamba": [0.3, 0.25, 0.2, 0.2, 0.1]}
MAP = [[1.0, 0.5, None], [0.5, 1.0, 0.25], [0.1, 0.25, 1.0]]


def edge(values, by):
    return [None if value is None else value + by for value in values]


def curve(model, task):
    values = [None if v is None else v + (0.01 if task == "mdqa" else 0.0) for v in CURVES[model]]
    meta = {"model": model, "x": {"relative": RELATIVE, "absolute": ABSOLUTE}}
    silent = {
        "type": "scatter",
        "mode": "lines",
        "line": {"width": 0},
        "showlegend": False,
        "meta": meta,
        "x": ABSOLUTE,
    }
    return [
        {**silent, "y": edge(values, -0.05)},
        {**silent, "y": edge(values, 0.05), "fill": "tonexty"},
        {"type": "scatter", "mode": "lines+markers", "name": model, "x": ABSOLUTE, "y": values, "meta": meta},
    ]


def strip():
    return [
        {"type": "rect", "xref": "x", "yref": "y domain", "x0": at / 4, "x1": (at + 1) / 4, "y0": 0, "y1": 0.03,
         "fillcolor": f"kind:{kind}", "line": {"width": 0},
         "meta": {"relative": [at / 4, (at + 1) / 4], "absolute": [at, at + 1], "axis": "x"}}
        for at, kind in enumerate(MODELS[0].kinds)
    ]  # fmt: skip


def lines():
    rows = [[model, state, value] for model, values in CURVES.items() for state, value in enumerate(values)]
    layout = {"yaxis": {"title": {"text": "similarity_$"}}, "shapes": strip()}
    variants = [
        Variant({"task": task}, [t for model in CURVES for t in curve(model, task)], layout,
                ["model", "state", "similarity"], rows, "State 2 is NaN.")
        for task in ("kvpr", "mdqa")
    ]  # fmt: skip
    return Figure("figure-2", f"Similarity {NASTY}", "How alike.", "Lines.", variants, depth_axis=True)


def maps():
    traces = [
        {"type": "heatmap", "z": MAP, "zmin": 0, "zmax": 1, "colorscale": "sequential", "showscale": not at,
         "xaxis": f"x{at or ''}", "yaxis": f"y{at or ''}", "colorbar": {"title": {"text": "CKA"}},
         "meta": {"model": m.label}}
        for at, m in ((0, MODELS[0]), (2, MODELS[1]))
    ]  # fmt: skip
    words = [
        {"text": m.label, "xref": f"{x} domain", "yref": f"{x.replace('x', 'y')} domain", "x": 0.5, "y": 1.02}
        for x, m in (("x", MODELS[0]), ("x2", MODELS[1]))
    ]
    layout = {"grid": {"rows": 1, "columns": 2, "pattern": "independent"}, "annotations": words}
    layout |= {"xaxis": {"title": {"text": "state"}}, "xaxis2": {"title": {"text": "state"}}}
    return Figure("figure-4", "CKA", "Pairs.", "Maps.", [Variant({}, traces, layout)])


def bars():
    traces = [
        {"type": "bar", "x": ["last 1", "last 16"], "y": [0.2, 0.6], "name": "a", "marker": {"color": "model:0"},
         "error_y": {"type": "data", "array": [0.1, None], "arrayminus": [0.05, None]}},
        {"type": "bar", "x": ["last 1", "last 16"], "y": [0.1, 0.9], "name": "b", "marker": {"color": "model:1"}},
    ]  # fmt: skip
    layout = {"barmode": "group", "yaxis": {"tickformat": ".0%", "range": [0, 1]}}
    return Figure("shares", "Shares", "Bars.", "Bars.", [Variant({}, traces, layout)])


def paper_page():
    blocks = [lines(), maps(), bars(), Table("table-1", "Numbers", ["a"], [["b"]])]
    return Page("t", "s", MODELS, [f"{NASTY} is left out"], [Section("flow", "Flow", "", blocks)])
