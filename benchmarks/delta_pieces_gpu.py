"""Where do the Triton kernels of the delta rule go wrong on a GPU? One kernel at a time, in processes of their own.

    python benchmarks/delta_pieces_gpu.py --json delta_pieces.json              (on a GPU, all pieces side by side)
    TRITON_INTERPRET=1 python benchmarks/delta_pieces_gpu.py --smoke            (anywhere, tiny sizes)

`pairs` compares what the first kernels leave (running sums, products, inverse) with the same in float64; `states` gives
the last kernel exact inputs and compares outputs and last state, for several ways to cut it; `whole` is all of them;
`nan` the same with a token that is not finite. A piece that crashes the GPU's context does so alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

CHUNK = 64
TILES = ((64, 4, 2), (32, 4, 2), (16, 4, 2))
"""Values of a program, warps, stages."""


def error(got, wanted) -> float:
    """Relative, by the norm; what is not finite shows."""
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


def inputs(dtype, device, smoke, decay="head", size=128, heads=4):
    """Queries, keys, values, strengths, log decays (of heads, of keys or none) and a first state."""
    batch, tokens, heads, size = (1, 70, 2, 16) if smoke else (2, 330, heads, size)
    key_heads = heads // 2
    draws = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=draws)

    q, k = (torch.nn.functional.normalize(draw(batch, tokens, key_heads, size), dim=-1) for _ in range(2))
    v, beta = draw(batch, tokens, heads, size), draw(batch, tokens, heads).sigmoid()
    shape = {"head": (heads,), "key": (heads, size), "none": None}[decay]
    gate = None if shape is None else -torch.nn.functional.softplus(draw(batch, tokens, *shape) - 3).to(device)
    first = draw(batch, heads, size, size)
    q, k, v, beta = (part.to(device=device, dtype=dtype) for part in (q, k, v, beta))
    return q, k, v, beta, gate, first.to(device)


def exact_pairs(q, k, beta, gate):
    """Running sums (batch, chunk, head, Q), products of queries and keys, and the inverse, (…, Q, Q), in float64."""
    share, tokens = beta.shape[2] // k.shape[2], beta.shape[1]

    def chunked(part):
        part = torch.nn.functional.pad(part.double(), (0,) * (2 * (part.ndim - 2)) + (0, -tokens % CHUNK))
        return part.unflatten(1, (-1, CHUNK)).transpose(2, 3)  # batch, chunk, head, token, …

    q, k = (chunked(part.repeat_interleave(share, 2)) for part in (q, k))
    beta, sums = chunked(beta), chunked(gate).cumsum(-1)
    fade = (sums[..., :, None] - sums[..., None, :]).tril().exp().tril()
    lower = (beta[..., None] * (k @ k.mT) * fade).tril(-1)
    inverse = torch.linalg.inv(torch.eye(CHUNK, device=k.device).double() + lower) * beta[..., None, :]
    return sums, ((q @ k.mT) * fade).tril(), inverse.tril()


def run(piece, dtype, smoke):
    """Errors of one piece."""
    from repflow.mixers.scan.forms import delta_scan
    from repflow.mixers.triton import delta

    device = "cpu" if smoke else "cuda"
    kind, *words = piece.split(":")
    options = {"decay": words[0], "size": int(words[1]), "heads": int(words[2])} if kind in ("whole", "nan") else {}
    q, k, v, beta, gate, first = inputs(dtype, device, smoke, **options)
    wide = [None if part is None else part.double() for part in (q, k, v, beta, gate)]
    wanted, last = delta_scan(*wide[:4], log_decay=wide[4], initial=first.double(), return_final=True, path="reference")
    if not options:
        sums, seen, inverse = exact_pairs(q, k, beta, gate)
    with torch.no_grad():
        if piece == "pairs":
            made = delta._head_chunks(q, k, v, delta._plain_gates(beta, gate), decay=True, layer=False)
            lower = torch.ones(CHUNK, CHUNK, device=device).tril().bool()
            return {
                "sums": error(made.hi.double() + made.lo.double(), sums),
                "seen": error(made.seen.where(lower, 0), seen),
                "inverse": error(made.inverse.where(lower, 0), inverse),
                "spoiled": int(made.spoiled.abs().sum()),
            }
        if kind == "states":
            product = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
            hi = sums.float()
            lo = (sums - hi.double()).float()
            flags = torch.zeros(v.shape[0], v.shape[2], dtype=torch.int32, device=device)
            exact = delta.Chunks(inverse.to(product).contiguous(), seen.to(product).contiguous(), hi.contiguous(),
                                 lo.contiguous(), hi.contiguous(), flags, 1)  # fmt: skip
            tiles = delta.Tiles(*(int(word) for word in words[0].split(",")))
            y, final = delta._states(q, k, v, exact, first.mT.contiguous(), tiles)
            return {"y": error(y, wanted), "state": error(final.mT, last), "spoiled": int(flags.abs().sum())}
        if kind == "nan":
            clean = delta_scan(q, k, v, beta, log_decay=gate, path="triton")
            v[0, 40, 0, 0] = float("nan")
            got = delta_scan(q, k, v, beta, log_decay=gate, path="triton")
            return {
                "before": bool((got[:, :40] == clean[:, :40]).all()),
                "after": bool(got[0, 40:, 0, 0].isnan().all()),
            }
        y, final = delta_scan(q, k, v, beta, log_decay=gate, initial=first, return_final=True, path="triton")
        return {"y": error(y, wanted), "state": error(final, last)}


def main():
    """All pieces, or one of them in this process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--piece")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32", "float16"])
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, float32 alone")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.piece:
        print(json.dumps(run(options.piece, getattr(torch, options.dtype), options.smoke)))
        return
    pieces = ["pairs", *(f"states:{','.join(map(str, tiles))}" for tiles in TILES)]
    pieces += [f"whole:{decay}:{size}:4" for decay in ("head", "none", "key") for size in (128, 64, 16)]
    pieces += ["whole:head:128:64", "nan:head:128:4", "nan:key:128:4"]
    cases = [
        (piece, dtype) for dtype in (["float32"] if options.smoke else ["bfloat16", "float32"]) for piece in pieces
    ]

    def one(case):
        words = [sys.executable, __file__, "--piece", case[0], "--dtype", case[1], *["--smoke"] * options.smoke]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            return {"failed": done.stderr.strip().splitlines()[-1][:300], "trace": done.stderr[-1500:]}
        return json.loads(done.stdout.splitlines()[-1])

    with ThreadPoolExecutor(2 if options.smoke else 8) as pool:
        rows = [
            {"piece": case[0], "dtype": case[1], **said} for case, said in zip(cases, pool.map(one, cases), strict=True)
        ]
    for row in rows:
        print(
            "  ".join(
                f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
                for name, value in row.items()
                if name != "trace"
            )
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
