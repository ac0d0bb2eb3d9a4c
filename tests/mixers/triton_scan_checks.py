"""The Triton scans against the sequential reference in float64, in a process of its own.

Run with TRITON_INTERPRET=1, which Triton reads when it is imported. Prints a JSON object: check → None or what failed.
Each check is a function of this module whose name starts with `check_`; test_triton_scan.py reports them one by one.
"""

import copy
import math
from functools import partial
from itertools import cycle

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F

from repflow.core.errors import InputError
from repflow.mixers import build
from repflow.mixers import ssd as ssd_mixer
from repflow.mixers.rwkv4 import RWKV4
from repflow.mixers.scan import chunked
from repflow.mixers.scan import forms as scan
from repflow.mixers.scan.preference import prefer
from repflow.mixers.scan.reference import recurrence
from repflow.mixers.transition import Transition
from repflow.mixers.triton import block, layer_norm, lines, long_filter, wkv
from repflow.mixers.triton import delta as triton_delta
from repflow.mixers.triton import launch as triton_launch
from repflow.mixers.triton import s6 as triton_s6
from repflow.mixers.triton import ssd as triton_ssd
from repflow.mixers.triton.block import causal_conv_silu, norm_backward, norm_forward, rms_norm
from repflow.mixers.triton.loss import cross_entropy_in_place
from repflow.mixers.triton.mamba2 import Shape, Weights, mamba2_inner
from repflow.mixers.triton.replicas import BlockWeights, row_block
from repflow.mixers.triton.row_scan import Sizes, row_scan, row_scan_back
from repflow.models.fastpath.gpu import gpu_blocks
from repflow.models.fastpath.memory import Memory
from tests.interpreter import run_named

S6 = triton_s6.Tiles(block=16, programs=4, least=8)
SSD = triton_ssd.Tiles(chunk=16, rows=16)
triton_s6.BACK = triton_s6.Back(block=16, each=2, span=8, programs=4)
block.SPAN = 8
KINDS = (torch.float32, torch.float64)


def error(got, want):
    """Of numbers that must be finite; of what a bad token leaves alone too, as products round otherwise beside one."""
    assert torch.isfinite(got).all(), "not finite"
    return float((got.detach().double() - want.detach()).norm() / want.detach().norm().clamp(min=1e-30))


def hold(inputs, run, reference, limit):
    """Outputs and gradients of run against reference, whose inputs are the same numbers in float64."""
    leaves = {name: v.detach().clone().requires_grad_() for name, v in inputs.items()}
    wide = {name: v.detach().double().requires_grad_() for name, v in inputs.items()}
    got, want = run(**leaves), reference(**wide)
    # rounded as autograd hands them on
    weights = [torch.randn(w.shape).to(g.dtype).double() for g, w in zip(got, want, strict=True)]
    gradients = torch.autograd.grad(
        sum((g.double() * w).sum() for g, w in zip(got, weights, strict=True)), list(leaves.values())
    )
    true = torch.autograd.grad(sum((g * w).sum() for g, w in zip(want, weights, strict=True)), list(wide.values()))
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert error(g, w) < limit, f"output {i}: {error(g, w):.1e}"
    for name, g, w in zip(inputs, gradients, true, strict=True):
        assert error(g, w) < 4 * limit, f"gradient of {name}: {error(g, w):.1e}"


def s6_case(
    batch=2, tokens=19, channels=5, state=3, *, dtype=torch.float32, scale=1.0, limit=2e-6, tiles=S6, change=None
):
    inputs = {
        "x": torch.randn(batch, tokens, channels).to(dtype),
        "delta": (torch.randn(batch, tokens, channels) * scale).to(dtype),
        "A": -torch.rand(channels, state) * 3 - 0.1,
        "B": torch.randn(batch, tokens, state).to(dtype),
        "C": torch.randn(batch, tokens, state).to(dtype),
        "D": torch.randn(channels),
        "initial": torch.randn(batch, channels, state),
        "z": torch.randn(batch, tokens, channels).to(dtype),
        "bias": torch.randn(channels),
    }

    def run(x, delta, A, B, C, D, initial, z, bias):
        if change is not None:
            x, delta, z = change(x), change(delta), change(z)
        return triton_s6.selective_scan_triton(
            x, delta, A, B, C, D, initial, True, z=z, delta_bias=bias, delta_softplus=True, tiles=tiles
        )

    def reference(x, delta, A, B, C, D, initial, z, bias):
        delta = F.softplus(delta + bias, threshold=30)
        y, final = scan.selective_scan(x, delta, A, B, C, D=D, initial=initial, return_final=True, path="reference")
        return y * F.silu(z), final

    hold(inputs, run, reference, limit)


def check_s6_in_chunks():
    s6_case()


def check_s6_lengths():
    for tokens in (1, 2, 7, 8, 9):
        s6_case(1, tokens, 3, 2)


def check_s6_huge_steps():
    s6_case(1, 12, 4, 3, scale=30.0)


def check_s6_half_precision():
    s6_case(dtype=torch.float16, limit=2e-3)


def check_s6_many_channels():
    s6_case(1, 9, 35, 5)


def check_s6_gradient_by_few_programs():
    """One program for many chunks, and more programs than chunks: its scratch and sums serve all of its chunks."""
    usual = triton_s6.BACK
    try:
        for programs, span in ((1, 4), (64, 3)):
            triton_s6.BACK = usual._replace(programs=programs, span=span)
            s6_case(2, 7, 17, 2)
    finally:
        triton_s6.BACK = usual


def check_s6_of_maps_at_odd_places():
    """B and C where a layer's projection leaves them: read from a copy whose rows start at multiples of 16 bytes."""
    x, delta, wide = torch.randn(1, 5, 3), torch.rand(1, 5, 3), torch.randn(1, 5, 44)
    inputs = {"x": x, "delta": delta, "A": -torch.rand(3, 16), "wide": wide}

    def run(x, delta, A, wide, path="triton"):
        return (scan.selective_scan(x, delta, A, wide[..., 12:28], wide[..., 28:], path=path),)

    hold(inputs, run, lambda **given: run(**given, path="reference"), 2e-6)


def check_s6_keeps_states_for_a_gradient_only():
    x, maps = torch.randn(1, 9, 2, requires_grad=True), torch.randn(1, 9, 3)
    inputs = x, x.detach().abs(), -torch.rand(2, 3), maps, maps
    scanned = triton_s6.selective_scan_triton(*inputs, tiles=S6)
    assert scanned.grad_fn.saved_tensors[-1].shape == (1, 2, 3, 2)  # before tokens 0 and 8
    with torch.no_grad():
        assert torch.equal(triton_s6.selective_scan_triton(*inputs, tiles=S6), scanned)


def check_s6_of_channels_first():
    s6_case(change=lambda v: v.transpose(1, 2).contiguous().transpose(1, 2))


