"""Whole layers on the Triton kernels against transformers' own, inside loaded models, in a process of its own.

Run with TRITON_INTERPRET=1, which lets the kernels take CPU tensors. Prints a JSON object: check → None or what failed.
"""

import functools
import warnings

import pytest
import torch

import repflow
from repflow.core.errors import InputError
from repflow.interventions import ablate
from repflow.mixers.triton import ssd as triton_ssd
from repflow.models.fastpath import layers as fastpath_layers
from repflow.models.fastpath import scans as fastpath
from repflow.models.recurrence.quantities import ssm_quantities
from tests.interpreter import run_named
from tests.models.recurrence.scan_models import lively
from tests.models.tiny_configs import tiny_model

triton_ssd.TILES = triton_ssd.Tiles(chunk=16, rows=16)  # the interpreter takes its time over larger ones
TYPES = ("mamba", "falcon_mamba", "mamba2")
KINDS = ("residual", "branch", "branch:ssm", "hf-tuple")
IDS = torch.tensor([[5, 3, 8, 1, 9], [1, 2, 3, 4, 5]])


@functools.cache
def load(model_type, scan="auto"):
    """A model that nothing changes; its record is emptied by whoever reads it."""
    return fresh(model_type, scan)


def fresh(model_type, scan="auto"):
    """Two layers, the second behind the first, and two heads a group: the interpreter takes its time over more."""
    changes = {"num_hidden_layers": 2} | ({"hidden_size": 16, "num_heads": 4} if model_type == "mamba2" else {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return repflow.load(lively(model_type, **changes), scan=scan)


def states(model, kind, ids=IDS):
    hidden, normed = [], []
    model.stream(ids, kind=kind, on_state=lambda _, h: hidden.append(h.clone()), on_final_norm=normed.append)
    return [*hidden, *normed]


def same(got, want, limit=1e-4):
    """Both are off by up to 2e-5 from float64 in these models, whose last norm makes small numbers large."""
    assert len(got) == len(want) > 1, (len(got), len(want))
    for one, other in zip(got, want, strict=True):
        off = float((one.double() - other.double()).abs().max() / other.double().abs().max())
        assert off < limit, f"{off:.1e}"


def ran(model):
    entries = next(value for key, value in model.scans.facts().items() if key != "asked")["ran"]
    return {(entry["path"], entry["reason"].split(",")[0]) for entry in entries}


WHOLE = {("triton", "the whole layer")}


def check_states_of_every_kind():
    for model_type in TYPES:
        fast, slow = load(model_type), load(model_type, "reference")
        for kind in KINDS:
            fast.scans.forget()
            same(states(fast, kind), states(slow, kind))
            assert ran(fast) == WHOLE, (model_type, kind, ran(fast))
        assert ran(slow) == {("transformers", "asked for")}, ran(slow)


def check_norm_ablations():
    wanted = {"mamba": ("norm", "norm:final"), "mamba2": ("norm", "norm-affine", "norm:inner", "block:1")}
    for model_type, names in wanted.items():
        for name in names:
            fast, slow = (ablate(load(model_type, scan), name) for scan in ("auto", "reference"))
            fast.scans.forget()
            same(states(fast, "residual", IDS[:1]), states(slow, "residual", IDS[:1]))
            inner = model_type == "mamba2" and name in ("norm", "norm:inner")
            assert (ran(fast) == WHOLE) is not inner, (model_type, name, ran(fast))


def check_ablated_copy_leaves_the_original():
    model = load("mamba2")
    before = states(model, "residual")
    ablate(model, "norm-affine")
    same(states(model, "residual"), before, 1e-12)


def check_scan_quantities():
    for model_type in TYPES:
        fast, slow = load(model_type), load(model_type, "reference")
        fast.scans.forget()
        outputs = {}
        for name, model in (("fast", fast), ("slow", slow)):
            seen = []
            with ssm_quantities(model, lambda _, q, seen=seen: seen.append(q.output())):
                outputs[name, "states"] = states(model, "residual")
            outputs[name, "scans"] = seen
        same(outputs["fast", "scans"], outputs["slow", "scans"])
        same(outputs["fast", "states"], outputs["slow", "states"])
        assert ("triton", "the whole layer") not in ran(fast), ran(fast)


def check_hooks_fire():
    model = load("mamba2")
    block = model.blocks[0]
    mixer = block.mixer
    inside = {"mixer": mixer, "norm": block.norm, "in": mixer.in_proj, "out": mixer.out_proj, "gated": mixer.norm}
    for name, module in inside.items():
        calls = []
        handle = module.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        states(model, "residual", IDS[:1])
        handle.remove()
        assert len(calls) == 1, f"{name}: {len(calls)} calls"


def check_gradients_and_caches_stay_with_transformers():
    model = load("mamba")
    model.scans.forget()
    model.network(IDS, use_cache=False).logits.sum().backward()
    assert not ran(model) & WHOLE, ran(model)
    model.scans.forget()
    with torch.no_grad():
        model.network(IDS, use_cache=True)
    assert not ran(model) & WHOLE, ran(model)


def check_wrong_layer_is_found_at_load():
    right = fastpath_layers.fastpath_gpu.mamba2_layer
    fastpath_layers.fastpath_gpu.mamba2_layer = lambda mixer, hidden: 1.01 * right(mixer, hidden)
    try:
        model = fresh("mamba2")
        same(states(model, "residual"), states(load("mamba2", "reference"), "residual"))
    finally:
        fastpath_layers.fastpath_gpu.mamba2_layer = right
    assert "the whole layer differs from transformers' by" in model.scans.layers[0].whole, model.scans.layers[0].whole
    assert not ran(model) & WHOLE, ran(model)


def check_wrong_norm_is_found_at_load():
    right = fastpath_layers.fastpath_gpu.norm_forward
    fastpath_layers.fastpath_gpu.norm_forward = lambda norm, hidden: 1.01 * right(norm, hidden)
    try:
        model = fresh("mamba")
        same(states(model, "residual"), states(load("mamba", "reference"), "residual"))
    finally:
        fastpath_layers.fastpath_gpu.norm_forward = right
    assert "the norm differs from transformers' by" in model.scans.layers[0].whole, model.scans.layers[0].whole


def check_transformers_without_scan_functions():
    """As in transformers 5.17, whose layers compute the scan inside."""
    functions, fastpath.FUNCTIONS = fastpath.FUNCTIONS, {}
    try:
        for model_type in ("mamba", "mamba2"):
            fast, slow = fresh(model_type), fresh(model_type, "reference")
            same(states(fast, "residual"), states(slow, "residual"))
            assert ran(fast) == WHOLE, ran(fast)
            assert {path for path, _ in ran(slow)} == {"transformers"}, ran(slow)
            with (
                pytest.raises(InputError, match=r"install transformers 5\.22 or later"),
                ssm_quantities(fast, lambda *_: None),
            ):
                states(fast, "residual")
    finally:
        fastpath.FUNCTIONS = functions


def delta_model(scan="auto"):
    """A Gated DeltaNet layer behind attention."""
    kinds = ["full_attention", "linear_attention"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return repflow.load(tiny_model("qwen3_next", num_hidden_layers=2, layer_types=kinds), scan=scan)


def check_delta_layers():
    fast, slow = delta_model(), delta_model("reference")
    fast.scans.forget()
    same(states(fast, "residual"), states(slow, "residual"))
    assert ran(fast) == WHOLE, ran(fast)
    fast.scans.forget()
    seen = []
    with ssm_quantities(fast, lambda _, q: seen.append(q.output())):
        same(states(fast, "residual"), states(slow, "residual"))
    assert len(seen) == 1
    assert not ran(fast) & WHOLE, ran(fast)
    fast.scans.forget()
    calls = []
    handle = fast.blocks[1].linear_attn.norm.register_forward_hook(lambda *_: calls.append(1))
    states(fast, "residual")
    handle.remove()
    assert calls == [1]


def check_wrong_delta_layer_is_found_at_load():
    right = fastpath_layers.delta_layer.gated_delta_layer
    fastpath_layers.delta_layer.gated_delta_layer = lambda mixer, hidden: 1.01 * right(mixer, hidden)
    try:
        model = delta_model()
    finally:
        fastpath_layers.delta_layer.gated_delta_layer = right
    assert "the whole layer differs from transformers' by" in model.scans.layers[0].whole, model.scans.layers[0].whole


if __name__ == "__main__":
    run_named(globals(), frames=6)
