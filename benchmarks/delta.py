"""The delta rule on a CPU: repflow's chunks against transformers' own path, of the rule, of a layer and of a model.

    python benchmarks/delta.py --json benchmarks/delta.json        # one thread, float32, 1,024 tokens

Both paths run in turn in one process and are compared by CPU seconds, the least of several rounds, so that other work
on the machine decides little. Errors are relative (Frobenius), of the rule against the sequential one in float64.
Weights are random. The GPU part is benchmarks/delta_gpu.py.
"""

from __future__ import annotations

import argparse
import inspect
import json
import time
import warnings
from pathlib import Path

RULES = {
    "Gated DeltaNet, Qwen3-Next (32 heads of 128)": ("qwen3_next", 1, 32, 128),
    "Gated DeltaNet, 16 heads of 128": ("qwen3_next", 1, 16, 128),
    "Gated DeltaNet, 4 prompts, 8 heads of 64": ("qwen3_next", 4, 8, 64),
    "KDA, Kimi Linear (32 heads of 128)": ("kimi_linear", 1, 32, 128),
}
LAYERS = {
    "Qwen3-Next's layer, 2,048 wide": ("qwen3_next", "Qwen3NextGatedDeltaNet", {}),
    "Kimi Linear's layer, 2,304 wide": (
        "kimi_linear",
        "KimiLinearDeltaAttention",
        {"hidden_size": 2304, "linear_num_heads": 32, "linear_head_dim": 128},
    ),
}
MIXED = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
MODELS = {
    "Qwen3.5 shape, 4 layers of 1,024": ("qwen3_5_text", {
        "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "vocab_size": 1000, "layer_types": MIXED,
    }),
}  # fmt: skip


def home(name):
    """A modeling file of transformers, its torch forms in place of any package's kernels."""
    import importlib

    from repflow.models.fastpath.scan_call import FUNCTIONS

    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    for function in (*FUNCTIONS, "causal_conv1d_fn", "causal_conv1d_update"):
        if hasattr(module, function):
            setattr(module, function, inspect.unwrap(getattr(module, function)))
    return module


def least(calls, rounds):
    """Least CPU seconds of each call, the calls in turn."""
    best = dict.fromkeys(calls, float("inf"))
    for number in range(rounds + 1):
        for name, call in calls.items():
            start = time.process_time()
            call()
            if number:
                best[name] = min(best[name], time.process_time() - start)
    return best


def projections(network, tokens):
    """All linear maps of a layer or model, one after the other: work that both paths share."""
    import torch

    maps = [part for part in network.modules() if isinstance(part, torch.nn.Linear)]
    inputs = {one.in_features: torch.randn(tokens, one.in_features) for one in maps}
    return lambda: [one(inputs[one.in_features]) for one in maps]


def error(got, wanted):
    return float((got.double() - wanted).norm() / wanted.norm())


def rule(name, batch, heads, dim, tokens, rounds):
    """One call of the rule, as a layer makes it."""
    import torch

    from repflow.models.fastpath.scan_call import read_call

    module = home(name)
    function = getattr(module, "torch_chunk_gated_delta_rule", None) or module.chunk_kimi_delta_attention
    torch.manual_seed(0)
    q, k, v = torch.randn(3, batch, tokens, heads, dim)
    beta = torch.rand(batch, tokens, heads)
    gate = -torch.rand(batch, tokens, heads, *([] if name == "qwen3_next" else [dim])) * 0.2
    given = {"g": gate, "beta": beta, "use_qk_l2norm_in_kernel": True}
    call = read_call("delta", function, (q, k, v), given)
    seconds = least({"transformers": call.theirs, "repflow": lambda: call.run()[0]}, rounds)
    few = read_call(
        "delta",
        function,
        tuple(part[:, :256] for part in (q, k, v)),
        {name: part if isinstance(part, bool) else part[:, :256] for name, part in given.items()},
    )
    from repflow.mixers.scan.reference import recurrence
    from repflow.mixers.transition import DeltaTransition

    wanted = recurrence(DeltaTransition(*(part.double() for part in few.transition())))
    return seconds, {
        "error": error(few.run()[0].flatten(2), wanted),
        "transformers_error": error(few.theirs().flatten(2), wanted),
    }


def layer(name, cls, options, tokens, rounds):
    """A whole layer, its scan by repflow or by transformers."""
    import torch

    from repflow.models.fastpath.scans import install
    from repflow.models.transformers_own import config_class

    module = home(name)
    torch.manual_seed(0)
    layers = []
    for setting in ("reference", "fast"):
        torch.manual_seed(0)
        one = getattr(module, cls)(config_class(name)(num_hidden_layers=4, **options), 0).eval()
        for parameter in one.parameters():
            torch.nn.init.normal_(parameter, std=0.02) if parameter.ndim > 1 else torch.nn.init.uniform_(parameter)
        install(one, [one], setting)
        layers.append(one)
    x = torch.randn(1, tokens, layers[0].hidden_size)
    calls = {"transformers": lambda: layers[0](x), "repflow": lambda: layers[1](x)}
    seconds = least({**calls, "projections": projections(layers[1], tokens)}, rounds)
    return seconds, {"difference": error(layers[1](x), layers[0](x).double())}


def model(kind, options, tokens, rounds):
    """A base model, as `repflow.load` runs it."""
    import copy

    import torch
    from transformers import AutoModelForCausalLM

    import repflow
    from repflow.models.transformers_own import config_class

    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config_class(kind)(**options)).eval()
    theirs, ours = (repflow.load(copy.deepcopy(network), scan=scan) for scan in ("reference", "auto"))
    ids = torch.randint(0, options["vocab_size"], (1, tokens))

    def run(loaded):
        return lambda: loaded.stream(ids, on_state=lambda *_: None)

    calls = {"transformers": run(theirs), "repflow": run(ours), "projections": projections(ours.network.model, tokens)}
    return least(calls, rounds), {}


def main():
    """Print a table, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="file for the rows")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    rows = []
    with torch.no_grad():
        for part, table, run in (("rule", RULES, rule), ("layer", LAYERS, layer), ("model", MODELS, model)):
            for name, shape in table.items():
                rounds = 1 if "K" in name[:2] else options.rounds  # transformers' KDA takes long
                seconds, more = run(*shape, options.tokens, rounds)
                ratio = seconds["transformers"] / seconds["repflow"]
                rows.append({"part": part, "shape": name, **seconds, "ratio": ratio, **more})
                said = (f"{value:.3g}" if isinstance(value, float) else value for value in rows[-1].values())
                print("  ".join(said), flush=True)
                if options.json:
                    facts = {"torch": torch.__version__, "transformers": transformers.__version__}
                    kept = {**facts, "tokens": options.tokens, "rows": rows}
                    Path(options.json).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
