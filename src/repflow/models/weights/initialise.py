"""Random weights: the random twin of an architecture under a named scheme (`repflow.spec.scheme`).

`default` is what transformers' own `from_config` gives. It is not every paper's initialisation: Mamba's special Δ and
A are set in mamba and mamba2, not in all hybrids.

The other schemes start from `default`. Every parameter belongs to one group:

| group | members | gaussian, xavier, he |
|---|---|---|
| embeddings | token and learned position embeddings, the head | redrawn |
| convolutions | short convolutions | redrawn |
| matrices | every other parameter of two or more dimensions, experts and gates included | redrawn |
| norms | scales and biases of norms | own rule |
| recurrence | A_log, D, dt_bias, the bias of dt_proj, RWKV's time_*, RG-LRU's recurrent_param, S4D kernels | own rule |
| biases | all other biases and vectors | own rule |

A redrawn parameter is normal with mean zero. Fan in and fan out are those of the matrix as it is applied; an embedding
table (vocabulary, width) has fan in `width`, like the head that it may be tied to.

What is redrawn or added as noise comes from draws of its own, seeded by the seed, the scheme's name and its number
(`generator_seed`). So `gaussian:0.02`, `gaussian:0.1`, `xavier` and `he` of one seed are independent draws, not one at
four scales; `+residual` and noise leave the redrawn values as they are. Groups that keep their own rule have the values
of `default` at that seed.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from repflow.core.errors import InputError, UnsupportedModelError, memory_words, out_of_memory, teach, words_of
from repflow.models.anatomy import find_blocks, find_sublayers, token_mixers
from repflow.models.stack.config import StackConfig
from repflow.models.stack.network import auto_class
from repflow.models.weights.construct import build_once, fits
from repflow.spec.scheme import Scheme, parse_scheme

__all__ = ["group_of", "parameter_groups", "parse_scheme", "random_model", "residual_outputs"]

RECURRENCE = re.compile(
    r"(^|[._])(A_log|D|dt_bias|time_\w+|recurrent_param|log_dt|log_A_real|A_imag)(\.|$)|(^|\.)(dt_proj\.bias|kernel\.C)$"
)
NORM = re.compile(r"(^|[._])(\w*norm\w*|ln\w*|\w+_ln)(\.|$)")
BIAS = re.compile(r"(^|[._])(bias|\w+_bias)$")
OUTPUT = re.compile(
    r"(^|\.)(c_proj|o_proj|out_proj|to_out|dense_4h_to_h|dense|down_proj|proj_down|w2|fc2|linear_out|output_linear|output)"
    r"(\.weight|\.bias|_bias)?$"
)
OUTPUT_OF_CLASS = dict.fromkeys(("RwkvFeedForward", "ChannelMixing"), re.compile(r"^value\.weight$"))


def random_model(
    config: Any, init: str, *, seed: int, trust_remote_code: bool = False, device: str | torch.device | None = None
) -> PreTrainedModel:
    """Build a model from its configuration in float32, with seeded weights.

    On the CPU, and by default, a seed gives the same weights on every machine: casting and moving come later. Drawn on
    a GPU (`repflow.models.weights.construct`), billions of weights take a second instead of a minute, but the draws
    are that kind of GPU's own.
    """
    scheme = parse_scheme(init)
    place = None if device is None else torch.device(device)
    on_gpu = place is not None and place.type == "cuda"
    # Without a device the caller's own context holds: the sizes of a shape are read on `meta`.
    with torch.random.fork_rng(devices=[place] if on_gpu else []), place or contextlib.nullcontext():
        network = _seeded(config, seed, trust_remote_code, once=on_gpu)
        groups = parameter_groups(network)
        torch.manual_seed(generator_seed(seed, scheme))
        if scheme.redraws:
            redraw(network, scheme, groups)
        add_noise(network, scheme, groups)
    if scheme.residual is not None:
        scale_residual(network, scheme.residual)
    return network


def drawing_device(config: Any, device: torch.device, trust_remote_code: bool = False) -> torch.device:
    """Device that draws the random weights for a device: a GPU those of transformers' own models, else the CPU.

    Code that comes with a model may initialise in ways that cannot be watched, a stack of repflow's mixers is small,
    and float32 must not fill the GPU.
    """
    cpu = torch.device("cpu")
    if device.type != "cuda" or trust_remote_code or isinstance(config, StackConfig):
        return cpu
    count = count_weights(config, trust_remote_code)
    return device if count is not None and fits(device, count) else cpu


def count_weights(config: Any, trust_remote_code: bool = False) -> int | None:
    """Number of weights of a configuration, without allocating any; None where it builds on a real device only.

    repflow's mixers, and a few architectures, compute constants while they are made.
    """
    if isinstance(config, StackConfig):
        return None
    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in _build(config, trust_remote_code).parameters())
    except InputError as error:
        if "meta" in str(error):
            return None
        raise


def _seeded(config: Any, seed: int, trust_remote_code: bool, *, once: bool) -> PreTrainedModel:
    """Build with the architecture's own weights; `once` skips the draws that the architecture makes again."""
    if once:
        torch.manual_seed(seed)
        if (network := build_once(lambda: _build(config, trust_remote_code))) is not None:
            return network
    torch.manual_seed(seed)
    return _build(config, trust_remote_code)


