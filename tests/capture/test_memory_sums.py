"""Memory statistics: against whole tensors in float64, brute-force pairs, hand-made recurrences, and bounded memory."""

import numpy as np
import pytest
import torch

from repflow.capture import MemorySink
from repflow.capture.memory.statistics import cumulative, measure_memory
from repflow.capture.memory.sums import layer_sums
from repflow.mixers.scan.forms import recurrence
from repflow.mixers.transition import Transition
from repflow.models import load, ssm_quantities
from repflow.models.recurrence import layer as recurrence_file
from repflow.tasks import id_prompts
from repflow.theory import memory_contraction
from tests.capture.inputs import model, prompts
from tests.models.recurrence.scan_models import lively
from tests.models.stack.inputs import stack
from tests.models.tiny_configs import tiny_model

RAGGED = (7, 12, 2, 12)


def pairwise(x):
    """Sharpness by its printed double sum: Σ_{i≠j} ‖x_i − x_j‖² / (2 (n − 1) Σ‖x_i‖²)."""
    x = x.reshape(len(x), -1)
    gaps = sum(float((abs(a - b) ** 2).sum()) for i, a in enumerate(x) for j, b in enumerate(x) if i != j)
    return gaps / (2 * (len(x) - 1) * float((abs(x) ** 2).sum()))


def whole(network_model, ids):
    """Every transition of one prompt in float64, whole, by layer and scan."""
    by_layer = {}
    with ssm_quantities(network_model, lambda layer, q: by_layer.setdefault(layer, []).append(q.transition())):
        network_model.stream(torch.tensor([ids]), on_state=lambda *_: None)
    return by_layer


def oracle(parts):
    """Numbers of one layer on one prompt from the whole transitions of its scans."""
    h = [recurrence(part, return_states=True)[1][0] for part in parts]
    full = [
        [part.expand(h[i].shape if part.ndim < 4 else (1, *h[i].shape))[0].numpy() for part in p]
        for i, p in enumerate(parts)
    ]
    A = np.concatenate([p[0] for p in full], 1)
    b, delta = np.concatenate([p[1] for p in full], 1), np.concatenate([p[3] for p in full], 1)
    state = np.concatenate([part.numpy() for part in h], 1)
    later = abs(A[1:])
    with np.errstate(divide="ignore"):
        rate = -np.log(later).mean(0)
    return {
        "A_max": later.max((0, 2)), "A_min": later.min((0, 2)), "slow": rate.min(-1), "fast": rate.max(-1),
        "met": float(((abs(A) + delta <= 1 + 1e-12) & (delta >= 0)).mean()),
        "input": pairwise(b), "entry": pairwise(delta * b), "state": pairwise(state),
        "A": abs(A), "b": b, "delta": delta, "h": state,
    }  # fmt: skip


def spread(f):
    """Left side of Theorem 4.2 by the theory's own loop."""
    flat = [np.broadcast_to(f[key], f["h"].shape).reshape(len(f["A"]), -1) for key in ("A", "delta", "b")]
    return memory_contraction(*flat).lhs


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "bamba", "zamba", "rwkv", "recurrent_gemma"])
def test_against_whole_tensors(kind):
    loaded = load(
        (lively(kind) if kind not in ("rwkv", "recurrent_gemma") else model(kind).network).double(), dtype="float64"
    )
    inputs = prompts(RAGGED)
    table, transitions = measure_memory(loaded, inputs, MemorySink(), batch_size=2)
    stat = {name: array for name, (_, array) in table.items()}
    each = [whole(loaded, prompt.ids) for prompt in inputs]
    for layer, entry in enumerate(transitions):
        if entry["kind"] is None:
            assert np.isnan(stat["A_range"][layer]).all()
            assert np.isnan(stat["contractive_share"][layer]).all()
            continue
        oracles = [oracle(sample[layer]) for sample in each]
        stride = len(oracles[0]["A_max"]) // entry["units"]  # channels of a head are alike
        for name, reduce in (("A_max", np.max), ("A_min", np.min)):
            want = reduce([f[name] for f in oracles], 0)[::stride]
            np.testing.assert_allclose(stat[name][layer, : entry["units"]], want, rtol=1e-9)
        weight = np.array(RAGGED) - 1
        rate = (np.stack([f["slow"] for f in oracles]) * weight[:, None]).sum(0)[::stride] / weight.sum()
        np.testing.assert_allclose(stat["half_life"][layer, : entry["units"]], np.log(2) / rate, rtol=1e-8)
        for part in ("input", "entry", "state"):
            np.testing.assert_allclose(stat[f"sharpness/{part}"][layer], [f[part] for f in oracles], rtol=1e-8)
        np.testing.assert_allclose(stat["contractive_share"][layer], [f["met"] for f in oracles], atol=1e-6)
        if kind != "zamba":
            want = [spread(f) for f in oracles]
            np.testing.assert_allclose(stat["spread_state"][layer], want, rtol=1e-8)


