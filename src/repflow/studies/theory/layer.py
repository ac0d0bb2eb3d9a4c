"""One layer of a real model under paper 1's theorems: prediction, measurement, constants, and which hypotheses fail."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import silu

from repflow import theory
from repflow.studies.theory.reading import Attention, MambaMixer, Seen, double, linear_of, mamba_of
from repflow.theory.channel import (
    ChannelBlock,
    channel_contractivity,
    channel_mean,
    channel_reach,
    filter_norm,
    own_gain,
    trace_of,
)
from repflow.theory.hypotheses import Hypothesis
from repflow.theory.transformer import constants_of, linear_trace_of, printed_trace_of, update_sums

LITTLE = 0.05  # share of a mean or of a correlation that counts as none
LINEAR = 0.1  # relative error of x/2 for an activation that counts as small
SAME = 0.1  # relative variation between prompts that counts as none


@dataclass
class LayerFacts:
    """What is known of one layer.

    Attributes:
        sigma: root mean square of what the mixer sees.
        linearisation: relative error of taking the activation for x/2, on the update it makes.
        printed: St_1² of the layer by the printed theorems.
        predicted: the same by the corrected ones.
        measured: the same as measured.
        bound: Theorem 5's bound on it (Mamba only).
        constants: α_T, β_T, γ_T of a Transformer; ρ, c, b, h, z of a Mamba.
        hypotheses: conditions and whether they hold here.
    """

    sigma: float
    linearisation: float
    printed: float
    predicted: float
    measured: float
    bound: float
    constants: dict[str, float]
    hypotheses: list[Hypothesis] = field(default_factory=list)


def transformer_layer(
    reading: Attention, seen: list[Seen], steps: list[float], entering: list[np.ndarray]
) -> LayerFacts:
    """Theorems 1, 2 and 5 in a Transformer block: uniform causal attention, GELU = x/2, σ as measured.

    Args:
        reading: modules and weights.
        seen: one per prompt.
        steps: ‖h^(l+1) - h^(l)‖² of each prompt.
        entering: residual state that the block got, of each prompt.
    """
    w_q, w_k, w_v = map(double, reading.projections)
    wv = double(reading.out).flatten(1) @ w_v.flatten(0, 1)
    (w1, b1), (w2, b2) = (tuple(map(double, linear_of(module))) for module in (reading.up, reading.down))
    inputs = [s.arrays["x"] for s in seen]
    s2 = float(np.mean([np.mean(x**2) for x in inputs]))
    mean, sums = float((0.5 * w2 @ b1 + b2).square().sum()), update_sums(w1, w2, wv)
    printed, predicted, measured = [], [], []
    for x, step in zip(inputs, steps, strict=True):
        n, size = len(x), 4 * x.size
        harmonic = sum(1 / t for t in range(1, n + 1))
        printed.append((printed_trace_of(sums, s2, n) + mean) / size)  # the paper counts the mean once, not n times
        predicted.append((linear_trace_of(sums, s2, n, harmonic) + n * mean) / size)
        measured.append(step / size)
    out, linear = ([_there(s.arrays[name], w2) @ w2.T for s in seen] for name in ("act", "pre"))
    error = _relative_error([part / 2 for part in linear], out)
    logits = ((w_q @ w_q.mT) * (w_k @ w_k.mT)).sum((1, 2)).div(w_q.shape[1]).sqrt()
    eye = torch.eye(len(wv), dtype=wv.dtype, device=wv.device)
    spread, off = s2 * float(logits.mean()), float((wv @ wv.T - eye).abs().max())
    bias = max(float(part.abs().max()) for part in reading.biases)
    constants = constants_of(sums, mean)
    hypotheses = [
        *_input_hypotheses(inputs, entering, error, "GELU", wv),
        Hypothesis("one head", len(w_q) == 1, f"{len(w_q)} heads, read as one"),
        Hypothesis("feed-forward part after attention", not reading.parallel, "both read the same state"),
        Hypothesis("uniform attention", bool(spread <= LINEAR), f"spread of the logits, σ²‖B‖_F, is {spread:.3g}"),
        Hypothesis("no biases in Q, K, V", bias == 0, f"largest is {bias:.3g}"),
        Hypothesis("W_V W_Vᵀ = I (printed form)", off <= LINEAR, f"largest entry of the difference is {off:.3g}"),
    ]
    before, after, seen_step = (float(np.mean(part)) for part in (printed, predicted, measured))
    return LayerFacts(math.sqrt(s2), error, before, after, seen_step, math.nan, constants._asdict(), hypotheses)


def mamba_layer(mixer: Any, seen: list[Seen], entering: list[np.ndarray]) -> LayerFacts:
    """Theorems 3, 4 and 5 in a Mamba mixer: A, B, C and Δ as each prompt made them, σ as measured.

    The update is F = o ∘ z without the skip D, before a gated norm and the output projection: the theorems leave them
    out.
    """
    parts = mamba_of(mixer)
    inputs = [s.arrays["x"] for s in seen]
    s2 = float(np.mean([np.mean(x**2) for x in inputs]))
    printed, predicted, measured, bounds, gains = [], [], [], [], []
    linear, true, constants, skipped = [], [], [], []
    filters: float | None = None  # of the weights alone
    for s in seen:
        block, u, gate, skip = channel_block(parts, s)
        rows, size = channel_mean(block, s2), 4 * u.numel()
        reach = channel_reach(block, [silu(u), u / 2])
        predicted.append((trace_of(block, reach, s2) + float(rows.square().sum())) / size)
        printed.append((trace_of(block, reach, s2, printed=True) + float(rows.mean(0).square().sum())) / size)
        true.append(reach.outputs[0] * silu(gate))  # the skip D is no part of the theorems
        whole = true[-1] + skip * silu(u) * silu(gate)
        skipped.append(float((whole - true[-1]).square().sum() / whole.square().sum().clamp_min(1e-300)))
        measured.append(float(true[-1].square().sum()) / size)
        linear.append(reach.outputs[1] * gate / 2)
        filters = filter_norm(block.taps, block.W_h) if filters is None else filters
        norms = channel_contractivity(block, filters)
        constants.append(norms)
        limit = theory.mamba_constants(*norms).beta_prime if norms.rho < 1 else math.inf
        bounds.append(len(u) * s2**2 / 16 * limit / size)
        gains.append(own_gain(block).cpu().numpy())
    error = _relative_error(linear, true)
    worst = np.max(np.array(constants), axis=0)
    hypotheses = [
        *_input_hypotheses(inputs, entering, error, "SiLU", parts.taps),
        _selective(gains),
        Hypothesis("‖A_t‖₂ ≤ ρ < 1", bool(worst[0] < 1), f"ρ is {worst[0]:.6g}"),
        *_structure(parts, seen, float(np.mean(skipped))),
    ]
    before, after, seen_step, bound = (float(np.mean(part)) for part in (printed, predicted, measured, bounds))
    norms_by_name = dict(zip(theory.Contractivity._fields, map(float, worst), strict=True))
    return LayerFacts(math.sqrt(s2), error, before, after, seen_step, bound, norms_by_name, hypotheses)


def channel_block(mixer: MambaMixer, seen: Seen) -> tuple[ChannelBlock, Tensor, Tensor, Tensor]:
    """The mixer on one prompt by channel; the convolution's output u, the gate before SiLU, and the skip D."""
    weight, size = double(mixer.in_proj.weight), mixer.channels
    projected = _there(seen.arrays["projected"], weight)
    delta, read_in, read_out = (_there(seen.arrays[f"scan_{name}"], weight) for name in ("delta", "B", "C"))
    if seen.facts["kind"] == "s6":
        read_in, read_out, at, gate_at = read_in[:, None], read_out[:, None], 0, size
    else:
        at, gate_at = size, 0
    rows, gates = slice(at, at + size), slice(gate_at, gate_at + size)
    block = ChannelBlock(_decay(seen, weight), delta, read_in, read_out, mixer.taps, weight[rows], weight[gates])
    u = projected.new_zeros(len(projected), size) + mixer.bias
    for lag in range(min(len(mixer.taps), len(u))):
        u[lag:] += mixer.taps[lag] * projected[: len(u) - lag, rows]
    return block, u, projected[:, gates], mixer.skip