def generator_seed(seed: int, scheme: Scheme) -> int:
    """Seed of a scheme's own draws: the first 32 bits of SHA-256 of `seed:name:number`, the same on every machine.

    >>> [generator_seed(0, parse_scheme(init)) for init in ("xavier", "xavier:0.5", "xavier+residual")]
    [1921193921, 1157255534, 1921193921]
    """
    text = f"{seed}:{scheme.name}:{scheme.number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def _build(config: Any, trust_remote_code: bool) -> PreTrainedModel:
    try:
        return auto_class(config).from_config(config, dtype=torch.float32, trust_remote_code=trust_remote_code)
    except ValueError as error:
        if "Unrecognized configuration class" in str(error):
            got = f"transformers has no causal language model for {config.model_type!r}"
            raise UnsupportedModelError(got) from error
        raise _invalid(config, error) from error
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError) as error:
        if out_of_memory(error):
            raise memory_words(error, f"building a {config.model_type}") from error
        raise _invalid(config, error) from error


def _invalid(config: Any, error: Exception) -> InputError:
    expected = f"a configuration from which a {config.model_type} can be built"
    return InputError(teach(expected, words_of(error), "correct its config.json"))


def parameter_groups(network: nn.Module) -> dict[str, str]:
    """Group of every parameter by its name; tied parameters appear once."""
    tables = {id(m.weight) for m in network.modules() if isinstance(m, nn.Embedding)}
    head = network.get_output_embeddings() if isinstance(network, PreTrainedModel) else None
    tables |= {id(parameter) for parameter in head.parameters()} if head is not None else set()
    convolutions = {id(m.weight) for m in network.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d)}
    return {
        name: group_of(name, parameter.ndim, id(parameter) in tables, id(parameter) in convolutions)
        for name, parameter in network.named_parameters()
    }


def group_of(name: str, dimensions: int, embedding: bool = False, convolution: bool = False) -> str:
    """Group that a parameter belongs to.

    >>> group_of("layers.0.mixer.dt_proj.bias", 1), group_of("h.0.ln_1.bias", 1), group_of("h.0.mlp.c_fc.weight", 2)
    ('recurrence', 'norms', 'matrices')
    """
    if RECURRENCE.search(name):
        return "recurrence"
    if NORM.search(name):
        return "norms"
    if BIAS.search(name) or dimensions < 2:
        return "biases"
    if embedding:
        return "embeddings"
    return "convolutions" if convolution else "matrices"


