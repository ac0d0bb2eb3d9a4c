"""Compiles every Triton kernel of the package for sm_90 through its own host code, in a process of its own.

Prints a JSON object: `checks` → check → None or what failed; `left` → kernels that nothing here compiled.
Each check is a function whose name starts with `check_`. The interpreter must be off.
"""

import importlib
import json
import pkgutil
import sys
import traceback
from itertools import product
from pathlib import Path

import torch

import repflow
from repflow.metrics.flow import FlowMeter
from repflow.metrics.meter import BatchInfo
from repflow.mixers.triton.loss import cross_entropy_in_place
from repflow.models.fastpath.gpu import gpu_blocks
from repflow.models.fastpath.memory import Memory
from tests.mixers.compiler import compiling, launched_kernels

KINDS = (torch.float32, torch.bfloat16, torch.float16)


def empty(*shape, dtype):
    return torch.empty(*shape, dtype=dtype, device="meta")


def run_meter(kinds, *, group, direction=False, width=256, token=70, grid=3):
    """A meter over states of these dtypes, up to where its numbers would go to the CPU."""
    meter = FlowMeter(len(kinds), token, group=group, direction=direction, grid=grid, keep=frozenset({0}))
    meter.begin(BatchInfo((0, 1), (token, token - 5)))
    for state, kind in enumerate(kinds):
        meter.update(state, empty(2, token, width, dtype=kind))
    meter.final_norm(empty(2, token, width, dtype=kinds[-1]))


def check_meters_of_every_mixture():
    """Embedding of one dtype, stream of another; the first group holds both."""
    for embedding, stream in product(KINDS, KINDS):
        run_meter([embedding, *[stream] * 4], group=3)


def check_meters_of_directions():
    run_meter([torch.bfloat16, *[torch.float32] * 2], group=3, direction=True)


def check_meters_ahead():
    """What is compiled ahead, in threads, is all that the whole meter then needs."""
    from repflow.metrics import kernels
    from repflow.metrics.ahead import Ahead, Batch, launches

    def compiled():
        all_kernels = (kernels.depth_kernel, kernels.column_kernel, kernels.product_kernel)
        return [sum(len(cache[0]) for cache in kernel.device_caches.values()) for kernel in all_kernels]

    width, token = 384, 96  # of no other check
    kinds = [torch.bfloat16, *[torch.float32] * 10]
    ahead = Ahead(torch.device("cpu"))
    batch = Batch(2, token, kinds[0], kinds[1], kinds[-1])
    launched = launches(FlowMeter(len(kinds), token, group=3), batch, width)
    before = compiled()
    ahead.start(lambda: launched)
    assert [ahead.wait(*launch) for launch in launched][-1]
    after = compiled()
    assert sum(after) == sum(before) + len(launched), (before, after, len(launched))
    run_meter(kinds, group=3, width=width, token=token, grid=None)
    assert compiled() == after


def check_meters_of_odd_sizes():
    run_meter([torch.bfloat16, *[torch.float32] * 2], group=1, width=100, token=7)


def model(config, dtype, **more):
    from transformers import AutoModel

    with torch.device("meta"):
        return AutoModel.from_config(type(config)(**config.to_dict() | more), dtype=dtype)


def configs():
    from transformers import FalconMambaConfig, Mamba2Config, MambaConfig

    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "state_size": 16, "vocab_size": 32}
    yield MambaConfig(**sizes)
    yield FalconMambaConfig(**sizes)
    yield Mamba2Config(**sizes, head_dim=32, num_heads=4, n_groups=2)


def check_blocks_of_every_dtype():
    """Forward passes as `repflow.load` runs them: the first block meets the embedding, the second the stream."""
    for config in configs():
        for dtype, wide in product(KINDS, (True, False)):
            network = model(config, dtype, residual_in_fp32=wide, num_hidden_layers=2).eval()
            with gpu_blocks(network) as blocks, torch.no_grad():
                assert len(blocks) == 2, blocks
                for tokens in (40, 300):  # one chunk, several
                    network(torch.zeros(1, tokens, dtype=torch.long, device="meta"), use_cache=False)


