"""The delta rule on a GPU: are the kernels right, and how fast are Gated DeltaNet layers beside Mamba-2 layers?

    python benchmarks/delta_gpu.py --seconds 85 --json delta_gpu.json        (on a GPU)
    TRITON_INTERPRET=1 python benchmarks/delta_gpu.py --smoke                (anywhere, tiny sizes)

Rows: `right`, errors against the sequential rule in float64 (outputs and last states by their norm; gradients of the
chunked form); `layer`, a transformers layer of the Qwen3-Next shape on the kernels against its own forward in float32;
`rate`, milliseconds a layer and tokens a second, in a chain of layers, of Gated DeltaNet and of Mamba-2 with equally
many parameters, and their quotient; `parts`, kernels of one layer; `tiles`, the state kernel cut in other ways. A part
that fails says so and leaves the others; none begins when the seconds are spent.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import traceback
from pathlib import Path

START = time.perf_counter()


class Bench:
    """Sizes, time and results."""

    def __init__(self, smoke: bool, seconds: float, path: str | None):
        import torch

        self.torch, self.smoke, self.seconds, self.path = torch, smoke, seconds, path
        self.device = torch.device("cpu" if smoke else "cuda")
        self.low = torch.float32 if smoke else torch.bfloat16
        self.tokens, self.layers, self.reps = (70, 1, 1) if smoke else (2048, 8, 7)
        self.rows: list[dict] = []

    def left(self) -> float:
        """Seconds that are left."""
        return self.seconds - (time.perf_counter() - START)

    def say(self, row: str, **values):
        """Print a line at once and keep it."""
        self.rows.append({"row": row, **values})
        shown = "  ".join(
            f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()
        )
        print(f"[{time.perf_counter() - START:5.1f} s] {row:6s} {shown}", flush=True)
        if self.path:
            Path(self.path).write_text(json.dumps(self.rows, indent=1), encoding="utf-8")

    def time(self, call, warm: int = 2) -> float:
        """Median milliseconds of a call on the device."""
        torch = self.torch
        for _ in range(1 if self.smoke else warm):
            call()
        if self.smoke:
            start = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - start)
        times = []
        for _ in range(self.reps):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return statistics.median(times)

    def draw(self, *shape, dtype=None):
        """Normal numbers on the device."""
        return self.torch.randn(*shape, device=self.device, dtype=dtype or self.torch.float32)


def error(got, wanted) -> float:
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


def rule_inputs(bench, dtype, decay, tokens, dim, batch=2):
    """q, k of length 1, v, beta, log decay, initial state."""
    torch = bench.torch
    q, k = (torch.nn.functional.normalize(bench.draw(batch, tokens, 2, dim), dim=-1).to(dtype) for _ in range(2))
    v, beta = bench.draw(batch, tokens, 4, dim, dtype=dtype), bench.draw(batch, tokens, 4).sigmoid().to(dtype)
    shape = {"none": None, "head": (batch, tokens, 4), "key": (batch, tokens, 4, dim)}[decay]
    gate = None if shape is None else -torch.nn.functional.softplus(bench.draw(*shape) - 3)
    return q, k, v, beta, gate, bench.draw(batch, 4, dim, dim)


def right(bench):
    """Kernels against the sequential rule in float64; a token that is not finite; gradients of the chunked form."""
    from repflow.mixers.scan.forms import delta_scan

    torch = bench.torch
    tokens, dim = (70, 16) if bench.smoke else (330, 128)
    half = torch.float16 if bench.smoke else torch.bfloat16
    for dtype, decay in (
        (half, "head"),
        (torch.float32, "head"),
        (half, "key"),
        (torch.float32, "key"),
        (half, "none"),
    ):
        if bench.left() < 8 and not bench.smoke:
            bench.say("skip", part=f"right, {dtype}, decay of {decay}", left=bench.left())
            continue
        torch.manual_seed(0)
        q, k, v, beta, gate, first = rule_inputs(bench, dtype, decay, tokens, dim)
        wide = [None if part is None else part.double() for part in (q, k, v, beta, gate, first)]
        given = {"log_decay": wide[4], "initial": wide[5], "return_final": True}
        wanted, last = delta_scan(*wide[:4], **given, path="reference")
        given = {"log_decay": gate, "initial": first, "return_final": True}
        y, final = delta_scan(q, k, v, beta, **given, path="triton")
        chunked, _ = delta_scan(q, k, v, beta, **given, path="chunked")
        name = str(dtype).removeprefix("torch.")
        bench.say(
            "right",
            dtype=name,
            decay=decay,
            y=error(y, wanted),
            state=error(final, last),
            chunked=error(chunked, wanted),
        )
        if decay == "head":
            v = v.clone()
            v[0, 100 if not bench.smoke else 40, 0, 0] = float("nan")
            spoiled, _ = delta_scan(q, k, v, beta, **given, path="triton")
            at = 100 if not bench.smoke else 40
            before = bool((spoiled[:, :at] == y[:, :at]).all())
            bench.say(
                "right",
                dtype=name,
                nan_leaves_earlier_tokens=before,
                and_spoils_later=bool(spoiled[0, at:, 0, 0].isnan().all()),
            )
    q, k, v, beta, gate, _ = rule_inputs(bench, torch.float32, "head", tokens, dim, 1)
    slopes = []
    for kind, path in ((torch.float32, "auto"), (torch.float64, "reference")):
        leaves = [part.to(kind).requires_grad_() for part in (q, k, v, beta, gate)]
        y = delta_scan(*leaves[:4], log_decay=leaves[4], path=path)
        slopes.append(torch.autograd.grad(y.sin().sum(), leaves))
    bench.say("right", gradients_of="q k v beta gate", error=max(error(a, b) for a, b in zip(*slopes, strict=True)))


def shapes(bench):
    """Configurations of the two layers, with equally many parameters."""
    from transformers import Mamba2Config, Qwen3NextConfig

    if bench.smoke:
        delta = Qwen3NextConfig(
            hidden_size=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
            linear_value_head_dim=16, num_hidden_layers=4,
        )  # fmt: skip
        return delta, Mamba2Config(hidden_size=32, num_heads=4, head_dim=16, expand=2, state_size=16, n_groups=1)
    delta = Qwen3NextConfig(
        hidden_size=2048, linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=128,
        linear_value_head_dim=128, linear_conv_kernel_dim=4, num_hidden_layers=4,
    )  # fmt: skip
    # equally many parameters need 84 heads, and an `expand` that transformers 5.17 refuses: the layer reads it here
    mamba = Mamba2Config(hidden_size=2048, num_heads=64, head_dim=64, expand=2, state_size=128, n_groups=1)
    mamba.__dict__.update(num_heads=84, expand=2.625)
    return delta, mamba


def delta_layers(bench, dtype, count):
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    bench.torch.manual_seed(0)
    with bench.device:
        layers = [Qwen3NextGatedDeltaNet(shapes(bench)[0], 0) for _ in range(count)]
    for layer in layers:
        layer.dt_bias.data.uniform_(-6, -1)
        layer.to(dtype).eval()
    return layers


def mamba_layers(bench, dtype, count):
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    with bench.device:
        layers = [Mamba2Mixer(shapes(bench)[1], 0) for _ in range(count)]
    for layer in layers:
        layer.dt_bias.data.uniform_(-6, -1)
        layer.A_log.data.uniform_(0, 2.7)
        layer.to(dtype).eval()
    return layers


def whole_layer(bench):
    """A layer on the kernels, and through its own forward, against its own forward in float32."""
    import inspect

    import transformers.models.qwen3_next.modeling_qwen3_next as home

    from repflow.models.fastpath.delta_layer import gated_delta_layer

    torch = bench.torch
    (layer,) = delta_layers(bench, torch.float32, 1)
    x = bench.draw(2, 70 if bench.smoke else 500, layer.hidden_size)
    for name in ("torch_chunk_gated_delta_rule", "causal_conv1d_fn"):  # torch forms, whatever else is installed
        if hasattr(home, name):
            setattr(home, name, inspect.unwrap(getattr(home, name)))
    wanted = layer(x)
    bench.say("layer", dtype="float32", error=error(gated_delta_layer(layer, x), wanted))
    layer, x = layer.to(bench.low), x.to(bench.low)
    bench.say(
        "layer",
        dtype=str(bench.low),
        error=error(gated_delta_layer(layer, x), wanted),
        own_forward=error(layer(x), wanted),
    )


def chain(layers, run):
    def call(x):
        for layer in layers:
            x = x + run(layer, x)
        return x

    return call


def rate(bench):
    """A chain of layers: Gated DeltaNet on the kernels, with the chunked scan alone, and Mamba-2."""
    from repflow.models.fastpath.delta_layer import gated_delta_layer
    from repflow.models.fastpath.gpu import mamba2_layer

    delta, mamba = (make(bench, bench.low, bench.layers) for make in (delta_layers, mamba_layers))
    numbers = [sum(p.numel() for p in layers[0].parameters()) / 1e6 for layers in (delta, mamba)]
    bench.say("rate", delta_million_parameters=numbers[0], mamba2_million_parameters=numbers[1])
    for batch in (8, 1):
        x = bench.draw(batch, bench.tokens, delta[0].hidden_size, dtype=bench.low)
        times = {}
        for name, layers, run in (("delta", delta, gated_delta_layer), ("mamba2", mamba, mamba2_layer)):
            call = chain(layers, run)
            times[name] = bench.time(lambda call=call, x=x: call(x)) / len(layers)
        per = batch * bench.tokens
        bench.say(
            "rate", batch=batch, delta_ms=times["delta"], mamba2_ms=times["mamba2"],
            delta_mtokens=per / times["delta"] / 1e3, mamba2_mtokens=per / times["mamba2"] / 1e3,
            delta_over_mamba2=times["mamba2"] / times["delta"],
        )  # fmt: skip
    if bench.left() > 20 or bench.smoke:
        own = chain(delta[:2], lambda layer, x: layer(x))
        x = bench.draw(1, bench.tokens, delta[0].hidden_size, dtype=bench.low)
        bench.say("rate", batch=1, transformers_own_ms=bench.time(lambda: own(x), warm=1) / 2)


def parts(bench):
    """Kernels of one layer by their time."""
    from repflow.models.fastpath.delta_layer import gated_delta_layer
    from repflow.models.fastpath.gpu import mamba2_layer

    if bench.smoke:
        return
    torch = bench.torch
    layers = {"delta": (delta_layers(bench, bench.low, 1)[0], gated_delta_layer)}
    layers["mamba2"] = (mamba_layers(bench, bench.low, 1)[0], mamba2_layer)
    for name, (layer, run) in layers.items():
        for batch in (8, 1):
            x = bench.draw(batch, bench.tokens, 2048, dtype=bench.low)
            run(layer, x)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                for _ in range(3):
                    run(layer, x)
                torch.cuda.synchronize()
            kernels = {event.key[:40]: round(event.device_time_total / 3) for event in profile.key_averages()}
            most = dict(sorted(kernels.items(), key=lambda item: -item[1])[:10])
            bench.say("parts", layer=name, batch=batch, microseconds=json.dumps(most))


def tiles(bench):
    """The state kernel in other cuts."""
    from repflow.mixers.triton import delta as host
    from repflow.mixers.triton.kernels import delta as kernels

    if bench.smoke:
        return
    repair = kernels.repair_kernel
    kernels.repair_kernel = type("Nothing", (), {"__getitem__": lambda *_: lambda *_, **__: None})()
    fill = host.FILL
    host.FILL = 0
    try:
        for cut in (
            host.Tiles(64, 4, 2),
            host.Tiles(32, 4, 2),
            host.Tiles(64, 8, 2),
            host.Tiles(128, 8, 2),
            host.Tiles(64, 4, 3),
            host.Tiles(32, 2, 2),
            host.Tiles(16, 4, 2),
        ):
            for batch in (8, 1):
                if bench.left() < 4:
                    return
                v = bench.draw(batch, bench.tokens, 32, 128, dtype=bench.low)
                q = bench.torch.nn.functional.normalize(bench.draw(batch, bench.tokens, 16, 128), dim=-1).to(bench.low)
                beta, gate = (
                    bench.draw(batch, bench.tokens, 32).sigmoid(),
                    -bench.draw(batch, bench.tokens, 32).abs() / 50,
                )
                chunks = host._head_chunks(q, q, v, host._plain_gates(beta, gate), decay=True, layer=False)
                try:
                    took = bench.time(lambda q=q, v=v, c=chunks, t=cut: host._states(q, q, v, c, None, t))
                    bench.say("tiles", batch=batch, cut=str(tuple(cut)), ms=took)
                except Exception as problem:  # noqa: BLE001  one cut must not take the others down
                    bench.say("tiles", batch=batch, cut=str(tuple(cut)), failed=str(problem)[:200])
    finally:
        kernels.repair_kernel, host.FILL = repair, fill


def mixers(bench):
    """Mixers of repflow of the same shape, forward and with gradients."""
    from repflow.mixers import build

    size = (
        {"heads": 2, "value_heads": 4, "state": 16} if bench.smoke else {"heads": 16, "value_heads": 32, "state": 128}
    )
    width = 32 if bench.smoke else 2048
    with bench.device:
        ours = build("gated_delta_net", width, expand=1, **size).to(bench.low)
        other = build(
            "ssd",
            width,
            expand=2 if bench.smoke else 2.625,
            state=16 if bench.smoke else 128,
            head_dim=16 if bench.smoke else 64,
        ).to(bench.low)
    x = bench.draw(1 if bench.smoke else 4, bench.tokens, width, dtype=bench.low)
    for name, mixer in (("gated_delta_net", ours), ("ssd", other)):
        with bench.torch.no_grad():
            forward = bench.time(lambda mixer=mixer: mixer(x))
        both = bench.time(lambda mixer=mixer: mixer(x).float().square().mean().backward(), warm=1)
        bench.say("mixer", name=name, batch=x.shape[0], forward_ms=forward, with_gradients_ms=both)


def summary(bench):
    """What the bar asks, in a few lines."""
    print("\nbatch  delta ms/layer  Mamba-2 ms/layer  delta's rate over Mamba-2's (bar 0.6)")
    for row in bench.rows:
        if "delta_over_mamba2" in row:
            shown = f"{row['delta_ms']:14.3f}  {row['mamba2_ms']:16.3f}  {row['delta_over_mamba2']:.3f}"
            print(f"{row['batch']:5}  {shown}")
    for kind in ("float32", "float16", "bfloat16"):
        rows = [row for row in bench.rows if kind == str(row.get("dtype")).removeprefix("torch.")]
        errors = [row[name] for row in rows for name in ("y", "state", "error") if name in row]
        if errors:
            print(f"largest error in {kind}, {len(errors)} comparisons: {max(errors):.2g}")
    said = [row for row in bench.rows if "nan_leaves_earlier_tokens" in row]
    right = sum(row["nan_leaves_earlier_tokens"] and row["and_spoils_later"] for row in said)
    print(f"a token that is not finite reaches later tokens alone: {right} of {len(said)}")
    for word in ("failed", "skip"):
        print(f"{word}: {', '.join(row['part'] for row in bench.rows if row['row'] == word) or 'nothing'}")


def main():
    """Run the parts in order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, in Triton's interpreter")
    parser.add_argument("--seconds", type=float, default=85.0, help="no part begins later")
    parser.add_argument("--json", help="file for the rows; $OUT/delta_gpu.json where OUT is set")
    options = parser.parse_args()
    path = options.json or (str(Path(os.environ["OUT"]) / "delta_gpu.json") if os.environ.get("OUT") else None)
    bench = Bench(options.smoke, options.seconds, path)
    torch = bench.torch
    bench.say("start", torch=torch.__version__, device="cpu" if options.smoke else torch.cuda.get_device_name())
    for part, needs in ((rate, 20), (parts, 8), (whole_layer, 12), (tiles, 8), (right, 25), (mixers, 8)):
        if bench.left() < needs and not options.smoke:
            bench.say("skip", part=part.__name__, left=bench.left())
            continue
        try:
            if part is mixers:
                part(bench)
            else:
                with torch.set_grad_enabled(part is right):
                    part(bench)
        except Exception as problem:  # noqa: BLE001  the other parts still run
            bench.say("failed", part=part.__name__, why=f"{type(problem).__name__}: {str(problem)[:300]}")
            traceback.print_exc(limit=-4)
    bench.say("end", seconds=time.perf_counter() - START)
    summary(bench)


if __name__ == "__main__":
    main()