def redraw(network: nn.Module, scheme: Scheme, groups: dict[str, str]) -> None:
    """Redraw every parameter of the groups that the scheme touches, in the order of their names."""
    touched = {"embeddings", "convolutions", "matrices"} - scheme.keep
    transposed = {id(m.weight) for m in network.modules() if type(m).__name__ == "Conv1D"}  # GPT-2 stores (in, out)
    with torch.no_grad():
        for name, parameter in sorted(network.named_parameters(), key=lambda item: item[0]):
            if groups[name] in touched:
                convolution = groups[name] == "convolutions"
                parameter.normal_(0.0, spread(parameter, scheme, id(parameter) in transposed, convolution))


def add_noise(network: nn.Module, scheme: Scheme, groups: dict[str, str]) -> None:
    """Add normal noise to the groups that the scheme names, in the order of the parameters' names."""
    with torch.no_grad():
        for name, parameter in sorted(network.named_parameters(), key=lambda item: item[0]):
            if groups[name] in scheme.noise:
                parameter.add_(torch.randn_like(parameter) * scheme.noise[groups[name]])


def spread(parameter: Tensor, scheme: Scheme, transposed: bool = False, convolution: bool = False) -> float:
    """Standard deviation of one parameter: (out, in), convolutions (out, in, kernel), experts (expert, out, in).

    >>> filters = torch.empty(8, 6, 3)
    >>> he = parse_scheme("he")
    >>> round(spread(filters, he, convolution=True), 4), round(spread(filters, he), 4)
    (0.3333, 0.8165)
    """
    assert scheme.number is not None
    if scheme.name == "gaussian":
        return scheme.number
    experts = parameter.ndim == 3 and not convolution and parameter.shape[1] > 1
    fan_out, fan_in = parameter.shape[-2:] if experts else _fans(parameter)
    if transposed:
        fan_out, fan_in = fan_in, fan_out
    fans = (fan_in + fan_out) if scheme.name == "xavier" else fan_in
    return scheme.number * math.sqrt(2.0 / fans)


def _fans(parameter: Tensor) -> tuple[int, int]:
    kernel = math.prod(parameter.shape[2:])
    return parameter.shape[0] * kernel, parameter.shape[1] * kernel


def scale_residual(network: PreTrainedModel, factor: float | str) -> None:
    """Multiply what every residual branch adds: its output projection, weight and bias, times the factor.

    `depth` is 1 / sqrt(number of branches): 1 / sqrt(2 L) for a Transformer, 1 / sqrt(L) for Mamba.
    """
    outputs = residual_outputs(network)
    scale = 1.0 / math.sqrt(len(outputs)) if isinstance(factor, str) else factor
    with torch.no_grad():
        for parameter in {id(p): p for branch in outputs for p in branch}.values():  # shared blocks are scaled once
            parameter.mul_(scale)


def residual_outputs(network: PreTrainedModel) -> list[list[nn.Parameter]]:
    """Parameters of the output projection of every residual branch, block after block.

    Raises:
        UnsupportedModelError: A branch has none that is known, or a norm after it undoes its scale.
    """
    branches, mixers = [], token_mixers(network)
    for index, block in enumerate(find_blocks(network.base_model, network.config)):
        for part in find_sublayers(block, mixers):
            if isinstance(part.module, nn.Linear):  # OPT's second matrix is the sublayer itself
                branches.append(list(part.module.parameters()))
                continue
            pattern = OUTPUT_OF_CLASS.get(type(part.module).__name__, OUTPUT)
            branch = [p for name, p in part.module.named_parameters() if pattern.search(name)]
            if not branch:
                where = f"block {index + 1} ({type(part.module).__name__})"
                got = f"the {part.kind} branch of {where}, which has none that repflow knows"
                remedy = "leave the switch residual out; a norm after a branch would undo it anyway"
                raise UnsupportedModelError(teach("an output projection in every residual branch", got, remedy))
            branches.append(branch)
    if not branches:
        raise UnsupportedModelError(
            teach("blocks with known residual branches", network.config.model_type, "leave the switch residual out")
        )
    return branches