def of_prompt(loaded, ids):
    """Residual states and outputs of GPT-Neo's attention on one prompt."""
    states, added = [], []
    hooks = [
        b.attn.register_forward_hook(lambda m, i, o: added.append(o[0][0].double().numpy())) for b in loaded.blocks
    ]
    loaded.stream(torch.tensor([ids]), on_state=lambda _, h: states.append(h[0].double().numpy()))
    for hook in hooks:
        hook.remove()
    return states, added


def test_mixer_and_block_by_pairs():
    loaded, inputs = model("gpt_neo"), prompts(RAGGED)
    table, _ = measure_memory(loaded, inputs, MemorySink())
    for sample, prompt in enumerate(inputs):
        states, added = of_prompt(loaded, prompt.ids)
        assert table["sharpness/embedding"][1][sample] == pytest.approx(pairwise(states[0]), abs=1e-5)
        for layer in range(4):
            block, mixer = pairwise(states[layer + 1]), pairwise(added[layer])
            assert table["sharpness/block"][1][layer, sample] == pytest.approx(block, abs=1e-5)
            assert table["sharpness/mixer"][1][layer, sample] == pytest.approx(mixer, abs=1e-5)
    assert "A_max" not in table
    assert np.isnan(table["sharpness/state"][1]).all()


def test_every_family_of_a_stack():
    mixers = [
        "s6",
        "ssd",
        "softmax_attention",
        "rwkv4",
        "rwkv5",
        "gla",
        "retention",
        "linear_attention",
        "s4d",
        "h3",
        "rg_lru",
    ]
    loaded = load(stack(mixers))
    rows = [np.random.default_rng(i).integers(1, 64, n).tolist() for i, n in enumerate((9, 6))]
    table, transitions = measure_memory(loaded, id_prompts(rows, 64), MemorySink(), attention=3)
    kinds = [entry["kind"] for entry in transitions]
    assert kinds == [None if name == "softmax_attention" else f"own:{name}" for name in mixers]
    for name in ("sharpness/state", "sharpness/input", "contractive_share"):
        assert (np.isfinite(table[name][1]).all(1) == [kind is not None for kind in kinds]).all(), name
    assert np.isfinite(table["attention/row_entropy"][1]).all()
    half = table["half_life"][1]
    assert np.isposinf(half[kinds.index("own:linear_attention")][:4]).all()  # it never forgets
    gammas = half[kinds.index("own:retention")][:4]
    np.testing.assert_allclose(gammas, np.log(2) / -np.log(1 - 2.0 ** (-5 - np.arange(4))), rtol=1e-5)
    never = table["never_contractive"][1]
    assert never[0] == 0.25  # rates 1, 2, 3, 4: the first of four states never meets A + Δ ≤ 1
    assert np.isnan(never[3])


def test_polarized_states_have_the_whole_range():
    loaded = load(polarized())
    table, _ = measure_memory(loaded, id_prompts([[5, 6, 7, 8]], 64), MemorySink())
    assert (table["A_max"][1] == 1).all()
    assert (table["A_min"][1] == 0).all()
    assert np.isposinf(table["half_life"][1]).all()
    assert (table["half_life_fastest"][1] == 0).all()
    assert table["range_cumulative"][1][-2] == 0
    assert table["range_cumulative"][1][-1] == 1


def polarized():
    from repflow.models.stack.network import StackConfig, StackForCausalLM

    torch.manual_seed(0)
    mixers = [{"name": "s6", "state": 5, "polarize": "both"}]
    return StackForCausalLM(StackConfig(mixers=mixers, hidden_size=16, vocab_size=64)).eval()


