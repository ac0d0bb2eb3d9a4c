"""Long causal filters on a GPU, forward and back: by products with a triangle of taps, and by Fourier transform.

    python benchmarks/long_filter.py [--tiles] [--out FOLDER]

First the products are held against float64: outputs and gradients of a filter with skip and GELU. Then both forms are
timed in turn at several numbers of tokens and taps, 64 rows of 128 channels. `--tiles` times further sizes of the
products' tiles. With `--device cpu --rows 2 --channels 4 --tokens 32` it runs anywhere, to see that it works; there
both forms are the transform, and nothing is checked.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from repflow.mixers import diagonal_ssm
from repflow.mixers.triton.long_filter import Tiles, filter_obstacle, long_filter

LARGEST = 5e-3
"""Relative error above which the products are called wrong: they are in TF32."""
VARIANTS = (Tiles(), Tiles(step=32), Tiles(tokens=64), Tiles(pair=128), Tiles(turn=64), Tiles(rows=128))


def by_transform(u: Tensor, taps: Tensor) -> Tensor:
    """Filter as rows outside of half precision go."""
    with torch.autocast(u.device.type, enabled=False):
        return diagonal_ssm.long_convolution(u, functional.pad(taps, (0, u.shape[1] - taps.shape[1])))


def served(options: argparse.Namespace) -> bool:
    """Whether the kernels take filters on this device."""
    with torch.autocast(options.device, dtype=torch.bfloat16):
        return filter_obstacle(torch.zeros(1, 1, 1, device=options.device)) is None


def worst_error(options: argparse.Namespace) -> float:
    """Largest error of the products' output and gradients against float64."""
    torch.manual_seed(0)
    worst = 0.0
    for tokens, taps in ((300, 300), (1024, 1024), (1025, 64)):
        leaves = [torch.randn(*shape, device=options.device) for shape in ((5, tokens, 40), (40, taps), (40,))]
        leaves[1] /= taps**0.5
        one, wide = ([part.to(kind).requires_grad_() for part in leaves] for kind in (torch.float32, torch.float64))
        true = functional.gelu(by_transform(wide[0], wide[1]) + wide[2] * wide[0])
        got = long_filter(*one[:2], skip=one[2], gelu=True)
        slope = torch.randn_like(one[0])
        slopes = torch.autograd.grad(got, one, slope), torch.autograd.grad(true, wide, slope.double())
        pairs = [(got, true), *zip(*slopes, strict=True)]
        worst = max(worst, *(float((a.detach().double() - b.detach()).norm() / b.detach().norm()) for a, b in pairs))
    return worst


def milliseconds(run: Callable[[Tensor, Tensor], Tensor], tokens: int, taps: int, options: argparse.Namespace) -> float:
    """Median of a forward and backward pass."""
    u = torch.randn(options.rows, tokens, options.channels, device=options.device, requires_grad=True)
    kernel = torch.randn(options.channels, taps, device=options.device, requires_grad=True)
    slope = torch.randn_like(u)
    both = replayed(lambda: torch.autograd.grad(run(u, kernel), (u, kernel), slope), options)
    times = []
    for _ in range(options.steps + 3):
        if options.device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(5):
            both()
        if options.device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / 5)
    return 1e3 * statistics.median(times[3:])


def replayed(call: Callable[[], Any], options: argparse.Namespace) -> Callable[[], Any]:
    """A call as a recorded graph, as training has it: launch by launch a filter takes a millisecond of Python."""
    if options.device != "cuda":
        return call
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def main() -> None:
    """Check, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("rows", 64), ("channels", 128), ("steps", 7)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--tokens", default="256,1024,1025,2048", help="of a row, comma separated")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiles", action="store_true", help="time further sizes of tiles")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    there = served(options)
    error = worst_error(options) if there else None
    if error is None:
        print("the products cannot run here: nothing is checked, and both forms are the transform", flush=True)
    else:
        print(f"largest relative error {error:.1e}: {'right' if error < LARGEST else 'WRONG'}", flush=True)
    products: dict[str, Any] = {"products": long_filter if there else by_transform}
    if options.tiles and there:
        products |= {str(tuple(tiles)): lambda u, k, tiles=tiles: long_filter(u, k, tiles=tiles) for tiles in VARIANTS}
    rows = []
    print("tokens | taps | form | ms | transform over it")
    for tokens in map(int, options.tokens.split(",")):
        for taps in dict.fromkeys((min(64, tokens), tokens)):
            slow = milliseconds(by_transform, tokens, taps, options)
            rows.append({"tokens": tokens, "taps": taps, "form": "transform", "ms": slow})
            for name, run in products.items():
                each = milliseconds(run, tokens, taps, options)
                rows.append({"tokens": tokens, "taps": taps, "form": name, "ms": each})
                print(f"{tokens} | {taps} | {name} | {each:.3f} | {slow / each:.2f}x", flush=True)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "long_filter.json").write_text(json.dumps({"error": error, "rows": rows}, indent=1))
    raise SystemExit(error is not None and not error < LARGEST)


if __name__ == "__main__":
    main()
