"""Weights for tests of the closed forms."""

import numpy as np


def transformer_weights(seed, d=5, d_ff=7):
    rng = np.random.default_rng(seed)
    w1, w2, wv, wq, wk = (
        rng.standard_normal(shape) / np.sqrt(shape[1]) for shape in ((d_ff, d), (d, d_ff), (d, d), (d, d), (d, d))
    )
    return {"W1": w1, "W2": w2, "W_V": wv, "W_Q": wq, "W_K": wk, "b1": rng.standard_normal(d_ff) / 2}


def mamba_weights(seed, n=6, lags=3, *, dense=False, channelwise=False):
    rng = np.random.default_rng(seed)
    state, e, d = 3, 4, 5
    decay = rng.uniform(-0.9, 0.95, (n, state))
    if dense:
        decay = np.stack([0.9 * np.linalg.qr(rng.standard_normal((state, state)))[0] for _ in range(n)])
    shapes = ((n, state, e), (n, e, state), (lags, e) if channelwise else (lags, e, e), (e, d), (e, d))
    names = ("B", "C", "W_c", "W_h", "W_z")
    return {"A": decay} | {name: rng.standard_normal(shape) / 2 for name, shape in zip(names, shapes, strict=True)}
