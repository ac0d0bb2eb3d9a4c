"""Checks of benchmarks/scan_gpu.py: every Triton kernel against a sequential float64 recurrence, on fresh inputs."""

from __future__ import annotations

import torch
from torch.nn import functional as F

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
UNIT = {BF16: 2.0**-8, F16: 2.0**-11}
"""Largest relative error of one rounding."""
# Largest relative error of (outputs, gradients), by dtype of the inputs. References see the same rounded inputs and
# the same rounded slope of the loss; what is left is the rounding of states, of weighted inputs and of results.
LIMIT = {F32: (1e-5, 1e-4)} | {dtype: (3 * unit, 5 * unit) for dtype, unit in UNIT.items()}


def error(got, want):
    """‖got − want‖ / ‖want‖ in float64; infinite where got is not finite."""
    if not bool(torch.isfinite(got).all()):
        return float("inf")
    got, want = got.detach(), want.detach()
    return float((got.double() - want.double()).norm() / want.double().norm().clamp(min=1e-30))


def recur(x, delta, A, B, C, D, initial):
    """Sequential float64: x, delta, B, C broadcast to (batch, token, row, state); A likewise without token."""
    h = initial
    outputs = []
    for t in range(x.shape[1]):
        h = torch.exp(delta[:, t] * A) * h + delta[:, t] * x[:, t] * B[:, t]
        outputs.append((h * C[:, t]).sum(-1))
    return torch.stack(outputs, 1) + D * x[..., 0], h


def wide_s6(x, delta, A, B, C, D, initial, z, bias):
    x64, d = x.double(), F.softplus(delta.double() + bias.double(), threshold=30)
    maps = [m.double()[:, :, None] for m in (B, C)]
    y, h = recur(x64[..., None], d[..., None], A.double(), *maps, D.double(), initial.double())
    return y * F.silu(z.double()), h


