"""Architectures: what is special about each, and quirks that would distort their states, undone before any reading."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from repflow.core.errors import UnsupportedModelError, teach
from repflow.core.results import Finding
from repflow.models.streams import Readout, altup_readout
from repflow.models.transformers_own import run_torch_forms_on_cpu

UNCHUNKED = 1 << 40
LAST_BLOCK, EMBEDDING = "last block", "embedding"
DECODERS = "use a causal language model: a Transformer decoder, a state-space model, a linear RNN or a hybrid"
LEAKY = (
    "this language model sorts whole sequences, so every token reads those behind it, the answer among them: its loss "
    "and its states are not those of a model that predicts"
)
STACK = "repflow_stack"
"""Model type of stacks of repflow's mixers, which name their own kinds."""
OWN_ATTENTION = "repflow_"
"""Start of the names under which `repflow.interventions` registers changed attention with transformers."""


def prepare(network: PreTrainedModel) -> None:
    """Set what an architecture needs so that its blocks show the true residual stream; the function is unchanged."""
    run_torch_forms_on_cpu(network)
    if next(network.parameters()).dtype == torch.float64 and hasattr(network, "set_experts_implementation"):
        network.set_experts_implementation("eager")  # the grouped product of mixtures of experts has no float64 form
    family = FAMILIES.get(str(network.config.model_type))
    if family is not None and family.straighten is not None:
        family.straighten(network)


def refuse_encoder(config: Any) -> None:
    """Refuse architectures whose tokens see later ones, by their configuration; the self-check finds unlisted ones.

    A stack that sorts whole sequences is read: it was built so by name, gets a mask, and its results say so
    (`leak_findings`).

    Raises:
        UnsupportedModelError: An encoder, such as BERT, an encoder-decoder, such as T5, or a classifier of images.
    """
    kind = str(getattr(config, "model_type", ""))
    decoder = bool(getattr(config, "is_decoder", False) or getattr(config, "causal", False))
    if getattr(config, "is_encoder_decoder", False):
        got = f"{kind}, an encoder-decoder, whose encoder sees the whole input"
    elif kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not decoder:
        got = f"{kind}, an encoder, whose tokens see later ones too (bidirectional attention)"
    elif kind in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        advice = "only repflow corrupt and repflow attack take classifiers of images"
        raise UnsupportedModelError(teach("a decoder, which reads token ids", f"{kind}, which reads images", advice))
    else:
        return
    raise UnsupportedModelError(teach("a decoder, whose tokens see earlier ones only", got, DECODERS))


def sorts_whole(config: Any) -> bool:
    """Whether a stack sorts whole sequences, so that its tokens see later ones."""
    return bool(getattr(config, "sorts_whole", False))


def leak_findings(config: Any) -> list[Finding]:
    """What every result of a language model says that reads the tokens it predicts."""
    if not sorts_whole(config) or getattr(config, "task", None) != "language":
        return []
    return [Finding("leaky", None, LEAKY)]


def plain_config(network: PreTrainedModel) -> Any:
    """Copy of a network's configuration, without changed attention."""
    config = copy.deepcopy(network.config)
    name = str(config._attn_implementation)
    if name.startswith(OWN_ATTENTION):
        config._attn_implementation = name.removeprefix(OWN_ATTENTION).partition("_")[0]
    return config


def _straighten_rwkv(network: Any) -> None:
    """Stop RWKV from halving the stream every few blocks at inference.

    transformers divides weights in place by growing powers of two and halves the hidden states to match, against
    overflow in float16. The logits are the same, since the last norm ignores the scale, but the stream is not.
    Weights that a live model has already rescaled are put back; a power of two costs no precision. They become the
    copy's own: the live model continues to halve and double them in place as it changes between training and eval mode.
    """
    base = network.base_model
    every = int(getattr(base.config, "rescale_every", 0) or 0)
    if every > 0:
        with torch.no_grad():
            for index, block in enumerate(base.blocks):
                back = 2.0 ** (index // every) if base.layers_are_rescaled else 1.0
                for matrix in (block.attention.output, block.feed_forward.value):
                    matrix.weight = nn.Parameter(matrix.weight * back, requires_grad=matrix.weight.requires_grad)
    base.config.rescale_every = 0


def _straighten_xlstm(network: Any) -> None:
    """Let xLSTM take a prompt in one piece: in chunks its blocks would fire several times per forward pass."""
    network.config.max_inference_chunksize = UNCHUNKED


@dataclass(frozen=True)
class Family:
    """What is peculiar to an architecture; all else is found (`repflow.models.anatomy`) and checked at load.

    Attributes:
        missing: What transformers' tuple of hidden states leaves out: "last block" or "embedding".
        mixers: Children of a block that mix tokens, and how (attention, ssm, recurrent, conv), where neither their
            names nor their classes say so.
        straighten: Changes a network that bends its own states, without changing its function.
        streams: Its blocks hand on several residual streams, and so do the entries of its tuple.
        readout: Makes the read-out of several residual streams from the base model, where it is not a module of it.
    """

    missing: str = LAST_BLOCK
    mixers: Mapping[str, str] = field(default_factory=dict)
    straighten: Callable[[Any], None] | None = None
    streams: bool = False
    readout: Callable[[Any], Readout] | None = None


PLAIN = """
    apertus arcee biogpt bloom codegen cohere cohere2 deepseek_v2 deepseek_v3 deepseek_v32 diffllama ernie4_5
    exaone4 falcon gemma gemma2 gemma3_text gemma4_text glm4 glm4_moe glm_moe_dsa gpt2 gpt_bigcode gpt_neo gpt_neox
    gpt_oss gptj granite granitemoe helium hunyuan_v1_dense hunyuan_v1_moe inkling_text jetmoe llama llama4_text
    mimo_v2_flash minimax_m2 ministral3 mistral mixtral mpt nanochat nemotron olmo olmo2 olmo3 olmoe opt phi phi3
    qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3 stablelm starcoder2 xglm
    bailing_hybrid bamba falcon_h1 granitemoehybrid jamba kimi_linear lfm2 lfm2_moe minimax nemotron_h olmo_hybrid
    qwen3_5_moe_text qwen3_5_text qwen3_next recurrent_gemma zamba zamba2 zaya
""".split()  # noqa: SIM905  one name a line would fill a page
"""Architectures with nothing peculiar, whose tuple lacks the raw last block: of attention alone, then all others."""
FAMILIES = {
    **{name: Family() for name in PLAIN},
    "mamba": Family(EMBEDDING),
    "mamba2": Family(EMBEDDING),
    "falcon_mamba": Family(EMBEDDING),
    "rwkv": Family(EMBEDDING, straighten=_straighten_rwkv),
    "xlstm": Family(straighten=_straighten_xlstm),
    "deepseek_v4": Family(streams=True),
    "hy_v4": Family(streams=True),
    "glm5_next_text": Family(streams=True),
    "qwen4_exp_text": Family(streams=True),
    "gemma3n_text": Family(streams=True, readout=altup_readout),
}
"""Architectures that are tested by name (kinds of layers, tuple, ablations); others load too, checked at load."""
