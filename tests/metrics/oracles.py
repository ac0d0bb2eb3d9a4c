"""The obvious, slow forms of every metric, in numpy float64 on one sample (state, token, width)."""

import itertools

import numpy as np
import scipy.stats
from sklearn.metrics.pairwise import cosine_similarity


def kept(hidden, drop="none"):
    """Indices of the tokens that count, one list per state."""
    norms = np.sqrt((hidden**2).sum(-1))
    tokens = range(hidden.shape[1])
    if drop == "none":
        return [list(tokens) for _ in norms]
    if drop == "first":
        return [list(tokens)[1:] for _ in norms]
    factor = float(drop.removeprefix("norm>"))
    return [[t for t in tokens if row[t] <= factor * np.median(row)] for row in norms]


def kept_over_depth(hidden, drop="none"):
    return sorted(set.intersection(*(set(tokens) for tokens in kept(hidden, drop))))


def token_similarity(hidden, drop="none", center=None):
    out = []
    for s, tokens in enumerate(kept(hidden, drop)):
        rows = hidden[s] if center is None else hidden[s] - center[s]
        cosine = cosine_similarity(rows)
        pairs = [cosine[i, j] for i in tokens for j in tokens if i != j]
        out.append(np.mean(pairs) if pairs else np.nan)
    return np.array(out)


def token_similarity_by_token(hidden, drop="none"):
    out = np.full(hidden.shape[:2], np.nan)
    for s, tokens in enumerate(kept(hidden, drop)):
        cosine = cosine_similarity(hidden[s])
        for i in tokens if len(tokens) > 1 else []:
            out[s, i] = np.mean([cosine[i, j] for j in tokens if j != i])
    return out


def cross_prompt(samples, drop="none"):
    """Mean cosine over ordered pairs of tokens of different prompts (state,)."""
    out = []
    for s in range(samples[0].shape[0]):
        values = []
        for a, b in itertools.permutations(samples, 2):
            table = cosine_similarity(a[s][kept(a, drop)[s]], b[s][kept(b, drop)[s]])
            values += table.reshape(-1).tolist()
        out.append(np.mean(values))
    return np.array(out)


def layer_cosine(hidden):
    return np.array(
        [[cosine_similarity([a], [b])[0, 0] for a, b in zip(*two, strict=True)] for two in itertools.pairwise(hidden)]
    )


def common_share(hidden, drop="none"):
    out = []
    for state, tokens in zip(hidden, kept(hidden, drop), strict=True):
        rows = state[tokens]
        out.append(np.sum(rows.mean(0) ** 2) / np.mean([r @ r for r in rows]))
    return np.array(out)


def sharpness(hidden, drop="none"):
    """Paper 2: squared distances over ordered pairs, relative to 2 (n - 1) times the energy."""
    out = []
    for state, tokens in zip(hidden, kept(hidden, drop), strict=True):
        rows = state[tokens]
        if len(rows) < 2:
            out.append(np.nan)
            continue
        spread = sum(np.sum((a - b) ** 2) for a, b in itertools.permutations(rows, 2))
        out.append(spread / 2 / ((len(rows) - 1) * np.sum(rows**2)))
    return np.array(out)


def smoothness(hidden, drop="none", mode="mean"):
    layers = len(hidden) - 1
    terms = [np.abs(hidden[s] - 0.5 * (hidden[s - 1] + hidden[s + 1])) for s in range(1, layers)]
    total = sum(terms) / (len(terms) if mode == "mean" else layers - 2)
    return total[kept_over_depth(hidden, drop)].mean()


def stability(hidden, drop="none", include_embedding=True):
    states = hidden if include_embedding else hidden[1:]
    return np.std(states, axis=0)[kept_over_depth(hidden, drop)].mean()


def scale(hidden, drop="none"):
    return np.median(np.abs(hidden).mean((0, 2))[kept_over_depth(hidden, drop)])


def directions(hidden):
    return hidden / np.sqrt((hidden**2).mean(-1, keepdims=True))


def depth_stability(hidden, drop="none"):
    tokens = kept_over_depth(hidden, drop)
    return np.var(hidden[:, tokens], axis=0).mean()


def path_energy(hidden, drop="none"):
    tokens = kept_over_depth(hidden, drop)
    return sum(np.sum((b - a)[tokens] ** 2) for a, b in itertools.pairwise(hidden))


def effective_rank(hidden, drop="none"):
    out = []
    for state, tokens in zip(hidden, kept(hidden, drop), strict=True):
        rows = state[tokens]
        energy = np.linalg.svd(rows - rows.mean(0), compute_uv=False) ** 2
        out.append(np.exp(scipy.stats.entropy(energy)) if energy.sum() > 0 else np.nan)
    return np.array(out)


def gram_share(hidden, top=4):
    shares, places = [], []
    for state in hidden:
        gram = (state - state.mean(0)) @ (state - state.mean(0)).T
        order = np.argsort(-np.linalg.norm(state, axis=-1), kind="stable")[:top]
        n = len(state)
        touched = sum(gram[i, j] ** 2 for i in range(n) for j in range(n) if i in order or j in order)
        shares.append(touched / np.sum(gram**2))
        places.append(order)
    return np.array(shares), np.array(places)


def channel_share(hidden, top=4):
    shares, places = [], []
    for state in hidden:
        energy = (state**2).sum(0)
        order = np.argsort(-energy, kind="stable")[:top]
        shares.append(energy[order].sum() / energy.sum())
        places.append(order)
    return np.array(shares), np.array(places)


def hsic_unbiased(x, y):
    """Song et al. 2012, Eq. 5, with uncentred linear kernels."""
    n = len(x)
    k, m = x @ x.T, y @ y.T
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    ones = np.ones(n)
    value = np.trace(k @ m) + (ones @ k @ ones) * (ones @ m @ ones) / ((n - 1) * (n - 2))
    return (value - 2 / (n - 2) * ones @ k @ m @ ones) / (n * (n - 3))


def hsic_biased(x, y):
    """Gretton et al. 2005: tr(K H L H) / (n - 1)²."""
    n = len(x)
    h = np.eye(n) - 1 / n
    return np.trace(x @ x.T @ h @ y @ y.T @ h) / (n - 1) ** 2


def cka(x, y, unbiased=True):
    hsic = hsic_unbiased if unbiased else hsic_biased
    return hsic(x, y) / np.sqrt(hsic(x, x) * hsic(y, y))


def cka_matrix(hidden, unbiased=True):
    return np.array([[cka(x, y, unbiased) for y in hidden] for x in hidden])
