"""Triton scans on a GPU: checks against float64, then the speed of whole models and of a training step.

    python benchmarks/scan_gpu.py                          # everything, about four minutes on an H200
    python benchmarks/scan_gpu.py --rows checks m1b1       # some of it
    python benchmarks/scan_gpu.py --cpu-smoke              # tiny shapes in Triton's interpreter: does the script work?

Rates are 2 · all parameters · tokens / time: base model, random weights, median of 10 after warm-up. Each row stands
alone: one that fails or runs out of its time says so, and the next one runs. Results also go to --json (default:
scan_gpu.json under $OUT, if set).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from functools import partial

from scan_gpu_bench import Bench, parameters

LIMITS = {"checks": 140, "m2b8": 60, "m1b8": 60, "m1b1": 45, "train": 90, "m2b1": 30, "tb8": 30, "equal": 60,
"growth": 60}  # fmt: skip
"""Seconds a row may take."""


# ---------------------------------------------------------------- checks
def run_plan(bench, index):
    """One check: its name, its errors, and those beyond their limits."""
    import scan_gpu_checks as c

    name, call = c.plans(bench)[index]
    try:
        errors, wrong = call()
    except Exception as exception:  # noqa: BLE001 - the other checks must run
        traceback.print_exc(limit=6)
        errors, wrong = {}, {"raised": f"{type(exception).__name__}: {str(exception)[:300]}"}
    return name, errors, wrong


def apart(index):
    """A check in a process of its own: a broken kernel breaks nothing else, and kernels compile side by side."""
    command = [sys.executable, __file__, "--plan", str(index)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=80, check=False)
    except subprocess.TimeoutExpired:
        return f"check {index}", {}, {"raised": "not done after 80 s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return f"check {index}", {}, {"raised": done.stderr[-600:]}
    name, errors, wrong = json.loads(lines[-1])
    return name, errors, {**wrong, "trace": done.stderr[-900:]} if "raised" in wrong else wrong


def row_checks(bench):
    import concurrent.futures as futures

    import scan_gpu_checks as c

    count, failed = len(c.plans(bench)), 0
    with futures.ThreadPoolExecutor(1 if bench.smoke else 12) as pool:
        ask = (lambda i: run_plan(bench, i)) if bench.smoke else apart
        for job in futures.as_completed([pool.submit(ask, i) for i in range(count)]):
            name, errors, wrong = job.result()
            failed += bool(wrong)
            worst = max(errors, key=lambda k: errors[k]) if errors else ""
            largest = f"{worst} {errors.get(worst, 0.0):.1e}"
            more = {"wrong": wrong} if wrong else {}
            bench.say("check", result="FAIL" if wrong else "PASS", name=name, worst=largest, **more)
    bench.say("checks", passed=count - failed, failed=failed)


def row_equal(bench):
    """Two layers of the full widths: transformers' own float32 path against its own bf16 and ours."""
    import scan_gpu_checks as c

    from repflow.models.fastpath.gpu import gpu_blocks

    torch = bench.torch
    for shape in ("mamba2-2.7b", "mamba-2.8b"):
        bench.torch.manual_seed(1)
        wide = c.lively(bench.build(shape, c.F32, num_hidden_layers=2))
        ids = bench.ids(wide, 1, 20 if bench.smoke else 512)
        with torch.no_grad():
            want = wide(ids, use_cache=False).last_hidden_state
            low = wide.to(bench.dtype)
            theirs = c.error(low(ids, use_cache=False).last_hidden_state, want)
            with gpu_blocks(low, tiny_tiles(bench, shape)):
                ours = c.error(low(ids, use_cache=False).last_hidden_state, want)
        bench.say("equal", shape=shape, ours=ours, transformers=theirs)


# ---------------------------------------------------------------- whole models
def tiny_tiles(bench, shape):
    from repflow.mixers.triton.s6 import Tiles as S6
    from repflow.mixers.triton.ssd import Tiles as SSD

    if not bench.smoke:
        return None
    return SSD(16, 16) if "mamba2" in shape else S6(16, 4, 8)


def tilings(bench, shape):
    """Ways to cut the scan that a row tries; None is what a user gets."""
    from repflow.mixers.triton.s6 import Tiles as S6
    from repflow.mixers.triton.ssd import Tiles as SSD

    if bench.smoke:
        return [tiny_tiles(bench, shape)]
    if "mamba2" in shape:
        return [None, SSD(chunk=128, rows=128, warps=8), SSD(chunk=64, rows=64)]
    return [None, S6(block=64, programs=2112), S6(block=128, programs=1056), S6(block=32, programs=4224)]


def named(tiles):
    return "default" if tiles is None else tuple(tiles)