def wide_ssd(x, delta, A, B, C, D, initial, bias):
    heads, groups = x.shape[2], B.shape[2]
    d = F.softplus(delta.double() + bias.double(), threshold=30)
    maps = [m.double().repeat_interleave(heads // groups, 2)[:, :, :, None] for m in (B, C)]
    skip = D.double()[:, None]
    return recur(x.double()[..., None], d[..., None, None], A.double()[:, None, None], *maps, skip, initial.double())


def compare(names, inputs, run, reference, dtype, *, gradients=True, loose=False):
    """Largest errors of outputs and gradients; None where they are within the dtype's limits, else what is not."""
    leaves = [v.detach().clone().requires_grad_(gradients) for v in inputs]
    twins = [v.detach().clone().requires_grad_(gradients) for v in inputs]
    with torch.set_grad_enabled(gradients):
        got, want = run(*leaves), reference(*twins)
    errors = {f"out{i}": error(g, w) for i, (g, w) in enumerate(zip(got, want, strict=True))}
    limits = dict.fromkeys(errors, LIMIT[dtype][0])
    if gradients:
        # Autograd hands the slope on in the output's dtype. A reference with the unrounded one differs by its rounding,
        # which can be any part of a gradient that is small because its terms cancel: dC of a single token is one number
        # times B, and that number is a sum over heads and channels.
        weights = [torch.randn_like(w).to(g.dtype).to(w.dtype) for g, w in zip(got, want, strict=True)]
        made = torch.autograd.grad(sum((g.double() * w).sum() for g, w in zip(got, weights, strict=True)), leaves)
        true = torch.autograd.grad(sum((g * w).sum() for g, w in zip(want, weights, strict=True)), twins)
        grads = {f"d{n}": error(g, w) for n, g, w in zip(names, made, true, strict=True)}
        errors |= grads
        # huge steps leave gradients of steps and rates that are differences of much larger terms: finite is what
        # counts there
        small = ("ddelta", "dA", "dbias") if loose else ()
        limits |= {n: 0.1 if n in small else LIMIT[dtype][1] for n in grads}
    wrong = {n: e for n, e in errors.items() if not e <= limits[n]}
    return errors, wrong


def draw(device, dtype, *sizes):
    return torch.randn(*sizes, device=device).to(dtype)


def check_s6(device, dtype, batch, tokens, channels, state, *, scale=1.0, tiles=None, gradients=True):
    from repflow.mixers.triton.s6 import selective_scan_triton

    per_token = [(batch, tokens, channels)] * 2, [(batch, tokens, state)] * 2
    x, delta, B, C = (draw(device, dtype, *s) for group in per_token for s in group)
    A = -torch.rand(channels, state, device=device) * 4 - 0.1
    D, initial, z, bias = (
        draw(device, F32, channels), draw(device, F32, batch, channels, state), draw(device, dtype, batch, tokens,
        channels),
        draw(device, F32, channels),
    )  # fmt: skip
    names = ["x", "delta", "A", "B", "C", "D", "initial", "z", "bias"]

    def run(x, delta, A, B, C, D, initial, z, bias):
        return selective_scan_triton(
            x, delta, A, B, C, D, initial, True, z=z, delta_bias=bias, delta_softplus=True, tiles=tiles
        )

    inputs = [x, (delta.float() * scale).to(dtype), A, B, C, D, initial, z, bias]
    return compare(names, inputs, run, wide_s6, dtype, gradients=gradients, loose=scale > 1)


def check_ssd(device, dtype, batch, tokens, heads, dim, groups, state, *, scale=1.0, tiles=None, gradients=True):
    from repflow.mixers.triton.ssd import ssd_scan_triton

    x = draw(device, dtype, batch, tokens, heads, dim)
    delta = (draw(device, F32, batch, tokens, heads) * scale).to(dtype)
    B, C = (draw(device, dtype, batch, tokens, groups, state) for _ in range(2))
    A = -torch.rand(heads, device=device) * 4 - 0.1
    D, bias = (draw(device, F32, heads) for _ in range(2))
    initial = draw(device, F32, batch, heads, dim, state)
    names = ["x", "delta", "A", "B", "C", "D", "initial", "bias"]

    def run(x, delta, A, B, C, D, initial, bias):
        return ssd_scan_triton(x, delta, A, B, C, D, initial, True, delta_bias=bias, delta_softplus=True, tiles=tiles)

    inputs = [x, delta, A, B, C, D, initial, bias]
    return compare(names, inputs, run, wide_ssd, dtype, gradients=gradients, loose=scale > 1)


def check_loss(device, dtype, rows, size):
    from repflow.mixers.triton.loss import cross_entropy_in_place

    logits, target = draw(device, dtype, rows, size) * 3, torch.randint(0, size, (rows,), device=device)

    def run(logits):
        return (cross_entropy_in_place(logits * 1, target),)

    return compare(["logits"], [logits], run, lambda v: (F.cross_entropy(v.double(), target),), dtype)


def lively(model):
    """Weights of size 1/√fan-in, which make the scan a good part of a layer's output (1e-8 of it at a random init)."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embed" not in name and "A_log" not in name:
                weight.normal_(std=weight.shape[1] ** -0.5)
    return model


def check_model(device, dtype, build, tokens, *, tiles=None, gradients=True):
    """Two layers of transformers: their own path in float32 against the kernels, states and gradients."""
    from repflow.models.fastpath.gpu import gpu_blocks

    model = lively(build(F32)).train()
    ids = torch.randint(0, model.config.vocab_size, (2, tokens), device=device)
    weights = dict(model.named_parameters())
    want = model(ids, use_cache=False).last_hidden_state
    slope = torch.randn_like(want)
    true = torch.autograd.grad((want * slope).sum(), list(weights.values())) if gradients else []
    low = build(dtype)
    low.load_state_dict(model.state_dict())
    low.train()
    with torch.set_grad_enabled(gradients), gpu_blocks(low, tiles) as names:
        assert len(names) == 2, names
        got = low(ids, use_cache=False).last_hidden_state
        made = torch.autograd.grad((got.float() * slope).sum(), list(low.parameters())) if gradients else []
    errors = {"states": error(got, want)}
    errors |= {n: error(g, t) for n, g, t in zip(weights, made, true, strict=True)} if gradients else {}
    # rounding of weights and of every product in between adds to the scan's own
    limit = {F32: 1e-3, BF16: 6e-2, F16: 2e-2}[dtype]
    return errors, {n: e for n, e in errors.items() if not e <= limit}


def compile_only(bench, shape, batch, tokens, tiles):
    """One layer of a timed shape, once: its kernels are then in Triton's cache when the clock runs."""
    from repflow.models.fastpath.gpu import gpu_blocks

    model = bench.build(shape, num_hidden_layers=1, vocab_size=512)
    with torch.no_grad(), gpu_blocks(model, tiles):
        states = model(bench.ids(model, batch, tokens), use_cache=False).last_hidden_state
    return {"compiled": 0.0 if bool(torch.isfinite(states).all()) else float("nan")}, {}


def compile_training(bench, tiles):
    import scan_gpu

    from repflow.models.fastpath.gpu import gpu_blocks

    model, step, _, _ = scan_gpu.trainer(bench, tiles, True, layers=1)
    with gpu_blocks(model, tiles):
        step()
    return {"compiled": 0.0}, {}


def plans(bench):
    """Name → call of every check, the slowest to compile first."""
    from functools import partial

    import scan_gpu

    from repflow.mixers.triton.s6 import Tiles as S6
    from repflow.mixers.triton.ssd import TRAINING
    from repflow.mixers.triton.ssd import Tiles as SSD

    device, low = bench.device, BF16
    if bench.smoke:
        tiny = lambda d: bench.build("tiny-mamba2", d)  # noqa: E731
        return [
            ("s6 half", partial(check_s6, device, F16, 1, 20, 5, 4, tiles=S6(16, 4, 8))),
            ("ssd float32", partial(check_ssd, device, F32, 1, 20, 2, 4, 1, 4, tiles=SSD(16, 16))),
            ("loss", partial(check_loss, device, F32, 5, 37)),
            ("mamba2", partial(check_model, device, F32, tiny, 9, tiles=SSD(16, 16))),
        ]
    two = {"num_hidden_layers": 2, "hidden_size": 256, "vocab_size": 512}
    mamba2 = lambda d: bench.build("mamba2-8m", d, **two)  # noqa: E731
    mamba = lambda d: bench.build("mamba-2.8b", d, **two, time_step_rank=16)  # noqa: E731
    warm = [
        (f"compile {shape} B={batch} {scan_gpu.named(tiles)}", partial(compile_only, bench, shape, batch, 2048, tiles))
        for shape in ("mamba2-2.7b", "mamba-2.8b")
        for batch in (8, 1)
        for tiles in scan_gpu.tilings(bench, shape)
    ]
    return [
        ("compile training", partial(compile_training, bench, TRAINING)),
        ("compile training, chunk 128", partial(compile_training, bench, SSD())),
        ("mamba2 layers bf16", partial(check_model, device, low, mamba2, 300)),
        ("ssd bf16 long", partial(check_ssd, device, low, 2, 300, 4, 64, 2, 128)),
        ("ssd bf16 no gradient, chunk 128", partial(check_ssd, device, low, 2, 300, 4, 64, 1, 128, gradients=False)),
        ("ssd bf16 gradient, chunk 128", partial(check_ssd, device, low, 2, 300, 4, 64, 1, 128, tiles=SSD())),
        ("s6 bf16 long", partial(check_s6, device, low, 2, 300, 200, 16)),
        ("mamba2 layers bf16 no gradient", partial(check_model, device, low, mamba2, 300, gradients=False)),
        ("mamba layers bf16", partial(check_model, device, low, mamba, 300)),
        ("ssd float32 long", partial(check_ssd, device, F32, 2, 300, 4, 64, 1, 128)),
        ("s6 float32 long", partial(check_s6, device, F32, 2, 300, 200, 16)),
        ("mamba2 layers float32", partial(check_model, device, F32, mamba2, 300)),
        ("mamba layers float32", partial(check_model, device, F32, mamba, 300)),
        *warm,
        ("loss bf16", partial(check_loss, device, low, 300, 4096)),
        *((f"ssd bf16 n={n}", partial(check_ssd, device, low, 1, n, 4, 64, 1, 64)) for n in (1, 63, 64, 65)),
        *((f"s6 bf16 n={n}", partial(check_s6, device, low, 1, n, 96, 16)) for n in (1, 2, 129)),
        ("s6 bf16 softplus(30)", partial(check_s6, device, low, 2, 130, 64, 16, scale=30.0)),
        ("ssd bf16 softplus(30)", partial(check_ssd, device, low, 2, 130, 4, 64, 1, 128, scale=30.0)),
        ("ssd float32 softplus(30)", partial(check_ssd, device, F32, 2, 130, 4, 64, 1, 128, scale=30.0)),
        ("ssd float16", partial(check_ssd, device, F16, 2, 130, 4, 64, 1, 128)),
        ("s6 float16", partial(check_s6, device, F16, 2, 130, 96, 16)),
        ("s6 float32 odd", partial(check_s6, device, F32, 3, 101, 37, 5)),
        ("ssd float32 odd", partial(check_ssd, device, F32, 3, 101, 6, 24, 3, 20)),
    ]