def check_s6_plain():
    """No skip, gate, bias or initial state, delta after its softplus: as selective_scan asks for it."""
    x, delta = torch.randn(2, 11, 4), torch.rand(2, 11, 4)
    inputs = {"x": x, "delta": delta, "A": -torch.rand(4, 3), "B": torch.randn(2, 11, 3), "C": torch.randn(2, 11, 3)}

    def run(x, delta, A, B, C):
        return (triton_s6.selective_scan_triton(x, delta, A, B, C, tiles=S6),)

    hold(inputs, run, lambda **wide: (scan.selective_scan(**wide, path="reference"),), 2e-6)


def ssd_case(
    batch=2, tokens=37, heads=4, dim=5, groups=2, state=6, *, dtype=torch.float32, scale=1.0, limit=2e-6,
    wide_skip=False,
    bounds=(0.0, math.inf), kind=None, steps=None,
):  # fmt: skip
    delta = torch.randn(batch, tokens, heads) * scale if steps is None else steps
    inputs = {
        "x": torch.randn(batch, tokens, heads, dim).to(dtype),
        "delta": delta.to(dtype),
        "A": -torch.rand(heads) * 3 - 0.1,
        "B": torch.randn(batch, tokens, groups, state).to(dtype),
        "C": torch.randn(batch, tokens, groups, state).to(dtype),
        "D": torch.randn(heads, dim) if wide_skip else torch.randn(heads),
        "initial": torch.randn(batch, heads, dim, state),
        "bias": torch.randn(heads),
    }

    def run(x, delta, A, B, C, D, initial, bias):
        more = {"delta_bias": bias, "delta_softplus": True, "limit": bounds, "tiles": SSD, "kind": kind}
        return triton_ssd.ssd_scan_triton(x, delta, A, B, C, D, initial, True, **more)

    def reference(x, delta, A, B, C, D, initial, bias):
        delta = F.softplus(delta + bias, threshold=30).clamp(*bounds)
        return scan.ssd_scan(x, delta, A, B, C, D=D, initial=initial, return_final=True, path="reference")

    hold(inputs, run, reference, limit)


def check_ssd_in_chunks():
    ssd_case()


def check_ssd_lengths():
    for tokens in (1, 2, 15, 16, 17):
        ssd_case(1, tokens, 2, 4, 1, 4)


def check_ssd_huge_steps():
    ssd_case(1, 20, 2, 4, 1, 4, scale=30.0)


def check_ssd_after_one_huge_step():
    """Differences of the running sum keep their digits behind a step of 50,000."""
    steps = torch.full((1, 16, 2), -1.0)
    steps[:, 1] = 50_000.0
    ssd_case(1, 16, 2, 4, 1, 4, steps=steps)


def check_ssd_skip_of_every_channel():
    ssd_case(1, 18, 2, 4, 1, 4, wide_skip=True)


def check_ssd_limits():
    ssd_case(1, 18, 2, 4, 1, 4, bounds=(0.3, 1.5))


def check_ssd_half_precision():
    ssd_case(1, 18, 2, 16, 1, 16, dtype=torch.float16, limit=2e-3)
    ssd_case(1, 18, 2, 16, 1, 16, dtype=torch.float16, kind=torch.float16, limit=3e-3)


def check_ssd_padded_sizes():
    ssd_case(1, 18, 3, 20, 3, 17)


def check_ssd_plain():
    inputs = {
        "x": torch.randn(2, 19, 2, 4), "delta": torch.rand(2, 19, 2), "A": -torch.rand(2), "B": torch.randn(2, 19, 1,
        3),
        "C": torch.randn(2, 19, 1, 3),
    }  # fmt: skip

    def run(**inputs):
        return (triton_ssd.ssd_scan_triton(**inputs, tiles=SSD),)

    hold(inputs, run, lambda **wide: (scan.ssd_scan(**wide, path="reference"),), 4e-6)


def delta_case(tokens, decay, *, dtype=torch.float32, limit=2e-6, heads=2, keys=9, values=18, first=True):
    q, k = (F.normalize(torch.randn(1, tokens, 1, keys), dim=-1).to(dtype) for _ in range(2))
    v, beta = torch.randn(1, tokens, heads, values).to(dtype), torch.rand(1, tokens, heads).to(dtype)
    shape = {"none": None, "head": (1, tokens, heads), "key": (1, tokens, heads, keys)}[decay]
    gate = None if shape is None else -3 * torch.rand(*shape)
    initial = torch.randn(1, heads, values, keys) if first else None
    got = triton_delta.delta_scan_triton(q, k, v, beta, gate, initial)
    wide = [None if part is None else part.double() for part in (q, k, v, beta, gate, initial)]
    more = {"log_decay": wide[4], "initial": wide[5], "return_final": True}
    want = scan.delta_scan(*wide[:4], **more, path="reference")
    for name, g, w in zip(("output", "state"), got, want, strict=True):
        assert error(g, w) < limit, f"{name}: {error(g, w):.1e}"
    return q, k, v, beta, gate


def check_delta_rule():
    delta_case(70, "head")
    delta_case(5, "none", first=False)
    delta_case(17, "head", dtype=torch.float16, limit=2e-3, keys=16, values=16)


def check_delta_rule_of_keys():
    delta_case(66, "key", heads=1)


def check_delta_closed_gates():
    q, k, v, beta, gate = delta_case(40, "head", first=False)
    gate[:, 7], gate[:, 20] = -1e4, -torch.inf
    got, _ = triton_delta.delta_scan_triton(q, k, v, beta, gate)
    want = scan.delta_scan(*(part.double() for part in (q, k, v, beta)), log_decay=gate.double(), path="reference")
    assert error(got, want) < 2e-6


def check_delta_of_a_bad_token():
    """It spoils itself and later tokens, of its value alone if a value is bad, and no earlier one."""
    q, k, v, beta, gate = delta_case(50, "head", first=False)
    clean, _ = triton_delta.delta_scan_triton(q, k, v, beta, gate)
    for name, part in (("k", k), ("v", v), ("beta", beta), ("gate", gate)):
        bad = {"k": k, "v": v, "beta": beta, "gate": gate, name: part.clone()}
        bad[name].view(1, 50, -1)[0, 40, 0] = torch.nan
        got, _ = triton_delta.delta_scan_triton(q, bad["k"], bad["v"], bad["beta"], bad["gate"])
        given = {"log_decay": bad["gate"], "path": "reference"}
        want = scan.delta_scan(q, bad["k"], bad["v"], bad["beta"], **given)
        assert error(got[:, :40], clean[:, :40]) < 2e-6, name
        assert torch.equal(got.isnan(), want.isnan()), name


def check_delta_takes_the_triton_path():
    q, k, v = torch.rand(3, 1, 3, 1, 16)
    beta = torch.rand(1, 3, 1)
    assert scan.choose_delta(q, k, v, beta, None, path="triton").path == "triton"
    assert "gradients are wanted" in scan.choose_delta(q, k, v.requires_grad_(), beta, None, path="triton").reason