class Given(recurrence_file.Recurrence):
    """A recurrence from whole tensors."""

    kind, unit, dim = "own", "channel", 1

    def __init__(self, parts):
        self.parts = parts
        self.batch, self.tokens, self.units, _ = parts.b.shape

    def transition(self, tokens=slice(None)):
        return Transition(*(part[:, tokens] for part in self.parts))

    def log_decay(self, tokens=slice(None)):
        return self.parts.A[:, tokens].log()

    def operator(self, units):
        raise NotImplementedError


def test_numbers_by_hand():
    """A = .9, .25, .5, b = 1, −1, 1, Δ = .5: h = .5, −.375, .3125."""
    A = torch.tensor([0.9, 0.25, 0.5]).view(1, 3, 1, 1)
    b = torch.tensor([1.0, -1.0, 1.0]).view(1, 3, 1, 1)
    one = torch.ones(1, 3, 1, 1)
    own = Given(Transition(A, b, one, 0.5 * one))
    from repflow.models import SsmQuantities

    sums = layer_sums(SsmQuantities(0, 0, "own", 3, None, lambda: own, None, "made"), torch.tensor([3]))
    assert sums.kind == "own:made"
    # the first token's decay multiplies nothing
    assert (sums.most.item(), sums.least.item()) == pytest.approx((0.5, 0.25))
    assert sums.slow.item() == pytest.approx(-(np.log(0.25) + np.log(0.5)) / 2)
    assert sums.met.item() == pytest.approx(2 / 3)  # .9 + .5 > 1
    assert sums.spread_state.item() == pytest.approx(0.875)
    assert sums.spread_bound.item() == pytest.approx((1 - 0.25**2) * 2)
    square, joint = (part.item() for part in sums.energy["state"])
    assert square == pytest.approx(0.5**2 + 0.375**2 + 0.3125**2)
    assert joint == pytest.approx((0.5 - 0.375 + 0.3125) ** 2)


def test_nothing_of_tokens_times_channels_times_states_is_kept(monkeypatch):
    """No more than a chunk of states exists at a time, and no tensor grows with both tokens and states."""
    loaded = load(lively("mamba"))
    monkeypatch.setattr(recurrence_file, "BUFFER", 3000)
    monkeypatch.setattr("repflow.capture.memory.sums.BUFFER", 3000)
    seen = []
    original = recurrence_file.ScanRecurrence.transition

    def watch(self, tokens=slice(None)):
        step = original(self, tokens)
        seen.append(step.b.numel())
        return step

    monkeypatch.setattr(recurrence_file.ScanRecurrence, "transition", watch)
    inputs = prompts((20, 20))
    chunked, _ = measure_memory(loaded, inputs, MemorySink())
    assert max(seen) <= 3000 < 2 * 20 * 64 * 4
    monkeypatch.undo()
    usual, _ = measure_memory(loaded, inputs, MemorySink())
    for name, (_, array) in usual.items():
        np.testing.assert_allclose(chunked[name][1], array, rtol=1e-4, equal_nan=True)


def test_out_of_memory_behind_a_mixer_leaves_nothing_in_the_next_batch():
    inputs = prompts((20, 20, 14, 14))
    want, _ = measure_memory(load(tiny_model("gpt_neo")), inputs, MemorySink(), batch_size=1)
    loaded = load(tiny_model("gpt_neo"))
    mlp = loaded.blocks[1].mlp
    forward = mlp.forward

    def starved(hidden):
        if len(hidden) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(hidden)

    mlp.forward = starved
    after, _ = measure_memory(loaded, inputs, MemorySink(), batch_size=2)
    for name, (_, array) in want.items():
        np.testing.assert_allclose(after[name][1], array, rtol=1e-5, equal_nan=True)


def test_layers_behind_a_bad_weight_are_nan():
    network = lively("mamba2")
    with torch.no_grad():
        network.backbone.layers[2].mixer.out_proj.weight[0, 0] = torch.nan
    loaded = load(network)
    table, _ = measure_memory(loaded, prompts((9,)), MemorySink())
    for name in ("contractive_share", "sharpness/state", "sharpness/mixer", "sharpness/block"):
        assert (np.isfinite(table[name][1][:, 0]) == [True, True, False, False]).all(), name


def test_cumulative_of_nothing_is_nan():
    assert np.isnan(cumulative(np.array([np.nan]))).all()
