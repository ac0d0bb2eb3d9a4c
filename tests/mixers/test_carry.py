"""Every family, a few tokens at a time from what it kept, against the whole sequence in float64."""

import pytest
import torch

from repflow.mixers import build
from repflow.mixers.build import families
from repflow.mixers.scan.carry import Carry

CASES = [
    *((family, {}) for family in families()),
    ("softmax_attention", {"heads": 4, "kv_heads": 2, "window": 5}),
    ("softmax_attention", {"rotary": 0.5}),
    ("softmax_attention", {"window": 1}),
    ("linear_attention", {"feature_map": "identity"}),
    ("retention", {"rotary": False}),
    ("gla", {"conv": 3}),
    ("h3", {"conv": 0, "head_dim": 2}),
    ("s6", {"conv": 0, "polarize": "both"}),
    ("ssd", {"conv": 2}),
    ("rg_lru", {"conv": 0}),
]
CUTS = ([1] * 40, [33] + [1] * 7, [1, 2, 37], [2, 1, 1, 36], [40])


@pytest.mark.parametrize(("family", "options"), CASES, ids=lambda value: str(value) if value else "")
def test_parts_are_the_whole(family, options):
    torch.manual_seed(0)
    mixer = build(family, 16, **options).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        x = torch.randn(2, 40, 16, dtype=torch.float64)
        whole = mixer(x)
        for cuts in CUTS:
            carry, outputs, at = Carry(), [], 0
            for size in cuts:
                outputs.append(mixer.advance(x[:, at : at + size], carry))
                at += size
            assert carry.seen == at == 40
            torch.testing.assert_close(torch.cat(outputs, 1), whole, rtol=0, atol=1e-12 * float(whole.abs().max()))


@pytest.mark.parametrize("family", families())
def test_rows_can_be_chosen(family):
    torch.manual_seed(0)
    mixer = build(family, 16).double()
    x = torch.randn(3, 9, 16, dtype=torch.float64)
    rows = torch.tensor([2, 0, 2, 1])
    with torch.no_grad():
        carry = Carry()
        mixer.advance(x[:, :8], carry)
        carry.select(rows)
        got = mixer.advance(x[rows, 8:], carry)
        torch.testing.assert_close(got, mixer(x)[rows, 8:], rtol=1e-9, atol=1e-12)


def test_a_window_keeps_no_more_keys_than_it_needs():
    mixer, carry = build("softmax_attention", 16, window=5), Carry()
    with torch.no_grad():
        for _ in range(12):
            mixer.advance(torch.randn(1, 3, 16), carry)
    assert carry.state["keys"].shape[2] == 4