def check_delta_layers():
    """Whole layers, heads taken where their projections leave them, against transformers' own."""
    from repflow.models.fastpath.delta_layer import gated_delta_layer, layer_obstacle
    from repflow.models.transformers_own import run_torch_forms_on_cpu
    from tests.models.tiny_configs import tiny_model

    for name in ("qwen3_next", "qwen3_5_text"):
        network = tiny_model(name)
        run_torch_forms_on_cpu(network)
        layer = network.model.layers[0].linear_attn
        assert layer_obstacle(layer) is None
        x = torch.randn(1, 20, 32)
        with torch.no_grad():
            assert error(gated_delta_layer(layer, x), layer(x).double()) < 2e-6, name


def check_scan_takes_the_triton_path():
    x, maps = torch.randn(1, 9, 2), torch.randn(1, 9, 3)
    assert scan.choose("s6", x, x.abs(), -torch.rand(2, 3), maps, maps, path="triton").path == "triton"
    got = scan.selective_scan(x, x.abs(), -torch.ones(2, 3), maps, maps, path="triton")
    want = scan.selective_scan(
        x.double(), x.abs().double(), -torch.ones(2, 3).double(), *[maps.double()] * 2, path="reference"
    )
    assert error(got, want) < 1e-6


def check_convolution():
    """Lengths around the four tokens of a step and the span of a program, and fewer taps."""
    for tokens, taps in ((1, 4), (2, 4), (3, 3), (5, 2), (7, 1), (8, 4), (9, 4), (11, 3), (12, 4), (21, 4)):
        inputs = {"x": torch.randn(2, tokens, 19), "weight": torch.randn(19, 1, taps), "bias": torch.randn(19)}

        def reference(x, weight, bias=None, taps=taps):
            padded = F.pad(x.transpose(1, 2), (taps - 1, 0))
            return (F.silu(F.conv1d(padded, weight, bias, groups=19)).transpose(1, 2),)

        hold(inputs, lambda **given: (causal_conv_silu(**given),), reference, 1e-6)
    del inputs["bias"]
    hold(inputs, lambda **given: (causal_conv_silu(**given),), reference, 1e-6)


def check_convolution_of_a_part():
    part = torch.randn(2, 5, 32)[..., 8:24]  # a projection's part, read where it lies
    weight = torch.randn(16, 1, 3)
    want = F.silu(F.conv1d(F.pad(part.transpose(1, 2).double(), (2, 0)), weight.double(), groups=16)).transpose(1, 2)
    assert error(causal_conv_silu(part, weight), want) < 1e-6


def check_convolution_of_too_many_taps():
    with pytest.raises(InputError, match="expected a convolution of at most 4 taps; got 5"):
        causal_conv_silu(torch.randn(1, 5, 3), torch.randn(3, 1, 5))


def check_norm():
    inputs = {"x": torch.randn(2, 7, 24), "weight": torch.randn(24)}

    def reference(x, weight):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight, x

    hold(inputs, lambda x, weight: rms_norm(x, weight, 1e-5), reference, 1e-6)
    wide = {"x": torch.randn(1, 3, 2100), "weight": torch.randn(2100)}  # a row over several warps
    hold(wide, lambda x, weight: rms_norm(x, weight, 1e-5), reference, 1e-6)


def check_gated_norm():
    x, gate = torch.randn(2, 5, 24), torch.randn(2, 5, 40)[..., 3:27]
    weight, slope = torch.randn(24), torch.randn(2, 5, 24)
    wide = [v.double().requires_grad_() for v in (x, gate, weight)]
    v = wide[0] * F.silu(wide[1])
    want = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-5) * wide[2]
    true = torch.autograd.grad((want * slope).sum(), wide)
    dx, dgate = torch.empty(2, 5, 24), torch.empty(2, 5, 30)[..., :24]
    sums = torch.full((4, 30), torch.nan)[:, 2:26]  # more programs than tiles of rows, columns of a wider tensor
    norm_backward(x, weight, 1e-5, slope, dx, sums, gate=gate, dgate=dgate)
    dweight = sums.sum(0)
    assert error(norm_forward(x, weight, 1e-5, torch.float32, gate=gate), want) < 1e-6
    for got, exact in zip((dx, dgate, dweight), true, strict=True):
        assert error(got, exact) < 2e-6


def check_loss():
    target = torch.tensor([3, 0, 4999])
    inputs = {"logits": torch.randn(3, 5000) * 4}
    run = lambda logits: (cross_entropy_in_place(logits * 1, target),)  # noqa: E731
    hold(inputs, run, lambda logits: (F.cross_entropy(logits, target),), 1e-6)


def check_loss_once():
    logits = torch.randn(3, 40, requires_grad=True)
    loss = cross_entropy_in_place(logits * 1, torch.tensor([1, 2, 3]))
    (3.0 * loss).backward(retain_graph=True)
    want = torch.softmax(logits.detach(), -1)
    want[torch.arange(3), torch.tensor([1, 2, 3])] -= 1
    assert error(logits.grad, want.double()) < 1e-6
    with pytest.raises(InputError, match="expected one backward pass through this loss; got a second one"):
        loss.backward()


def model_case(config, tiles, tokens):
    """transformers' own path against the same model on the kernels: states and the gradient of every weight.

    Tokens of more than one chunk of the kernels.
    """
    from transformers import AutoModel

    model = AutoModel.from_config(config, dtype=torch.float32).train()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight += (0.3 if weight.dim() == 2 and "A_log" not in name else 0.05) * torch.randn_like(weight)
    ids = torch.randint(0, config.vocab_size, (2, tokens))
    want = model(ids, use_cache=False).last_hidden_state
    slope = torch.randn_like(want)
    weights = dict(model.named_parameters())
    true = torch.autograd.grad((want * slope).sum(), list(weights.values()))
    with gpu_blocks(model, tiles) as blocks:
        assert len(blocks) == config.num_hidden_layers, blocks
        got = model(ids, use_cache=False).last_hidden_state
        gradients = torch.autograd.grad((got * slope).sum(), list(weights.values()))
    assert "forward" not in vars(model.layers[0])
    assert error(got, want.double()) < 1e-5
    assert not torch.equal(got, want), "the kernels did not run"
    for name, g, t in zip(weights, gradients, true, strict=True):
        assert error(g, t.double()) < 1e-3, f"{name}: {error(g, t.double()):.1e}"


def check_mamba_model():
    from transformers import MambaConfig

    config = MambaConfig(hidden_size=12, num_hidden_layers=1, state_size=4, vocab_size=20, time_step_rank=3)
    model_case(config, S6, tokens=10)


def check_falcon_mamba_model():
    from transformers import FalconMambaConfig

    config = FalconMambaConfig(hidden_size=12, num_hidden_layers=1, state_size=4, vocab_size=20, time_step_rank=3)
    model_case(config, S6, tokens=10)


