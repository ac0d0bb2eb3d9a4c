"""Random weights: the random twin of an architecture under a named scheme.

`default` is what transformers' own `from_config` gives. It is not every paper's initialisation: Mamba's special Δ and
A are set in mamba and mamba2, not in all hybrids.

The other schemes start from `default` and redraw every weight matrix, convolution and embedding from a normal
distribution; fan in and fan out are those of the matrix as it is applied.

| scheme | standard deviation |
|---|---|
| gaussian, gaussian:STD | STD, 0.02 if not given |
| xavier | sqrt(2 / (fan in + fan out)) |
| he | sqrt(2 / fan in) |

Left to the architecture's own rule: norm scales, biases, and the parameters of a recurrence (A_log, D, dt_bias,
RWKV's time_*, the RG-LRU's recurrent_param).
"""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel

from repflow.errors import InputError, UnsupportedModelError, nearest, teach

SCHEMES = ("trained", "default", "gaussian", "xavier", "he")
GAUSSIAN_STD = 0.02
KEPT = re.compile(r"(^|[._])(A_log|D|dt_bias|time_\w+|recurrent_param|bias|\w+_bias|\w*norm\w*|ln\w*|\w+_ln)(\.|$)")


def parse_scheme(init: str) -> tuple[str, float | None]:
    """Split a scheme into its name and standard deviation.

    >>> parse_scheme("gaussian:0.1"), parse_scheme("he")
    (('gaussian', 0.1), ('he', None))
    """
    name, _, number = init.partition(":")
    if name not in SCHEMES or (number and name != "gaussian"):
        raise InputError(teach("an init", repr(init), nearest(name, [*SCHEMES, "gaussian:STD"])))
    if not number:
        return name, GAUSSIAN_STD if name == "gaussian" else None
    try:
        std = float(number)
    except ValueError:
        std = math.nan
    if not (math.isfinite(std) and std > 0):
        raise InputError(teach("a positive standard deviation", repr(init), "write gaussian:0.02, for example"))
    return name, std


def random_model(config: Any, init: str, *, seed: int, trust_remote_code: bool = False) -> PreTrainedModel:
    """Build a model from its configuration in float32 on the CPU, with seeded weights.

    Building in float32 and casting later gives every dtype and device the same weights.
    """
    scheme, std = parse_scheme(init)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _build(config, trust_remote_code)
        if scheme not in ("trained", "default"):
            redraw(network, scheme, std)
    return network


def _build(config: Any, trust_remote_code: bool) -> PreTrainedModel:
    for factory in (AutoModelForCausalLM, AutoModel):
        try:
            return factory.from_config(config, dtype=torch.float32, trust_remote_code=trust_remote_code)
        except ValueError as error:
            if "Unrecognized configuration class" not in str(error):
                raise InputError(f"the configuration of {config.model_type} is not valid: {error}") from error
    raise UnsupportedModelError(f"transformers has no causal language model for {config.model_type!r}")


def redraw(network: nn.Module, scheme: str, std: float | None) -> None:
    """Draw every weight matrix, convolution and embedding anew, in the order of their names."""
    transposed = {id(m.weight) for m in network.modules() if type(m).__name__ == "Conv1D"}  # GPT-2 stores (in, out)
    with torch.no_grad():
        for name, parameter in sorted(network.named_parameters(), key=lambda item: item[0]):
            if parameter.ndim >= 2 and not KEPT.search(name):
                spread = std if std is not None else _spread(parameter, scheme, id(parameter) in transposed)
                parameter.normal_(0.0, spread)


def _spread(parameter: Tensor, scheme: str, transposed: bool) -> float:
    """Standard deviation of one parameter: (out, in), (out, in, kernel) or, for experts, (expert, out, in)."""
    fan_out, fan_in = parameter.shape[-2:] if parameter.ndim == 3 and parameter.shape[1] > 1 else _fans(parameter)
    if transposed:
        fan_out, fan_in = fan_in, fan_out
    return math.sqrt(2.0 / (fan_in + fan_out)) if scheme == "xavier" else math.sqrt(2.0 / fan_in)


def _fans(parameter: Tensor) -> tuple[int, int]:
    kernel = math.prod(parameter.shape[2:])
    return parameter.shape[0] * kernel, parameter.shape[1] * kernel
