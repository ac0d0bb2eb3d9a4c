"""Random inputs of the scans in float64, and the recurrence they mean as a Transition."""

import torch

from repflow.mixers.transition import Transition


def s6_inputs(tokens, *, seed, batch=2, channels=3, states=4, shift=0.0):
    """x, delta, A, B, C, D, initial; `shift` goes into the softplus of delta."""
    draw = drawer(seed)
    delta = torch.nn.functional.softplus(draw(batch, tokens, channels) + shift)
    parts = [draw(batch, tokens, channels), delta, -draw(channels, states).exp()]
    return [
        *parts,
        draw(batch, tokens, states),
        draw(batch, tokens, states),
        draw(channels),
        draw(batch, *parts[2].shape),
    ]


def ssd_inputs(tokens, *, seed, batch=2, heads=4, dim=3, groups=2, states=5, shift=0.0):
    """x, delta, A, B, C, D, initial; `shift` goes into the softplus of delta."""
    draw = drawer(seed)
    delta = torch.nn.functional.softplus(draw(batch, tokens, heads) + shift)
    x, maps = draw(batch, tokens, heads, dim), [draw(batch, tokens, groups, states) for _ in range(2)]
    return [x, delta, -draw(heads).exp(), *maps, draw(heads), draw(batch, heads, dim, states)]


def drawer(seed):
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


def s6_transition(x, delta, A, B, C):
    """What `selective_scan` computes, written as a Transition."""
    decay = torch.exp(delta[..., None] * A)
    return Transition(decay, x[..., None] * B[:, :, None], C[:, :, None], delta[..., None])


def ssd_transition(x, delta, A, B, C):
    """What `ssd_scan` computes, written as a Transition with head · dim channels."""
    heads, dim = x.shape[2:]
    B, C = (part.repeat_interleave(heads // part.shape[2], dim=2) for part in (B, C))
    decay = torch.exp(delta * A)[..., None, None].expand(-1, -1, -1, dim, -1).flatten(2, 3)
    b = (x[..., None] * B[..., None, :]).flatten(2, 3)
    c = C[..., None, :].expand(-1, -1, -1, dim, -1).flatten(2, 3)
    return Transition(decay, b, c, delta[..., None, None].expand(-1, -1, -1, dim, -1).flatten(2, 3))