def _there(array: np.ndarray, like: Tensor) -> Tensor:
    """float64 tensor of an array, on the device of another tensor."""
    return torch.from_numpy(array).to(like)


def _decay(seen: Seen, like: Tensor) -> Tensor:
    """exp(Δ_t A) (token, channel or head, state or 1); rates of −inf, polarized to a decay of 0, give 0."""
    rates = _there(seen.facts["A"].reshape(len(seen.facts["A"]), -1), like)
    decay = torch.exp(_there(seen.arrays["scan_delta"], like)[..., None] * rates)
    return torch.where(torch.isneginf(rates), torch.zeros_like(decay), decay)


def _structure(mixer: MambaMixer, seen: list[Seen], skipped: float) -> list[Hypothesis]:
    shift = float(mixer.bias.abs().max())
    broken = [_decay(s, mixer.bias) + _there(s.arrays["scan_delta"], mixer.bias)[..., None] > 1 + 1e-12 for s in seen]
    over = float(np.mean([float(part.double().mean()) for part in broken]))
    share = f"‖skip‖², left out here, is {skipped:.0%} of ‖update‖² with it"
    return [
        Hypothesis("no skip D", skipped == 0, share),
        Hypothesis("no bias in the convolution", shift == 0, f"largest is {shift:.3g}"),
        Hypothesis("no norm behind the gate", not mixer.normed, "a gated norm follows o ∘ z"),
        Hypothesis("A + Δ ≤ 1 (paper 2, Theorem 4.2)", over == 0, f"broken in {over:.0%} of states and tokens"),
    ]