def check_single_tokens():
    """Decoding: the prompt leaves a state, a token goes on from it."""
    for config in configs():
        for dtype, wide in product(KINDS, (True, False)):
            network = model(config, dtype, residual_in_fp32=wide).eval()
            with torch.no_grad():
                memory = Memory()
                for tokens in (300, 1):
                    hidden = empty(2, tokens, config.hidden_size, dtype=dtype)
                    memory.run(network.layers[0].mixer, hidden)


def check_gradients():
    for config in configs():
        for dtype, wide in ((torch.float32, True), (torch.bfloat16, True), (torch.bfloat16, False)):
            network = model(config, dtype, residual_in_fp32=wide).train()
            with gpu_blocks(network):
                ids = torch.zeros(1, 300, dtype=torch.long, device="meta")
                output = network(ids, use_cache=False).last_hidden_state
                output.sum().backward()


def check_delta_rule():
    from repflow.mixers.triton.delta import delta_scan_triton

    for dtype, decay, dim in (
        (torch.float32, 1, 16),
        (torch.float16, 1, 16),
        (torch.bfloat16, 2, 64),
        (torch.float32, 0, 16),
    ):
        q, v, beta = (empty(1, 200, *shape, dtype=dtype) for shape in ((2, dim), (4, dim), (4,)))
        gate = None if not decay else empty(1, 200, 4, *([dim] if decay == 2 else []), dtype=torch.float32)
        initial = empty(1, 4, dim, dim, dtype=torch.float32) if decay else None
        with torch.no_grad():
            delta_scan_triton(q, q, v, beta, gate, initial)


def check_delta_layers():
    """Of the Qwen3-Next shape, whose tiles fill shared memory."""
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    from repflow.models.fastpath.delta_layer import gated_delta_layer, layer_obstacle

    with torch.device("meta"), torch.no_grad():
        layer = Qwen3NextGatedDeltaNet(Qwen3NextConfig(num_hidden_layers=4), 0).to(torch.bfloat16)
        assert layer_obstacle(layer) is None
        for batch in (8, 1):
            gated_delta_layer(layer, empty(batch, 200, layer.hidden_size, dtype=torch.bfloat16))


def check_loss():
    for dtype in KINDS:
        logits = empty(3, 5000, dtype=dtype).requires_grad_()
        cross_entropy_in_place(logits * 1, torch.zeros(3, dtype=torch.long, device="meta")).backward()


def block_weights(replicas=3, width=64, state=16, rank=4):
    from repflow.mixers.triton.replicas import BlockWeights

    channels = 2 * width
    shapes = [(width,), (2 * channels, width), (channels, 4), (channels,), (rank + 2 * state, channels)]
    shapes += [(channels, rank), (channels,), (channels, state), (channels,), (width, channels)]
    return BlockWeights(*(empty(replicas, *shape, dtype=torch.float32).requires_grad_() for shape in shapes))


