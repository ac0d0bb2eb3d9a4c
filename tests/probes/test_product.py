"""Three TF32 products are nearly a float32 one. TF32 itself is emulated: the split's upper parts are exact in it."""

import numpy as np
import pytest
import torch

from repflow.probes import product
from repflow.probes.product import RowMatrix, split_tf32, tf32_products


def tf32(x):
    """What the matrix unit keeps of a float32: 10 bits of the fraction."""
    return (x.view(torch.int32) & ~((1 << 13) - 1)).view(torch.float32)


def matrices(seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(2, 30, 400, generator=generator) * 10 + 3
    return rows, torch.randn(2, 9, 400, generator=generator), torch.randn(2, 30, 9, generator=generator)


def test_split_is_exact_and_its_upper_part_fits_tf32():
    x = torch.randn(1000) * torch.logspace(-20, 20, 1000)
    high, low = split_tf32(x)
    assert torch.equal(high + low, x)
    assert torch.equal(tf32(high), high)
    assert bool((low.abs() <= x.abs() * 2**-10).all())


def test_split_products_are_float32_even_on_tf32_units(monkeypatch):
    rows, weight, residual = matrices()
    scores = rows.double() @ weight.double().mT
    gathered = residual.double().mT @ rows.double()
    bmm, plain = torch.bmm, RowMatrix(rows.clone(), split=False)
    one = (bmm(tf32(rows), tf32(weight).mT) - scores).abs().max()
    monkeypatch.setattr(product.torch, "bmm", lambda a, b: bmm(tf32(a.contiguous()), tf32(b.contiguous())))
    monkeypatch.setattr(
        torch.Tensor, "baddbmm_", lambda self, a, b: self.add_(bmm(tf32(a.contiguous()), tf32(b.contiguous())))
    )
    split = RowMatrix(rows.clone(), split=True)
    three = (split.scores(0, 30, weight) - scores).abs().max()
    back = (split.gather(0, 30, residual) - gathered).abs().max()
    assert three < one / 100
    assert three < 1e-5 * scores.abs().max()
    assert back < 1e-5 * gathered.abs().max()
    assert plain.shape == split.shape == (2, 30, 400)


@pytest.mark.parametrize("split", [False, True])
def test_products_of_some_rows(split):
    rows, weight, residual = matrices(1)
    matrix = RowMatrix(rows.clone(), split=split)
    torch.testing.assert_close(matrix.scores(5, 12, weight), rows[:, 5:12] @ weight.mT, rtol=1e-5, atol=1e-3)
    want = residual[:, 5:12].mT @ rows[:, 5:12]
    torch.testing.assert_close(matrix.gather(5, 12, residual[:, 5:12]), want, rtol=1e-5, atol=1e-4)
    total = torch.ones(2, 9, 400)
    matrix.gather_into(total, 5, 12, residual[:, 5:12])
    torch.testing.assert_close(total, want + 1, rtol=1e-5, atol=1e-4)


def test_the_users_own_setting_comes_back():
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    with pytest.raises(ZeroDivisionError), tf32_products(True):
        assert setting.fp32_precision == "tf32"
        _ = 1 / 0
    assert setting.fp32_precision == before


def test_a_whole_fit_with_split_products(monkeypatch):
    from repflow.probes import ArrayFeatures, fit, fit_probes
    from tests.probes.probe_inputs import class_means, random_splits

    x, y = class_means((0.5, 1.0), scales=(1.0, 20.0))
    x = x.astype(np.float32)
    # one penalty at a time: validation may find two of them equally good, and rounding chooses then
    for options in (
        {"recipe": "paper", "epochs": 30},
        *({"recipe": "robust", "penalties": (p,)} for p in (1.0, 1e-2, 1e-4)),
    ):
        plain = fit_probes(ArrayFeatures(x), y, random_splits(300, 2), n_classes=3, **options)
        with monkeypatch.context() as patch:
            patch.setattr(fit, "_splits", lambda precision, device: True)
            split = fit_probes(ArrayFeatures(x), y, random_splits(300, 2), n_classes=3, **options)
        np.testing.assert_allclose(split.loss, plain.loss, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(split.accuracy_test, plain.accuracy_test, atol=1 / 60)
