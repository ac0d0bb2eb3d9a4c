"""Quantities of state-space layers: against transformers' own scan, the sequential reference, and hand-made numbers."""

import pytest
import torch

from repflow.core.errors import InputError
from repflow.mixers import build
from repflow.mixers.scan.forms import recurrence, selective_scan, ssd_scan
from repflow.models import load, ssm_quantities
from repflow.models.fastpath import layer_scan
from repflow.models.fastpath import scans as fastpath
from repflow.models.recurrence.quantities import of_call
from tests.models.recurrence.scan_models import S6, SSD, lively, scan_function
from tests.models.tiny_configs import tiny_model
from tests.sample import SCANS, chosen


def collect(model, ids, take):
    rows = []
    with ssm_quantities(model, lambda layer, q: rows.append((layer, q.part, take(q)))):
        model.stream(ids, on_state=lambda *_: None)
    assert not any(layer.watchers for layer in model.scans.layers)
    return rows


def scan_alone(call):
    """The SSM term by the token-by-token reference in float64."""
    form, parts = (selective_scan, ("x", "delta", "A", "B", "C"))
    if call.kind == "ssd":
        form = ssd_scan
    return form(*(getattr(call, name).double() for name in parts), path="reference")


@pytest.mark.parametrize("setting", ["auto", "reference"])
@pytest.mark.parametrize("model_type", chosen([*S6, *SSD], SCANS))
def test_output_of_states_is_the_scan(model_type, setting, ids):
    model = load(lively(model_type), scan=setting)
    for _, _, (ours, reference) in collect(model, ids, lambda q: (q.output(), scan_alone(q.call))):
        reference = reference.flatten(2)
        assert float(reference.abs().max()) > 1e-4  # a term of zeros would agree with anything
        torch.testing.assert_close(ours.double(), reference, rtol=1e-4, atol=1e-5 * float(reference.abs().max()))


@pytest.mark.parametrize("model_type", ["mamba", "mamba2"])
def test_states_in_float64(model_type, ids):
    model = load(lively(model_type).double(), dtype="float64")

    def take(q):
        pieces = list(q.states(chunk=7))
        assert [part.stop - part.start for part, _ in pieces] == [7, 7, 6]
        whole = torch.cat([h for _, h in pieces], dim=1)
        y, reference = recurrence(q.transition(), return_states=True)
        torch.testing.assert_close(whole, reference.expand_as(whole), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(y, scan_alone(q.call).flatten(2), rtol=1e-9, atol=1e-12)
        return q.decay()

    for layer, part, decay in collect(model, ids, take):
        assert part == 0
        assert decay.dtype == torch.float64
        assert 0 < float(decay.min()) <= float(decay.max()) < 1
        mixer = model.blocks[layer].mixer
        assert decay.shape[2:] == ((mixer.intermediate_size, 4) if model_type == "mamba" else (8, 1))


def test_decay_by_hand(ids):
    model = load(lively("mamba"))
    rates = [-torch.exp(block.mixer.A_log.detach()) for block in model.blocks]
    for layer, _, (decay, delta) in collect(model, ids, lambda q: (q.decay(slice(3, 5)), q.call.delta)):
        want = torch.exp(delta[:, 3:5, :, None] * rates[layer])
        torch.testing.assert_close(decay, want)


def test_zamba_hands_out_every_head(ids):
    model = load(lively("zamba"))
    places = [(layer, part) for layer, part, _ in collect(model, ids, lambda q: None)]
    assert places == [(layer, head) for layer in range(4) for head in range(2)]


def test_initial_state_goes_in():
    x = torch.randn(1, 3, 2, 2, dtype=torch.float64)
    initial = torch.randn(1, 2, 2, 4, dtype=torch.float64)
    parts = [x, torch.rand(1, 3, 2).double(), -torch.rand(2).double(), torch.randn(1, 3, 1, 4).double()]
    names = ("hidden_states", "dt", "A", "B", "C")
    value = dict(zip(names, [*parts, parts[3]], strict=True)) | {"chunk_size": 2, "initial_states": initial}
    call = layer_scan.read_call("ssd", scan_function("mamba2", "mamba2_chunk_scan"), (), value)
    ours = of_call(layer_scan.LayerScan("ssd", 0, "auto"), call).output()
    want = ssd_scan(*parts, parts[3], initial=initial, path="reference").flatten(2)
    torch.testing.assert_close(ours, want)


def test_own_mixers():
    mixers = torch.nn.ModuleList([build("s6", 8), build("gla", 8)])
    fastpath.install(mixers, list(mixers))
    model = type("Stack", (), {"scans": fastpath.install(mixers, list(mixers)), "blocks": list(mixers)})()
    x, rows = torch.randn(2, 5, 8), []
    with ssm_quantities(model, lambda layer, q: rows.append((layer, q.kind, q.output()))):
        outputs = [mixer(x) for mixer in mixers]
    assert [(layer, kind) for layer, kind, _ in rows] == [(0, "own"), (1, "own")]
    for mixer, (_, _, y), want in zip(mixers, rows, outputs, strict=True):
        torch.testing.assert_close(mixer.readout(y, x), want, rtol=1e-4, atol=1e-6)


def test_own_mixers_compute_nothing_that_is_not_asked_for(monkeypatch):
    mixer = build("s6", 8)
    scans = fastpath.install(mixer, [mixer])
    model = type("Stack", (), {"scans": scans, "blocks": [mixer]})()
    monkeypatch.setattr(mixer, "transition", None)
    seen = []
    with ssm_quantities(model, lambda layer, q: seen.append(q.tokens)):
        mixer(torch.randn(2, 5, 8))
    assert seen == [5]


@pytest.mark.parametrize("setting", ["reference", "fast"])
def test_two_models_of_one_network_each_keep_their_setting(setting, ids):
    network = lively("mamba2")
    first, second = load(network), load(network, scan=setting)
    for model in (first, second):
        model.scans.forget()
    assert len(collect(first, ids, lambda q: q.tokens)) == len(first.scans.layers)
    assert (first.scans.facts()["asked"], second.scans.facts()["asked"]) == ("auto", setting)
    assert first.scans.facts()["ssd"]["ran"]
    assert not second.scans.facts()["ssd"]["ran"]


def test_model_without_states_is_refused():
    model = load(tiny_model("gpt2"))
    expected = "expected a model with state-space layers; got gpt2, whose layers are attention; choose another model"
    with pytest.raises(InputError, match=expected), ssm_quantities(model, lambda *_: None):
        pass


def test_unreadable_scan_is_refused():
    layer = layer_scan.LayerScan("s6", 2, "auto", watchers=[lambda *_: None])
    function = scan_function("mamba", "mamba_selective_scan")
    parts = [torch.ones(1, 4, 6, device="meta") for _ in range(2)]
    with pytest.raises(InputError, match="a scan in block 3 whose quantities can be read; got tensors on the device"):
        layer.answer("s6", function, (*parts, -torch.ones(4, 3), torch.ones(1, 3, 6), torch.ones(1, 3, 6)), {})