def check_mamba2_model():
    from transformers import Mamba2Config

    sizes = {"hidden_size": 16, "head_dim": 8, "num_heads": 4, "state_size": 8, "n_groups": 2, "chunk_size": 16}
    model_case(Mamba2Config(**sizes, num_hidden_layers=1, vocab_size=20), SSD, tokens=19)


def check_single_tokens():
    """A whole sequence against its first tokens and then one at a time, on the kernels; the reference in float64."""
    from transformers import AutoModel, FalconMambaConfig, Mamba2Config, MambaConfig

    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "vocab_size": 20}
    two = {"head_dim": 6, "num_heads": 4, "state_size": 5, "n_groups": 2, "chunk_size": 16}
    for config in (
        MambaConfig(**sizes, state_size=5, time_step_rank=3),
        FalconMambaConfig(**sizes, state_size=4, time_step_rank=3),
        Mamba2Config(**sizes, **two, time_step_limit=(0.01, 0.5)),
    ):
        mixer = AutoModel.from_config(config, dtype=torch.float32).eval().layers[0].mixer
        with torch.no_grad():
            for name, weight in mixer.named_parameters():
                weight += (0.3 if weight.dim() == 2 and "A_log" not in name else 0.1) * torch.randn_like(weight)
            wide = copy.deepcopy(mixer).double()
            hidden = torch.randn(2, 9, 12)
            exact = Memory()
            triton_launch.INTERPRETED = False
            try:
                want = exact.run(wide, hidden.double())
            finally:
                triton_launch.INTERPRETED = True
            for cut in (1, 6):
                memory = Memory()
                outputs = [memory.run(mixer, hidden[:, :cut])]
                outputs += [memory.run(mixer, hidden[:, at : at + 1]) for at in range(cut, 9)]
                assert error(torch.cat(outputs, 1), want) < 3e-6, type(mixer).__name__
                assert error(memory.layers[mixer].state, exact.layers[wide].state) < 3e-6, type(mixer).__name__


def check_mamba2_between_its_projections():
    """The layer without its block, on its own node, against torch."""
    shape = Shape(4, 8, 2, 8, 1e-5, triton_ssd.Setting(SSD, softplus=True))
    names = ["conv", "conv_bias", "dt_bias", "A_log", "D", "norm"]
    sizes = [(64, 1, 4), (64,), (4,), (4,), (4,), (32,)]
    inputs = {"projected": torch.randn(2, 19, 100)} | {
        name: torch.randn(*size) for name, size in zip(names, sizes, strict=True)
    }

    def run(projected, **weights):
        return (mamba2_inner(projected, Weights(**weights), shape),)

    def reference(projected, conv, conv_bias, dt_bias, A_log, D, norm):
        z, part, dt = shape.split(projected)
        padded = F.pad(part.transpose(1, 2), (3, 0))
        x, b, c = shape.heads_of(F.silu(F.conv1d(padded, conv, conv_bias, groups=64)).transpose(1, 2))
        y = scan.ssd_scan(x, F.softplus(dt + dt_bias), -torch.exp(A_log), b, c, D=D, path="reference").flatten(2)
        v = y * F.silu(z)
        return (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-5) * norm,)

    hold(inputs, run, reference, 2e-6)


def check_ssd_mixer_in_one_step():
    """A stack's own Mamba-2 layer between its projections, and those that go by parts, against the reference."""
    taken = []
    usual = ssd_mixer.mamba2_inner
    ssd_mixer.mamba2_inner = lambda *args: taken.append(1) or usual(*args)
    forms = [{}, {"groups": 2}, {"conv_bias": False}, {"bias": True}]
    by_parts = [
        {"norm_groups": 2},
        {"polarize": "both"},
        {"gate": False},
        {"skip": False},
        {"conv": 0},
        {"norm": False},
    ]
    try:
        for number, options in enumerate([*forms, *by_parts]):
            torch.manual_seed(number)
            mixer = ssd_mixer.SSD(12, state=6, head_dim=4, **options)
            with torch.no_grad():
                for weight in mixer.parameters():
                    weight += 0.2 * torch.randn_like(weight)
            wide = copy.deepcopy(mixer).double()
            inputs = {"x": torch.randn(2, 19, 12), **{n.replace(".", "/"): p for n, p in mixer.named_parameters()}}

            def call(network, path, x, **weights):
                named = {name.replace("/", "."): value for name, value in weights.items()}
                return (functional_call(network, named, (x,), {"path": path}),)

            hold(inputs, partial(call, mixer, "triton"), partial(call, wide, "reference"), 3e-6)
            assert bool(taken) == (options in forms), options
            taken.clear()
    finally:
        ssd_mixer.mamba2_inner = usual


def hold_spoiled(inputs, run, reference, places):
    """Finite is what is so in the reference, and to the last bit as where every number is; NaN and inf take turns."""
    whole = run(**inputs)
    for values in ((torch.nan, torch.inf), (torch.inf, torch.nan)):
        spoiled = {name: v.clone() for name, v in inputs.items()}
        for (name, at), value in zip(places, cycle(values)):
            spoiled[name][at] = value
        got, want = run(**spoiled), reference(**{name: v.double() for name, v in spoiled.items()})
        finite = want.isfinite()
        assert not finite.all(), "nothing is spoiled"
        first = torch.nonzero(got.isfinite() != finite)[:1].tolist()
        assert not first, f"{values[0]} first: finite at {first} here or in the reference, not in both"
        assert error(got[finite], whole[finite]) < 2e-6, f"{values[0]} first: finite numbers changed"


def ssd_spoiled_case(tiles, tokens, places, limit=(0.0, math.inf), dtype=torch.float32):
    batch = 1 + max(at[0] for _, at in places)
    inputs = {
        "x": torch.randn(batch, tokens, 4, 3).to(dtype), "delta": torch.randn(batch, tokens, 4).to(dtype),
        "A": -torch.rand(4) - 0.1, "B": torch.randn(batch, tokens, 2, 5).to(dtype),
        "C": torch.randn(batch, tokens, 2, 5).to(dtype), "D": torch.randn(4),
    }  # fmt: skip

    def run(**given):
        return triton_ssd.ssd_scan_triton(**given, delta_softplus=True, limit=limit, tiles=tiles)

    def reference(delta, **given):
        return scan.ssd_scan(delta=F.softplus(delta).clamp(*limit), **given, path="reference")

    hold_spoiled(inputs, run, reference, places)


def check_ssd_of_tokens_that_are_not_finite():
    """A chunk's and a tile's first, last and middle tokens, tiles beside each other in a chunk, an unfilled chunk."""
    places = [
        ("x", (0, 0, 0, 1)), ("x", (0, 15, 1, 0)), ("x", (0, 16, 2, 2)), ("x", (0, 31, 3, 1)),
        ("x", (1, 32, 0, 0)), ("x", (1, 53, 0, 1)), ("C", (1, 20, 1, 3)), ("C", (1, 31, 1, 0)),
        ("B", (2, 31, 0, 4)), ("delta", (2, 9, 2)), ("delta", (2, 47, 3)),
    ]  # fmt: skip
    ssd_spoiled_case(triton_ssd.Tiles(chunk=32, rows=16), 60, places)


