"""Hidden attention P(t) of paper 3, Eq. 6, 8 and 11.

    P_lj = x_lᵀ M x_j · Δ(x_j) · exp(-a Σ_{k=j+1}^{l} Δ(x_k)),   j ≤ l

The exponent runs to l. Eq. 26 and 27 of the paper's proof stop at l - 1, which does not follow from its recurrence (1).
"""

from __future__ import annotations

import numpy as np

from repflow.dynamics.step_size import Numbers, softplus


def hidden_attention(x: Numbers, *, mu: Numbers, s_delta: Numbers, a: Numbers) -> np.ndarray:
    """P of one state of the one-dimensional system.

    Args:
        x: (token,).
        mu: input-output product S_Cᵀ S_B.
        s_delta: step-size weight S_Δ.
        a: decay.

    Returns:
        (token, token), lower triangular; the derivative of x is P @ x.

    >>> hidden_attention([1.0, 2.0], mu=1.0, s_delta=0.0, a=1.0).round(4)
    array([[0.6931, 0.    ],
           [0.6931, 2.7726]])
    """
    tokens = np.asarray(x, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        step = softplus(s_delta * tokens)
        return mu * np.outer(tokens, tokens * step) * decays(np.exp(-a * step))


def hidden_attention_nd(x: Numbers, *, io_matrix: np.ndarray, s_delta: np.ndarray, a: Numbers) -> np.ndarray:
    """P of one state of the system in D dimensions, one matrix per channel.

    Args:
        x: (token, dim).
        io_matrix: S_Cᵀ S_B, (dim, dim).
        s_delta: (dim, dim), row d the step-size vector of channel d.
        a: decay, () or (dim,).

    Returns:
        (dim, token, token).

    >>> hidden_attention_nd([[1.0], [2.0]], io_matrix=np.eye(1), s_delta=np.zeros((1, 1)), a=1.0)[0].round(4)
    array([[0.6931, 0.    ],
           [0.6931, 2.7726]])
    """
    tokens = np.asarray(x, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        step = softplus(tokens @ s_delta.T)
        factors = np.exp(-np.broadcast_to(np.asarray(a, dtype=np.float64), step.shape[1:]) * step)
        scores = tokens @ io_matrix @ tokens.T
        return np.stack([scores * step[:, d] * decays(factors[:, d]) for d in range(step.shape[1])])


def decays(factors: np.ndarray) -> np.ndarray:
    """Π_{k=j+1}^{l} factor_k as a lower triangular matrix, row by row: products, so that nothing cancels.

    >>> decays(np.array([0.9, 0.5, 0.1]))
    array([[1.  , 0.  , 0.  ],
           [0.5 , 1.  , 0.  ],
           [0.05, 0.1 , 1.  ]])
    """
    count = len(factors)
    table = np.zeros((count, count))
    for token in range(count):
        table[token, :token] = factors[token] * table[token - 1, :token]
        table[token, token] = 1.0
    return table