def measure(bench, row, shape, batch, tokens, *, graph=False):
    """Time each tiling shortly, then the best one in full."""
    from repflow.models.fastpath.gpu import gpu_blocks

    torch, model = bench.torch, bench.model(shape)
    ids = bench.ids(model, batch, tokens)
    work = 2 * parameters(model) * ids.numel()

    def call():
        with torch.no_grad():
            return model(ids, use_cache=False).last_hidden_state

    best = None
    for tiles in tilings(bench, shape):
        try:
            with gpu_blocks(model, tiles):
                seconds, memory = bench.time(call, 3)
        except TimeoutError:
            raise
        except Exception as exception:  # noqa: BLE001 - another tiling may work
            bench.say(row, tiles=tiles, failed=f"{type(exception).__name__}: {str(exception)[:200]}")
            continue
        bench.say(row, tiles=named(tiles), seconds=seconds, tflops=work / seconds / 1e12, gib=memory)
        best = min(best or (seconds, tiles), (seconds, tiles), key=lambda pair: pair[0])
    if best is None:
        return
    with gpu_blocks(model, best[1]):
        seconds, memory = bench.time(call)
        finite = bool(torch.isfinite(call()).all())
        bench.say(row, RESULT=shape, batch=batch, tokens=tokens, seconds=seconds, tflops=work / seconds / 1e12,
        gib=memory,
                  finite=finite, tiles=named(best[1]))  # fmt: skip
        profile(bench, f"{shape} B={batch}", call)
        reference = call()
        if graph and not bench.smoke:
            seconds = captured(bench, call)
            bench.say(row, RESULT=shape + " as a CUDA graph", seconds=seconds, tflops=work / seconds / 1e12)

    as_loaded(bench, row, shape, model, call, work, reference)


def as_loaded(bench, row, shape, model, call, work, reference):
    """The same model as `repflow.load` runs it: layer by layer, with every hook, held against transformers' first."""
    from scan_gpu_checks import error

    from repflow.models.fastpath import scans as fastpath

    scans = fastpath.install(model, list(model.layers), "auto")
    with bench.torch.inference_mode():
        with scans.verifying():
            model(bench.ids(model, 1, 8), use_cache=False)
        scans.forget()
        seconds, memory = bench.time(call)
        bench.say(row, RESULT=f"{shape} as loaded", seconds=seconds, tflops=work / seconds / 1e12, gib=memory,
                  off=error(call(), reference), ran=scans.facts())  # fmt: skip
    bench.free()


def profile(bench, name, call):
    """Where the time goes: kernels of one call by their share."""
    torch = bench.torch
    if bench.smoke:
        return
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)
    kernels = {e.key[:90]: (round(e.self_device_time_total / 1000, 3), e.count) for e in rows[:18]}
    bench.say("profile", what=name, total_ms=sum(e.self_device_time_total for e in rows) / 1000)
    for key, (milliseconds, count) in kernels.items():
        print(f"    {milliseconds:9.3f} ms {count:5d}x  {key}", flush=True)
    bench.results.append({"row": "kernels", "what": name, "milliseconds_and_count": kernels})


def captured(bench, call):
    """Median seconds of a call replayed as a CUDA graph."""
    torch = bench.torch
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return bench.time(graph.replay)[0]


def row_m2b8(bench):
    measure(bench, "m2b8", "mamba2-2.7b", *((2, 9) if bench.smoke else (8, 2048)))


def row_tb8(bench):
    """A Transformer of the same size beside them, with torch's attention."""
    torch, model = bench.torch, bench.model("pythia-2.8b")
    ids = bench.ids(model, *((2, 9) if bench.smoke else (8, 2048)))
    work = 2 * parameters(model) * ids.numel()
    with torch.no_grad():
        seconds, memory = bench.time(lambda: model(ids, use_cache=False))
    bench.say("tb8", RESULT="pythia-2.8b", batch=ids.shape[0], tokens=ids.shape[1], seconds=seconds,
              tflops=work / seconds / 1e12, gib=memory)  # fmt: skip


def row_m2b1(bench):
    measure(bench, "m2b1", "mamba2-2.7b", *((1, 9) if bench.smoke else (1, 2048)), graph=True)


def row_m1b8(bench):
    measure(bench, "m1b8", "mamba-2.8b", *((2, 9) if bench.smoke else (8, 2048)))


def row_m1b1(bench):
    measure(bench, "m1b1", "mamba-2.8b", *((1, 9) if bench.smoke else (1, 2048)), graph=True)