def check_ssd_of_first_and_last_tokens_that_are_not_finite():
    places = [("B", (0, 15, 0, 1)), ("B", (0, 16, 1, 0)), ("delta", (1, 0, 0)), ("delta", (1, 15, 1))]
    ssd_spoiled_case(SSD, 19, [*places, ("delta", (1, 16, 2)), ("delta", (1, 18, 3))])


def check_ssd_of_half_precision_tokens_that_are_not_finite():
    places = [("x", (0, 9, 0, 2)), ("B", (0, 11, 1, 0)), ("C", (0, 3, 0, 0)), ("delta", (0, 17, 1))]
    ssd_spoiled_case(SSD, 20, places, dtype=torch.float16)


def check_ssd_steps_of_nan_within_limits():
    """The limits do not take NaN for the least step."""
    inputs = {"x": torch.randn(1, 5, 2, 3), "delta": torch.randn(1, 5, 2), "A": -torch.ones(2)}
    inputs |= {"B": torch.randn(1, 5, 1, 4), "C": torch.randn(1, 5, 1, 4)}
    inputs["delta"][0, 3, 1] = torch.nan
    y = triton_ssd.ssd_scan_triton(**inputs, delta_softplus=True, limit=(0.3, 1.5), tiles=SSD)
    assert y.isfinite().all(3)[0].tolist() == [[True, True]] * 3 + [[True, False]] * 2


def check_ssd_repairs_heads_that_need_it():
    """The slow pass runs for the head, sample and group of a token that is not finite, and for no other."""
    x, maps = torch.randn(2, 20, 4, 3), torch.randn(2, 20, 2, 5)
    x[1, 7, 2, 0] = torch.nan
    maps[0, 3, 1, 4] = torch.inf
    parts = triton_ssd.Parts.of(
        x, torch.rand(2, 20, 4), -torch.ones(4), maps, maps, None, None, triton_ssd.Setting(SSD)
    )
    saved = triton_ssd.forward(parts, None)[2]
    assert saved.spoiled.tolist() == [[0, 0, 1, 1], [0, 0, 1, 0]]


def check_ssd_gradients_around_tokens_that_are_not_finite():
    """Of a loss on earlier tokens: a number that is finite is right. More are NaN than in the sequential form."""
    reached = {}
    for name in ("x", "delta", "B", "C"):
        inputs = {"x": torch.randn(1, 20, 2, 3), "delta": torch.rand(1, 20, 2), "A": -torch.rand(2) - 0.1}
        inputs |= {"B": torch.randn(1, 20, 1, 4), "C": torch.randn(1, 20, 1, 4)}
        inputs[name][0, 9, 0] = torch.nan
        low, wide = ({key: v.to(kind).requires_grad_() for key, v in inputs.items()} for kind in KINDS)
        got = triton_ssd.ssd_scan_triton(**low, tiles=SSD)[:, :9].sum()
        want = scan.ssd_scan(**wide, path="reference")[:, :9].sum()
        gradients = (torch.autograd.grad(y, list(v.values())) for y, v in ((got, low), (want, wide)))
        for key, g, w in zip(inputs, *gradients, strict=True):
            finite = g.isfinite()
            reached[name, key] = bool(finite.any())
            assert w[finite].isfinite().all(), f"{key} where {name} is not finite"
            assert not finite.any() or error(g[finite], w[finite]) < 8e-6, f"{key} where {name} is not finite"
    assert reached["x", "x"]
    assert reached["B", "x"]


def check_s6_of_tokens_that_are_not_finite():
    inputs = {
        "x": torch.randn(2, 13, 5), "delta": torch.randn(2, 13, 5), "A": -torch.rand(5, 3) - 0.1,
        "B": torch.randn(2, 13, 3), "C": torch.randn(2, 13, 3), "D": torch.randn(5), "z": torch.randn(2, 13, 5),
    }  # fmt: skip

    def run(**given):
        return triton_s6.selective_scan_triton(**given, delta_softplus=True, tiles=S6)

    def reference(delta, z, **given):
        return scan.selective_scan(delta=F.softplus(delta), **given, path="reference") * F.silu(z)

    # before and behind a chunk's border
    places = [("x", (0, 7, 2)), ("delta", (0, 8, 3)), ("C", (0, 5, 1)), ("B", (1, 8, 0)), ("C", (1, 3, 2))]
    hold_spoiled(inputs, run, reference, places)


def check_mamba2_layer_of_tokens_that_are_not_finite():
    """Convolution and norm around the scan: gate, convolved part, step sizes."""
    shape = Shape(4, 8, 2, 8, 1e-5, triton_ssd.Setting(SSD, softplus=True))
    sizes = [(64, 1, 4), (64,), (4,), (4,), (4,), (32,)]
    weights = Weights(*(torch.randn(*size) for size in sizes))
    projected = torch.randn(2, 19, 100)
    whole = mamba2_inner(projected, weights, shape)
    for channel, value in ((3, torch.nan), (40, torch.inf), (40, torch.nan), (70, torch.nan), (98, torch.nan)):
        spoiled = projected.clone()
        spoiled[1, 12, channel] = value
        got = mamba2_inner(spoiled, weights, shape)
        assert error(got[1, :12], whole[1, :12]) < 2e-6, f"channel {channel} = {value}"
        assert error(got[0], whole[0]) < 2e-6, f"channel {channel} = {value}"
        assert not got[1, 12].isfinite().all(), f"channel {channel} = {value}"


def check_single_tokens_that_are_not_finite():
    """Decoding: a step size of NaN is not taken for the least step."""
    from transformers import AutoModel, Mamba2Config

    config = Mamba2Config(
        hidden_size=12, num_hidden_layers=1, vocab_size=20, head_dim=6, num_heads=4, state_size=5, n_groups=2,
        chunk_size=16, time_step_limit=(0.01, 0.5),
    )  # fmt: skip
    mixer = AutoModel.from_config(config, dtype=torch.float32).eval().layers[0].mixer
    with torch.no_grad():
        mixer.dt_bias[2] = torch.nan
        memory = Memory()
        memory.run(mixer, torch.randn(2, 1, 12))
        memory.run(mixer, torch.randn(2, 1, 12))
    state = memory.layers[mixer].state
    assert state.isfinite().flatten(2).all(2).tolist() == [[True, True, False, True]] * 2