def check_row_blocks():
    """Blocks of several models at once: states and tokens that fill tiles and that do not, two ranks, gradients."""
    from repflow.mixers.triton.replicas import row_block

    for half, state, width, tokens in (
        (torch.bfloat16, 16, 64, 32),
        (torch.bfloat16, 18, 40, 30),
        (torch.float32, 5, 40, 30),
        (torch.bfloat16, 64, 32, 32),
        (torch.float32, 32, 64, 8),
    ):
        x = empty(3 * 2, tokens, width, dtype=torch.float32).requires_grad_()
        weights = block_weights(width=width, state=state, rank=width // 16)
        row_block(x, weights, 1e-5, half).sum().backward()


def check_row_losses():
    from repflow.mixers.triton.loss import row_losses_in_place

    for dtype in KINDS:
        logits = empty(3, 5000, dtype=dtype).requires_grad_()
        row_losses_in_place(logits * 1, torch.zeros(3, dtype=torch.long, device="meta"))[0].sum().backward()


def check_adamw():
    from repflow.mixers.triton.optimiser import Betas, adamw_step

    value, slope, mean, square = (empty(3, 50, 7, dtype=torch.float32) for _ in range(4))
    each = {name: empty(3, dtype=torch.float32) for name in ("rates", "scales")}
    corrections = empty(2, dtype=torch.float32)
    for decay in (0.0, 0.1):
        adamw_step(
            value, slope, mean, square, **each, corrections=corrections, decay=decay, betas=Betas(0.9, 0.95, 1e-8)
        )


def check_lines():
    from repflow.mixers.triton.lines import line_scan

    for kind, lines in ((torch.float32, 128), (torch.bfloat16, 5)):
        decay, entry = (empty(2, 70, lines, dtype=kind).requires_grad_() for _ in range(2))
        line_scan(decay, entry).sum().backward()


def check_weighted_means():
    from repflow.mixers.triton.wkv import weighted_mean

    for kind, channels in ((torch.float32, 64), (torch.bfloat16, 5)):
        k, v = (empty(2, 70, channels, dtype=kind).requires_grad_() for kind in (torch.float32, kind))
        rate, bonus = (empty(channels, dtype=torch.float32).requires_grad_() for _ in range(2))
        weighted_mean(k, v, rate, bonus).sum().backward()


def check_long_filters():
    """Rows that fill tiles and that do not, with all that may follow a filter and without."""
    from repflow.mixers.triton.long_filter import long_filter

    for rows, tokens, channels, stream, half in (
        (64, 1024, 128, torch.float32, torch.bfloat16),
        (5, 1025, 32, torch.float32, torch.float16),
        (2, 70, 5, torch.bfloat16, None),
    ):
        u = empty(rows, tokens, channels, dtype=stream).requires_grad_()
        taps = empty(channels, tokens if half else 20, dtype=torch.float32).requires_grad_()
        more = {}
        if half is not None:
            more = {"skip": empty(channels, dtype=torch.float32).requires_grad_(), "gelu": True, "kind": half}
            more["scale"] = empty(rows, channels, dtype=half)
        long_filter(u, taps, **more).sum().backward()


def check_layer_norms():
    from repflow.mixers.triton.layer_norm import LayerNorm

    for stream, width, biased in ((torch.float32, 32, True), (torch.bfloat16, 256, False), (torch.float16, 5, True)):
        norm = LayerNorm(width, bias=biased, device="meta")
        norm(empty(4, 50, width, dtype=stream).requires_grad_()).sum().backward()


def check_sums_of_weights():
    from repflow.models.weights.block_sums import first_launch, on_gpu

    kernel, grid, arguments, options = first_launch()
    kernel.run(*arguments, grid=grid, warmup=True, **options)
    ahead = sum(len(cache[0]) for cache in kernel.device_caches.values())
    on_gpu([torch.zeros(1000, dtype=torch.uint8), torch.zeros(7, dtype=torch.uint8)])
    on_gpu([torch.zeros(1000, dtype=torch.uint8)])
    assert sum(len(cache[0]) for cache in kernel.device_caches.values()) == ahead == 1


def kernel_modules():
    """Every module of the package that defines kernels."""
    modules = []
    for info in pkgutil.walk_packages(repflow.__path__, "repflow."):
        spec = info.module_finder.find_spec(info.name, None)
        if spec.origin and "@triton.jit" in Path(spec.origin).read_text(encoding="utf-8"):
            modules.append(importlib.import_module(info.name))
    return modules


def main():
    torch.set_num_threads(1)
    outcome = {}
    with compiling() as binaries:
        for name, check in list(globals().items()):
            if name.startswith("check_"):
                try:
                    check()
                    outcome[name] = None
                except Exception:  # noqa: BLE001 - reported by the test
                    outcome[name] = traceback.format_exc(limit=-6)[-3000:]
    left = sorted(launched_kernels(*kernel_modules()) - binaries.keys())
    json.dump({"checks": outcome, "left": left, "compiled": sum(map(len, binaries.values()))}, sys.stdout)


if __name__ == "__main__":
    main()