# ---------------------------------------------------------------- training
def trainer(bench, tiles, fused, capturable=False, layers=None):
    """A step of next-token training on one fixed batch, and its numbers."""
    from repflow.mixers.triton.loss import cross_entropy_in_place

    torch = bench.torch
    torch.manual_seed(0)
    changes = {} if layers is None else {"num_hidden_layers": layers}
    model = bench.build("mamba2-8m", torch.float32, head=True, **changes).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, **({} if bench.smoke else {"fused": True, "capturable": capturable})
    )
    ids = torch.randint(0, model.config.vocab_size, (2, 10) if bench.smoke else (128, 513), device=bench.device)
    given, target = ids[:, :-1].contiguous(), ids[:, 1:].flatten()
    precision = contextlib.nullcontext if bench.smoke else lambda: torch.autocast("cuda", dtype=torch.bfloat16)

    def step():
        with precision():
            states = model.backbone(given, use_cache=False).last_hidden_state
            logits = model.lm_head(states).flatten(0, 1)
        loss = (
            cross_entropy_in_place(logits, target)
            if fused
            else torch.nn.functional.cross_entropy(logits.float(), target)
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return model, step, given.numel(), tiles


def row_train(bench):
    from repflow.mixers.triton.ssd import TRAINING
    from repflow.mixers.triton.ssd import Tiles as SSD
    from repflow.models.fastpath.gpu import gpu_blocks

    tilings = [("chunk 64", TRAINING, True), ("chunk 128", SSD(), True), ("chunk 64, torch's loss", TRAINING, False)]
    if bench.smoke:
        tilings = [("chunk 16", SSD(16, 16), True)]
    best = None
    for name, tiles, fused in tilings:
        try:
            model, step, count, _ = trainer(bench, tiles, fused)
            with gpu_blocks(model, tiles):
                first = float(step())
                seconds, memory = bench.time(step)
                last = float(step())
        except TimeoutError:
            raise
        except Exception as exception:  # noqa: BLE001 - another variant may work
            traceback.print_exc(limit=4)
            bench.say("train", variant=name, failed=f"{type(exception).__name__}: {str(exception)[:200]}")
            continue
        bench.say("train", RESULT=name, parameters=parameters(model), seconds=seconds, tokens_per_s=count / seconds,
        gib=memory,
                  loss_first=first, loss_last=last)  # fmt: skip
        best = min(best or (seconds, tiles, fused), (seconds, tiles, fused), key=lambda found: found[0])
        model = step = None
    if best is not None and not bench.smoke:
        model, step, count, _ = trainer(bench, best[1], best[2], capturable=True)
        with gpu_blocks(model, best[1]):
            step()
            profile(bench, "training step", step)
            seconds = captured(bench, step)
        bench.say("train", RESULT="as a CUDA graph", seconds=seconds, tokens_per_s=count / seconds)


# ---------------------------------------------------------------- growth
def row_growth(bench):
    from repflow.models.fastpath.gpu import gpu_blocks

    torch = bench.torch
    for shape in ("mamba-2.8b", "mamba2-2.7b", "pythia-2.8b"):
        model = None  # the last one must go before the next comes
        model = bench.model(shape)
        for tokens in (8, 16) if bench.smoke else [1024 << k for k in range(6)]:
            ids = bench.ids(model, 1, tokens)
            try:
                with torch.no_grad(), gpu_blocks(model, tiny_tiles(bench, shape)):
                    seconds, memory = bench.time(partial(model, ids, use_cache=False), 3, warm=1)
            except TimeoutError:
                raise
            except Exception as exception:  # noqa: BLE001 - out of memory at one length is a result
                bench.say(
                    "growth", shape=shape, tokens=tokens, failed=f"{type(exception).__name__}: {str(exception)[:120]}"
                )
                continue
            bench.say(
                "growth", shape=shape, tokens=tokens, seconds=seconds, us_per_token=1e6 * seconds / tokens, gib=memory
            )


ROWS = {
    "checks": row_checks, "m2b8": row_m2b8, "m1b8": row_m1b8, "m1b1": row_m1b1, "train": row_train,
    "m2b1": row_m2b1, "tb8": row_tb8, "growth": row_growth, "equal": row_equal,
}  # fmt: skip
ORDER = ["checks", "train", "m2b8", "m2b1", "m1b8", "m1b1", "tb8", "growth", "equal"]


def main():
    """Run the rows in order of importance, each within its own time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ORDER, default=ORDER)
    parser.add_argument("--json", default=os.environ.get("OUT") and f"{os.environ['OUT']}/scan_gpu.json")
    parser.add_argument("--cpu-smoke", action="store_true", help="tiny shapes on the CPU, in Triton's interpreter")
    parser.add_argument("--plan", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cpu_smoke:
        os.environ["TRITON_INTERPRET"] = "1"
    bench = Bench(args.cpu_smoke, None if args.plan is not None else args.json)
    if args.plan is not None:
        print(json.dumps(run_plan(bench, args.plan)), flush=True)
        return
    start = time.perf_counter()
    torch = bench.torch
    if not args.cpu_smoke:
        bench.say("machine", gpu=torch.cuda.get_device_name(), torch=torch.__version__)

    def late(*_):
        raise TimeoutError("this row's time is up")

    signal.signal(signal.SIGALRM, late)
    failures = 0
    for row in args.rows:
        signal.alarm(LIMITS[row] * (10 if args.cpu_smoke else 1))
        began = time.perf_counter()
        try:
            ROWS[row](bench)
        except Exception as exception:  # noqa: BLE001 - the other rows must run
            failures += 1
            traceback.print_exc(limit=6)
            bench.say(row, failed=f"{type(exception).__name__}: {str(exception)[:300]}")
        finally:
            signal.alarm(0)
            if row in ("train", "equal", "checks") and not args.cpu_smoke:
                torch.cuda.empty_cache()
        bench.say("took", what=row, seconds=round(time.perf_counter() - began, 1))
    bench.say("end", seconds=round(time.perf_counter() - start, 1), failures=failures)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