def replica_stacks(tie, layers=1, state=5, width=16):
    """Stacks that differ in their fixed decays, twice: for the kernels, and in float64 by their own code."""
    from repflow.models import StackConfig, StackForCausalLM
    from repflow.models.stack.replicas import ReplicaStack

    networks = []
    poles = ({}, {"polarize": "both"}, {"polarize": "both", "placebo": True}, {"polarize": "both", "zero_rate": -100.0})
    for seed, more in enumerate(poles):
        torch.manual_seed(seed)
        mixer = {"name": "s6", "state": state, **more}
        config = StackConfig(
            mixers=mixer, num_hidden_layers=layers, hidden_size=width, vocab_size=40, tie_word_embeddings=tie
        )
        network = StackForCausalLM(config)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        networks.append(network)
    return ReplicaStack(networks), ReplicaStack([copy.deepcopy(network).double() for network in networks])


def replica_case(tie, tokens, **shape):
    fast, slow = replica_stacks(tie, **shape)
    torch.manual_seed(9)
    ids, targets = torch.randint(0, 40, (8, tokens)), torch.randint(0, 40, (8, 3))
    positions = torch.stack([torch.randperm(tokens)[:3] for _ in range(8)])
    assert fast.fused(ids) is None
    assert slow.fused(ids) is not None
    weights = torch.rand(4, 6)
    loss, hit = fast.losses(ids, positions, targets)
    true, true_hit = slow.losses(ids, positions, targets)
    assert error(loss, true) < 2e-6
    assert torch.equal(hit.double(), true_hit.double())
    (loss * weights).sum().backward()
    (true * weights.double()).sum().backward()
    for (name, got), (_, want) in zip(fast.named_single(), slow.named_single(), strict=True):
        assert error(got.grad, want.grad) < 2e-5, f"gradient of {name}: {error(got.grad, want.grad):.1e}"


def check_replicas_of_even_rows():
    replica_case(tie=False, tokens=8, layers=2, state=16)


def check_replicas_of_odd_rows():
    """Nine tokens are filled up to three turns of four, five states to a group; 40 channels are not whole blocks."""
    replica_case(tie=True, tokens=9, width=20)


def check_replicas_with_groups_of_states():
    """18 states are filled up to two groups, 64 are four: programs side by side, whose parts are summed behind them."""
    replica_case(tie=False, tokens=4, state=18, width=20)
    replica_case(tie=False, tokens=4, state=64)


def check_classifiers_side_by_side():
    """Class token, positions, feed-forward layer, both ways, pooling, each against the stacks' own code in float64."""
    from repflow.models import StackConfig, StackForSequenceClassification
    from repflow.models.stack.replica_classifier import class_form
    from repflow.models.stack.replicas import ReplicaStack

    frames = (
        {"class_token": "end", "mlp": "gelu", "mlp_size": 8, "max_position_embeddings": 3},
        {"class_token": "middle", "bidirectional": [True, False], "mlp": [None, "swiglu"]},
        {"pooling": "mean", "bidirectional": True},
        {"pooling": "last"},
    )
    for frame in frames:
        networks = []
        layers = 2 if "bidirectional" in frame and frame["bidirectional"] is not True else 1
        for seed in range(2):
            torch.manual_seed(seed)
            shape = {"num_hidden_layers": layers, "hidden_size": 16, "input_channels": 3, "num_labels": 5}
            networks.append(StackForSequenceClassification(StackConfig({"name": "s6", "state": 4}, **shape, **frame)))
        fast, slow = ReplicaStack(networks), ReplicaStack([copy.deepcopy(network).double() for network in networks])
        x, labels = torch.rand(4, 3, 3), torch.tensor([0, 1, 2, 3])
        assert class_form(fast, x) == "fused"
        assert class_form(slow, x.double()) == "alone"
        loss, _ = fast.class_losses(x, labels)
        true, _ = slow.class_losses(x.double(), labels)
        assert error(loss, true) < 2e-6, frame
        from repflow.models.classifier import Classifier
        from repflow.tasks.pixels import PixelLayout

        networks[0].config.input_range = [0, 1]
        named = Classifier(networks[0]).logits(x[:2], PixelLayout(), (7, 1, 3))
        assert error(named, slow.networks[0](x[:2].double()).logits) < 2e-6
        loss.sum().backward()
        true.sum().backward()
        for (name, got), (_, want) in zip(fast.named_single(), slow.named_single(), strict=True):
            assert error(got.grad, want.grad) < 2e-5, f"{frame}, {name}: {error(got.grad, want.grad):.1e}"


def check_sums_by_the_matrix_unit():
    """In half precision products sum over channels: float16 stands for bfloat16 here."""
    for state in (16, 32):  # one group of states, and two
        half_precision_case(state)


def half_precision_case(state):
    torch.manual_seed(0)
    width, channels, rank = 16, 40, 2  # the second block of channels has 8
    shapes = [(width,), (2 * channels, width), (channels, 4), (channels,), (rank + 2 * state, channels)]
    shapes += [(channels, rank), (channels,), (channels, state), (channels,), (width, channels)]
    values = [torch.randn(2, *shape) * 0.3 for shape in shapes]
    values[7] = -values[7].abs()
    hold_alone(BlockWeights(*values), state)
    x = torch.randn(2, 4, width)
    slope = torch.randn_like(x)

    def gradients(half):
        leaves = [part.clone().requires_grad_() for part in (x, *values)]
        output = row_block(leaves[0], BlockWeights(*leaves[1:]), 1e-5, half)
        return torch.autograd.grad((output * slope).sum(), leaves)

    for narrow, wide in zip(gradients(torch.float16), gradients(torch.float32), strict=True):
        assert error(narrow, wide.double()) < 5e-3


def hold_alone(weights, state):
    """Every bit of what the scan's kernels give of a model, with and without another beside it."""
    channels, side = weights.A.shape[1], 2 * state + 8
    u, xz, dy = (torch.randn(2, 4, width * channels).half() for width in (1, 2, 1))
    maps = torch.randn(2, 4, side)

    def run(first):
        own = BlockWeights(*(part[first:] for part in weights))
        size = Sizes.of(u[first:], own)
        inputs, dxz = (u[first:], xz[first:], maps[first:]), torch.zeros_like(xz[first:])
        scanned = row_scan(*inputs, own, size, True)
        back = row_scan_back(*inputs, scanned, own, dy[first:], dxz, size)
        assert torch.equal(row_scan(*inputs, own, size, False).y, scanned.y), "without a gradient"
        return scanned.y, back.u, dxz, back.maps[..., : 2 * state]

    for beside, alone in zip(run(0), run(1), strict=True):
        assert torch.equal(beside[1:], alone)


