"""One token further: convolution and scan of Mamba's layers from the state they left, in place.

Glossary: h state, A decay rate, B input map, C read-out, D skip, dt step size, z gate. On a GPU in Triton, which reads
and writes the state once; elsewhere in plain torch. Both are tested against whole sequences in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from repflow.mixers.triton.launch import ceil_div, obstacle, on_device, power, rowwise


def conv_token(x: Tensor, window: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Causal depthwise convolution with SiLU of one more token.

    Args:
        x: The token (batch, channel).
        window: Tokens before it (batch, taps − 1, channel), oldest first; moves on by one token.
        weight: (channel, 1, taps).
        bias: (channel,).
    """
    channels, _, taps = weight.shape
    if obstacle(x, window, weight, bias) is None:
        from repflow.mixers.triton.kernels.token import conv_token_kernel

        x, y, block = rowwise(x), torch.empty(x.shape, dtype=x.dtype, device=x.device), min(512, power(channels, 16))
        with on_device(x):
            conv_token_kernel[(len(x), ceil_div(channels, block))](
                x, window, weight.contiguous(), weight if bias is None else bias, y, channels, x.stride(0),
                K=taps, BLOCK=block, BIAS=bias is not None, num_warps=4,
            )  # fmt: skip
        return y
    whole = torch.cat([window, x[:, None].to(window.dtype)], 1)
    window.copy_(whole[:, 1:])
    mixed = (whole * weight[:, 0].t()).sum(1)
    return silu(mixed if bias is None else mixed + bias).to(x.dtype)


def s6_token(
    h: Tensor, x: Tensor, dt: Tensor, bias: Tensor | None, log_rate: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor
) -> Tensor:
    """Selective scan of one more token, gated: (C · h + D x) · silu(z), with step size softplus(dt + bias).

    Args:
        h: State (batch, state, channel), in float32 at least; moves on by one token.
        x: Input (batch, channel).
        dt: Step size before bias and softplus (batch, channel).
        bias: (channel,).
        log_rate: log(−A) (channel, state).
        B: Input map (batch, state).
        C: Read-out (batch, state).
        D: Skip (channel,).
        z: Gate (batch, channel).
    """
    channels, state = x.shape[1], h.shape[1]
    if obstacle(h, x, dt, bias, log_rate, B, C, D, z) is None:
        from repflow.mixers.triton.kernels.token import s6_token_kernel

        x, dt, B, C, z = (rowwise(part) for part in (x, dt, B, C, z))
        y, block = torch.empty(x.shape, dtype=x.dtype, device=x.device), min(128, power(channels, 16))
        with on_device(x):
            s6_token_kernel[(len(x), ceil_div(channels, block))](
                h, x, dt, D if bias is None else bias, log_rate.contiguous(), B, C, D, z, y, channels, x.stride(0),
                dt.stride(0), B.stride(0), C.stride(0), z.stride(0),
                STATE=state, N=power(state), BLOCK=block, BIAS=bias is not None, num_warps=2,
            )  # fmt: skip
        return y
    step = softplus(dt.to(h.dtype) if bias is None else dt.to(h.dtype) + bias.to(h.dtype))
    h.mul_(torch.exp(-step[:, None] * torch.exp(log_rate.to(h.dtype).t()))).add_((step * x)[:, None] * B[..., None])
    output = (h * C[..., None]).sum(1) + D * x
    return (output * silu(z.to(h.dtype))).to(x.dtype)


def ssd_token(
    h: Tensor,
    x: Tensor,
    dt: Tensor,
    bias: Tensor,
    log_rate: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    limits: tuple[float, float],
) -> Tensor:
    """Mamba-2's scan of one more token: C · h + D x, with step size clamp(softplus(dt + bias)).

    Args:
        h: State (batch, head, dim, state), in float32 at least; moves on by one token.
        x: Input (batch, head · dim).
        dt: Step size before bias and softplus (batch, head).
        bias: (head,).
        log_rate: log(−A) (head,).
        B: Input map (batch, group · state).
        C: Read-out (batch, group · state).
        D: Skip (head,).
        limits: Least and greatest step size.
    """
    batch, heads, dim, state = h.shape
    groups = B.shape[1] // state
    if obstacle(h, x, dt, bias, log_rate, B, C, D) is None:
        from repflow.mixers.triton.kernels.token import ssd_token_kernel

        x, dt, B, C = (rowwise(part) for part in (x, dt, B, C))
        y = torch.empty(batch, heads * dim, dtype=x.dtype, device=x.device)
        rows = min(power(dim), max(1, 8192 // power(state)))
        with on_device(x):
            ssd_token_kernel[(batch, heads, ceil_div(dim, rows))](
                h, x, dt, bias, log_rate, B, C, D, y, heads, heads // groups, *limits, x.stride(0), dt.stride(0),
                B.stride(0), C.stride(0),
                DIM=dim, STATE=state, N=power(state), ROWS=rows, num_warps=4,
            )  # fmt: skip
        return y
    step = softplus(dt.to(h.dtype) + bias.to(h.dtype)).clamp(*limits)
    keep = torch.exp(-step * torch.exp(log_rate.to(h.dtype)))
    value = x.view(batch, heads, dim).to(h.dtype)
    into, out_of = (
        part.reshape(batch, groups, state).repeat_interleave(heads // groups, 1).to(h.dtype) for part in (B, C)
    )
    h.mul_(keep[..., None, None]).add_((step[..., None] * value)[..., None] * into[:, :, None])
    output = (h * out_of[:, :, None]).sum(-1) + D.to(h.dtype)[:, None] * value
    return output.flatten(1).to(x.dtype)