def _selective(gains: list[np.ndarray]) -> Hypothesis:
    name, shortest = "Assumption 3: A, B, C the same for every input", min(map(len, gains))
    if len(gains) < 2:
        return Hypothesis(name, False, "not checked: one prompt")
    stacked = np.stack([gain[:shortest] for gain in gains])
    varies = float(np.sqrt((stacked.std(0) ** 2).mean() / max((stacked**2).mean(), 1e-300)))
    return Hypothesis(name, varies <= SAME, f"C_t B_t varies by {varies:.0%} between prompts")


def _input_hypotheses(
    inputs: list[np.ndarray], entering: list[np.ndarray], error: float, activation: str, like: Tensor
) -> list[Hypothesis]:
    rows = np.concatenate(inputs)
    energy = float((rows**2).sum(1).mean())
    common = float((rows.mean(0) ** 2).sum()) / energy
    share = _participation(rows, like) * (1 / rows.shape[1] + 1 / len(rows))
    pairs = [(float((x.sum(0) ** 2).sum() - (x**2).sum()), len(x) * (len(x) - 1)) for x in inputs if len(x) > 1]
    alike = sum(p for p, _ in pairs) / max(sum(c for _, c in pairs), 1) / energy
    normed = max(
        float(np.abs(x - h).max()) / max(float(np.abs(h).max()), 1e-300) for x, h in zip(inputs, entering, strict=True)
    )
    return [
        Hypothesis("no norm before the mixer", normed < 1e-3, "the mixer sees a normed state"),
        Hypothesis("Assumption 1: zero mean", common <= LITTLE, f"the mean token has {common:.0%} of the energy"),
        Hypothesis(
            "Assumption 1: covariance σ² I", share >= 0.5, f"{share:.0%} of the directions that isotropic tokens fill"
        ),
        Hypothesis("Assumption 2: independent tokens", abs(alike) <= LITTLE, f"mean product of two tokens {alike:.0%}"),
        Hypothesis(f"Assumption 4: {activation} = x/2", error <= LINEAR, f"relative error {error:.0%}"),
    ]


def _participation(rows: np.ndarray, like: Tensor) -> float:
    """(Σλ)² / Σλ² of the rows' covariance, from its trace and its norm, which the smaller Gram matrix has too."""
    if len(rows) < 2:
        return 1.0
    centred = _there(rows - rows.mean(0), like)
    gram = centred @ centred.T if len(rows) < rows.shape[1] else centred.T @ centred
    return float(gram.trace() ** 2 / gram.square().sum())


def _relative_error(linear: list[Tensor], true: list[Tensor]) -> float:
    apart = sum(float((a - b).square().sum()) for a, b in zip(linear, true, strict=True))
    whole = sum(float(b.square().sum()) for b in true)
    return math.sqrt(apart / whole) if whole else math.nan