def check_adamw_of_replicas():
    from repflow.mixers.triton.optimiser import Betas, adamw_step

    torch.manual_seed(0)
    value = torch.randn(2, 5, 7)
    rates, scales = torch.tensor([1e-2, 3e-2]), torch.tensor([1.0, 0.5])
    alone = [value[replica].clone().double().requires_grad_() for replica in range(2)]
    makers = [
        torch.optim.AdamW([part], lr=float(rates[i]), betas=(0.9, 0.95), weight_decay=0.1)
        for i, part in enumerate(alone)
    ]
    mean, square = torch.zeros_like(value), torch.zeros_like(value)
    for step in range(1, 4):
        slope = torch.randn(2, 5, 7)
        corrections = torch.tensor([1 - 0.9**step, 1 - 0.95**step])
        adamw_step(
            value, slope, mean, square, rates=rates, scales=scales, corrections=corrections, decay=0.1,
            betas=Betas(0.9, 0.95, 1e-8),
        )  # fmt: skip
        for replica, (part, maker) in enumerate(zip(alone, makers, strict=True)):
            part.grad = slope[replica].double() * scales[replica].double()
            maker.step()
    assert error(value, torch.stack(alone)) < 1e-6


def check_lines():
    """Any diagonal recurrence: several tiles of tokens and lines, decays of 0, of 1, below 0 and above 1, and vmap."""
    for shape in ((2, 5, 3), (1, 70, 40), (3, 33, 1)):
        decay = torch.rand(shape) * 1.4 - 0.2
        decay[:, 1::3] = 0.0
        decay[:, 2::5] = 1.0
        inputs = {"A": decay[..., None], "b": torch.randn(*shape, 1), "c": torch.randn(1, shape[1], 1, 1)}
        inputs["delta"] = torch.rand(1, 1, shape[2], 1)
        hold(
            inputs,
            lambda **parts: (chunked.fast_recurrence(Transition(**parts)),),
            lambda **parts: (recurrence(Transition(**parts)),),
            2e-6,
        )


def check_lines_are_taken():
    """The kernel serves mixers without products, one torch.vmap around it included, and nothing that it cannot take."""
    one = torch.ones(1, 3, 2, 1)
    parts = Transition(one, one, one, one)
    assert chunked.lines_obstacle(parts) is None
    assert chunked.lines_obstacle(Transition(*(part.double() for part in parts))) == "dtype float64"
    assert chunked.lines_obstacle(Transition(one.to(torch.complex64), one, one, one)) == "dtype complex64"
    torch.func.grad(lambda x: (chunked.lines_obstacle(parts) or pytest.fail("taken")) and x)(torch.ones(()))
    seen = []
    torch.vmap(lambda x: x + len(seen.append(chunked.lines_obstacle(parts)) or ""))(torch.ones(2))
    assert seen == [None]


def check_lines_of_a_bad_token():
    """Tokens before one that is not finite stay as they are."""
    decay, entry = torch.rand(1, 40, 3), torch.randn(1, 40, 3)
    clean = lines.line_scan(decay, entry)
    entry[:, 35, 1] = torch.nan
    got = lines.line_scan(decay, entry)
    assert error(got[:, :35], clean[:, :35]) < 2e-6
    assert error(got[..., [0, 2]], clean[..., [0, 2]]) < 2e-6
    assert got[:, 35:, 1].isnan().all()


def check_weighted_mean():
    """RWKV-4's mean: tiles that are not full, one token, keys far apart, no fading; outputs and all gradients."""
    for shape, spread in (((2, 9, 5), 1.0), ((1, 40, 33), 1.0), ((1, 20, 4), 60.0)):
        channels = shape[2]
        inputs = {"k": spread * torch.randn(shape), "v": torch.randn(shape)}
        inputs |= {"rate": torch.rand(channels) * 2, "bonus": torch.randn(channels)}
        inputs["rate"][0] = 0.0
        hold(inputs, lambda **parts: (wkv.weighted_mean(**parts),), _weighted_mean, 2e-6 if spread == 1 else 1e-5)

    k, v = torch.randn(2, 1, 3, requires_grad=True), torch.randn(2, 1, 3, requires_grad=True)
    alone = wkv.weighted_mean(k, v, torch.ones(3), torch.zeros(3))  # a single token is its own mean
    assert torch.allclose(alone, v, rtol=1e-6)
    by_key, by_value = torch.autograd.grad(alone.sum(), (k, v))
    assert torch.allclose(by_value, torch.ones(()))
    assert by_key.abs().max() < 1e-6


def _weighted_mean(k, v, rate, bonus):
    num, den = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0])
    means = []
    for key, value in zip(k.unbind(1), v.unbind(1), strict=True):
        now = torch.exp(bonus + key)
        means.append((num + now * value) / (den + now))
        num, den = torch.exp(-rate) * num + torch.exp(key) * value, torch.exp(-rate) * den + torch.exp(key)
    return (torch.stack(means, 1),)


def check_weighted_mean_of_a_bad_token():
    """Tokens before one that is not finite stay as they are."""
    k, v = torch.randn(1, 12, 3), torch.randn(1, 12, 3)
    clean = wkv.weighted_mean(k, v, torch.ones(3), torch.zeros(3))
    v[:, 7, 1] = torch.nan
    got = wkv.weighted_mean(k, v, torch.ones(3), torch.zeros(3))
    assert error(got[:, :7], clean[:, :7]) < 2e-6
    assert error(got[..., [0, 2]], clean[..., [0, 2]]) < 2e-6
    assert got[:, 7:, 1].isnan().all()


def check_rwkv_takes_its_kernel():
    """Where it can, unless another form is asked for."""
    mixer, x, seen = RWKV4(6), torch.randn(1, 5, 6), []
    for path in ("auto", "chunked", "reference"):
        with prefer(path, lambda form, _: seen.append(form)):
            mixer(x)
    assert seen == ["triton", "chunked", "reference"]
    with prefer("auto", lambda form, _: seen.append(form)):
        mixer.double()(x.double())
    assert seen[-1] == "chunked"


def check_lines_of_models_side_by_side():
    """A gated RNN and RWKV-4 by torch.vmap: a kernel for all models, gradients of each."""
    for family in (lambda number: RWKV4(6, inner=8, layer=number, layers=2), lambda number: build("min_gru", 6)):
        _side_by_side([family(number) for number in range(2)])


def _side_by_side(networks, limit=2e-6):
    x = torch.randn(2, 3, 37, 6)
    stacked = {
        name: torch.stack([network.get_parameter(name) for network in networks]).detach().requires_grad_()
        for name, _ in networks[0].named_parameters()
    }
    got = torch.vmap(lambda parts, rows: functional_call(networks[0], parts, (rows,)))(stacked, x)
    weight = torch.randn(got.shape)
    slopes = torch.autograd.grad((got * weight).sum(), list(stacked.values()))
    for number, network in enumerate(networks):
        wide = copy.deepcopy(network).double()
        with torch.autocast("cpu", enabled=False):
            want = wide(x[number].double())
        assert error(got[number], want) < limit
        true = torch.autograd.grad((want * weight[number].double()).sum(), list(wide.parameters()))
        for name, slope, truth in zip(stacked, slopes, true, strict=True):
            assert error(slope[number], truth) < 10 * limit, name


