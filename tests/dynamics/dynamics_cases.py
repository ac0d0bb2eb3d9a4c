"""Paper 3's figures as THEORY gives them, and oracles that share no code with repflow.dynamics."""

import numpy as np
from scipy.integrate import solve_ivp

FIG3 = {
    "x0": [-1.79, -0.34, 0.46, -1.25, 0.83, -0.83, 1.81, -1.16, 0.13, -0.19],
    "mu": -1.58, "s_delta": -0.17, "a": 1.08,
}  # fmt: skip
FIG4 = {
    "x0": [1.55, 2.84, 3.81, 4.57, 5.99, 6.94, 7.71, 8.96, 9.59, 10.75],
    "mu": 1.79, "s_delta": -0.71, "a": 1.80,
}  # fmt: skip
FIG5 = {
    "x0": [0.83, 0.91, 0.64, 0.78, 0.66, 0.99, 0.68, 0.72, 0.61, 0.90],
    "mu": 0.76, "s_delta": 0.59, "a": 1.66,
}  # fmt: skip
NEGATIVE = {
    "io_matrix": [[-0.552679, -0.843293], [0.869146, -0.967042]],
    "s_delta": [[0.287585, 0.99662], [-0.201208, -0.964587]],
    "a": 0.370332,
    "x0": [[-1.47982, -0.228103], [-0.406453, 1.24415], [1.8491, -0.625385], [1.26989, -1.91216]],
}
MIXED = {
    "io_matrix": [[-0.155283, 0.542694], [0.989821, 0.260748]],
    "s_delta": [[0.430263, 0.555071], [-0.654555, 0.422737]],
    "a": 0.573698,
    "x0": [[1.39902, 1.60628], [-0.342366, -0.845203], [0.616744, 1.63846], [-0.185335, -1.34566]],
}
POSITIVE = {
    "io_matrix": [[0.981721, -0.803219], [-0.342524, 0.605171]],
    "s_delta": [[0.653732, -0.228578], [-0.960714, -0.495344]],
    "a": 0.997408,
    "x0": [[1.1932, -0.702409], [-1.49159, -0.735305], [1.21287, -0.816296], [-0.462258, 1.44549]],
}


def direct_scores(x, mu, s_delta, a, last=0):
    """P of Eq. 11 by its double loop; `last=1` ends the exponent at l - 1, as Eq. 26 prints it."""
    step = np.log1p(np.exp(s_delta * np.asarray(x)))
    scores = np.zeros((len(x), len(x)))
    for l in range(len(x)):  # noqa: E741  the paper's letters
        for j in range(l + 1):
            passed = sum(step[k] for k in range(j + 1, l + 1 - last)) if l > j else 0.0
            scores[l, j] = mu * x[l] * x[j] * step[j] * np.exp(-a * passed)
    return scores


def direct_scores_nd(x, io_matrix, s_delta, a):
    """P_d of Eq. 8 by its loops."""
    x, matrix, weights = np.asarray(x), np.asarray(io_matrix), np.asarray(s_delta)
    tokens, dim = x.shape
    scores = np.zeros((dim, tokens, tokens))
    decay = np.broadcast_to(a, dim)
    for d in range(dim):
        step = [np.log1p(np.exp(weights[d] @ x[k])) for k in range(tokens)]
        for l in range(tokens):  # noqa: E741
            for j in range(l + 1):
                scores[d, l, j] = x[l] @ matrix @ x[j] * step[j] * np.exp(-decay[d] * sum(step[j + 1 : l + 1]))
    return scores


def solve(x0, mu, s_delta, a, t, last=0, method="DOP853", rtol=1e-12):
    """The P-form in plain t by scipy."""

    def slope(_, x):
        return direct_scores(x, mu, s_delta, a, last) @ x

    done = solve_ivp(slope, (0, t[-1]), x0, method=method, rtol=rtol, atol=1e-14, t_eval=t)
    assert done.success, done.message
    return done.y.T


def solve_nd(x0, io_matrix, s_delta, a, t, method="DOP853", rtol=1e-11):
    x0 = np.asarray(x0, dtype=float)

    def slope(_, flat):
        x = flat.reshape(x0.shape)
        return np.einsum("dlj,jd->ld", direct_scores_nd(x, io_matrix, s_delta, a), x).reshape(-1)

    done = solve_ivp(slope, (0, t[-1]), x0.reshape(-1), method=method, rtol=rtol, atol=1e-13, t_eval=t)
    assert done.success, done.message
    return done.y.T.reshape(-1, *x0.shape)