def check_layer_norm():
    """Several tiles and programs, odd widths, with and without a bias, outputs and all gradients; torch.vmap."""
    usual = layer_norm.TILE, layer_norm.SPAN
    layer_norm.TILE, layer_norm.SPAN = 64, 10
    try:
        for shape, biased in (((3, 7, 5), True), ((2, 40, 32), True), ((50, 8), False)):
            norm = layer_norm.LayerNorm(shape[-1], bias=biased)
            inputs = {"x": 2 * torch.randn(shape) + 3, "weight": torch.randn(shape[-1])}
            inputs |= {"bias": torch.randn(shape[-1])} if biased else {}

            def ours(x, norm=norm, **parts):
                return (functional_call(norm, parts, (x,)),)

            def plain(x, weight, bias=None, norm=norm):
                return (F.layer_norm(x, norm.normalized_shape, weight, bias, norm.eps),)

            hold(inputs, ours, plain, 2e-6)
        norm, x = layer_norm.LayerNorm(8), torch.randn(3, 4, 6, 8)
        inputs = {"weight": torch.randn(3, 8), "bias": torch.randn(3, 8)}
        hold(
            inputs,
            lambda **parts: (torch.vmap(lambda own, rows: functional_call(norm, own, (rows,)))(parts, x),),
            lambda weight, bias: (
                torch.stack([F.layer_norm(x[i].double(), (8,), weight[i], bias[i], norm.eps) for i in range(3)]),
            ),
            2e-6,
        )
    finally:
        layer_norm.TILE, layer_norm.SPAN = usual


FILTER = long_filter.Tiles(rows=16, tokens=32, step=16, pair=16, turn=16)


def _filtered(u, taps, skip=None, scale=None, gelu=False):
    """Token by token."""
    reach = taps.shape[1]
    seen = [u[:, max(0, t + 1 - reach) : t + 1] for t in range(u.shape[1])]
    past = [(taps[:, : part.shape[1]].flip(1).mT * part).sum(1) for part in seen]
    y = torch.stack(past, 1) if skip is None else torch.stack(past, 1) + skip * u
    y = F.gelu(y) if gelu else y
    return (y if scale is None else y * scale[:, None],)


def check_long_filter():
    """Tiles that are full and that are not, one token, rows of several tiles, few taps; outputs and all gradients."""
    for (rows, tokens, channels), reach, gelu, more in (
        ((3, 50, 5), 50, True, ("skip", "scale")),
        ((20, 33, 3), 33, False, ()),
        ((2, 16, 20), 16, True, ("scale",)),
        ((1, 1, 1), 1, False, ("skip",)),
        ((2, 70, 3), 17, False, ()),
        ((2, 70, 3), 16, False, ("skip",)),
        ((2, 40, 2), 33, False, ()),
    ):
        inputs = {"u": torch.randn(rows, tokens, channels), "taps": torch.randn(channels, reach)}
        inputs |= {"skip": torch.randn(channels)} if "skip" in more else {}
        scale = torch.rand(rows, channels) if "scale" in more else None
        hold(
            inputs,
            lambda scale=scale, gelu=gelu, **parts: (
                long_filter.long_filter(**parts, scale=scale, gelu=gelu, tiles=FILTER),
            ),
            lambda scale=scale, gelu=gelu, **parts: _filtered(
                **parts, scale=None if scale is None else scale.double(), gelu=gelu
            ),
            2e-6,
        )


def check_long_filter_of_fixed_taps():
    """What only reads a model asks for the gradient of its inputs alone: that of the taps is not computed."""
    u, taps = torch.randn(2, 20, 3, requires_grad=True), torch.randn(3, 20)
    usual, long_filter._tap_gradient = long_filter._tap_gradient, None
    try:
        (got,) = torch.autograd.grad(long_filter.long_filter(u, taps, tiles=FILTER).square().sum(), u)
    finally:
        long_filter._tap_gradient = usual
    wide = u.detach().double().requires_grad_()
    (true,) = torch.autograd.grad(_filtered(wide, taps.double())[0].square().sum(), wide)
    assert error(got, true) < 2e-6


def check_long_filter_of_models_side_by_side():
    """S4D and H3 in half precision by torch.vmap: the kernels serve them, and gradients of each are its own."""
    served = []
    usual = long_filter._filtered

    def note(*args, **options):
        served.append(args[0].shape)
        usual(*args, **options)

    long_filter._filtered = note
    try:
        for family, options, filters in (
            ("s4d", {}, 1),
            ("s4d", {"skip": False, "gate": False}, 1),
            ("h3", {"head_dim": 2, "conv": 4}, 1),
            ("h3", {"head_dim": 2, "conv": 20}, 2),  # its shift is one too
        ):
            served.clear()
            with torch.autocast("cpu", dtype=torch.float16):
                _side_by_side([build(family, 6, state=4, **options) for _ in range(2)], limit=5e-3)
            assert len(served) == 2 * filters, "forward and back, for both models at once"
    finally:
        long_filter._filtered = usual


def check_long_filter_drops_channels():
    """Dropout inside S4D: whole channels of a row behind GELU, which get no gradient."""
    mixer, x = build("s4d", 8, state=4, dropout=0.5, gate=False), torch.randn(4, 9, 8)
    seen = []
    mixer.output_linear.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.autocast("cpu", dtype=torch.float16):
        mixer(x)
        mixer.eval()(x)
    dropped, whole = (part.float() for part in seen)
    kept = dropped.abs().amax(1) > 0
    assert 0 < kept.float().mean() < 1
    assert torch.allclose(dropped, 2 * whole * kept[:, None], rtol=2e-3, atol=1e-3)


def check_long_filter_is_taken():
    """In half precision alone, for rows that are not too long, and for numbers that the kernels can take."""
    u, taps = torch.randn(1, 5, 2), torch.randn(2, 5)
    assert long_filter.filter_obstacle(u, taps) == "float32 was asked for"
    with torch.autocast("cpu", dtype=torch.float16):
        assert long_filter.filter_obstacle(u, taps) is None
        assert long_filter.filter_obstacle(u, taps.double()) == "dtype float64"
        assert long_filter.filter_obstacle(torch.zeros(1, 2049, 2), taps) == "more than 2,048 tokens"
        torch.func.grad(lambda x: (long_filter.filter_obstacle(u, taps) or pytest.fail("taken")) and x)(torch.ones(()))


def check_sums_of_weights():
    """The digest of weights by blocks, whole and unfilled, at odd addresses: the CPU's own."""
    from repflow.models.weights.block_sums import on_gpu
    from repflow.models.weights.blocks import BLOCK, on_cpu

    data = torch.randint(0, 256, (5 * BLOCK,), dtype=torch.uint8)
    sizes = (1, 7, 8, 9, 4097, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 8, 3 * BLOCK + 13)
    parts = [data[:size] for size in sizes] + [data[3:100], data[8:77]]  # at an odd address, at a whole one
    sums, expected = on_gpu(parts), on_cpu([part.numpy() for part in parts])
    assert all((ours == own).all() for ours, own in zip(sums, expected, strict=True))


if __name__ == "__main__":
    run_named(globals(), frames=4)
