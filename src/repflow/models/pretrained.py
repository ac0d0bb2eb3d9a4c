"""Model: one interface to the states of any transformers decoder, verified when it is made.

Guaranteed by the self-check at load (see `repflow.models.self_check`): every block's raw output is caught once and in
order, the final norm of the last block is the model's last hidden state, the head gives the logits.
Not guaranteed: sublayer branches of unlisted models (refused where their sum is not what the block adds), layer kinds
of unlisted mixers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from repflow.core.errors import InputError, UnsupportedModelError, teach
from repflow.core.results import Finding
from repflow.core.seconds import timed
from repflow.metrics.meter import on_device
from repflow.models.anatomy import (
    find_blocks,
    find_sublayers,
    innermost,
    layer_kind,
    layers_with,
    listed,
    text_config,
    token_mixers,
)
from repflow.models.behaviour import settle_kinds
from repflow.models.families import leak_findings, prepare
from repflow.models.fastpath import scans as fastpath
from repflow.models.reading import Reading
from repflow.models.self_check import check, short_chunks
from repflow.models.stack.config import StackConfig
from repflow.models.streaming import OnFinalNorm, OnState, check_kind, stream_states
from repflow.models.streams import Streams
from repflow.models.weights import digest, nonfinite
from repflow.models.weights.nonfinite import NonFinite
from repflow.spec.request import sublayer_kind

NO_DRIVER = "0 active drivers"
"""What Triton says where it finds no GPU to compile a kernel for."""


class Model:
    """A decoder whose states can be read.

    Attributes:
        spec: What was requested.
        name: Short display name.
        network: The transformers model, in eval mode.
        tokenizer: Its tokenizer, None where it has none.
        init: Where the weights come from: `trained` or a random scheme.
        drawn_on: Who drew random weights, `cpu` or the GPU's name; None for others.
        revision: Hub revision, None elsewhere.
        reading: Blocks, final norm, head and flags, as measured.
        ablations: Interventions that made this model from another (`repflow.interventions`); none for a loaded one.
        layer_kinds: Kind of each block.
        scans: Which form of the scan state-space layers run, and what ran (`repflow.models.fastpath.scans`).
        nonfinite: Parameters with NaN or infinite entries.
        findings: What the load came across.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        *,
        spec: str,
        name: str,
        init: str = "trained",
        revision: str | None = None,
        tokenizer: Any = None,
        ablations: tuple[str, ...] = (),
        scan: str = "auto",
        drawn_on: str | None = None,
    ) -> None:
        self.ablations, self.drawn_on = ablations, drawn_on
        self.network = network.eval()
        self.spec, self.name, self.init, self.revision, self.tokenizer = spec, name, init, revision, tokenizer
        self.model_type = str(network.config.model_type)
        prepare(network)
        blocks = find_blocks(network.base_model, network.config)
        base = innermost(network, blocks)
        mixers = token_mixers(network)
        parts = [find_sublayers(block, mixers) for block in blocks]
        self.reading = Reading(base, blocks, parts, mixers, head=_head(network))
        self.layer_kinds = [layer_kind(block, mixers) for block in blocks]
        self.nonfinite: list[NonFinite] = nonfinite.scan(network, blocks)
        self.findings: list[Finding] = nonfinite.findings(self.nonfinite, len(blocks))
        self.scans = fastpath.install(network, blocks, scan)
        with nonfinite.zeroed(network, self.nonfinite), self.scans.verifying(), short_chunks(network):
            _run_check(network, self.reading, doubtful=bool(self.nonfinite))
        if not listed(network.config):
            with nonfinite.zeroed(network, self.nonfinite), short_chunks(network):
                self.findings += settle_kinds(self.reading, network.config, self.layer_kinds)
        self.findings += [] if self.streams is None else [self.streams.finding()]
        self.findings += [*self.scans.findings(), *leak_findings(network.config)]
        self.scans.checked()
        self.reading.first_bad_state = nonfinite.first_bad_state(self.nonfinite, len(blocks))
        bad = {entry.parameter for entry in self.nonfinite}
        norm = {id(parameter) for parameter in self.final_norm.parameters()}
        self.reading.final_norm_bad = any(id(p) in norm for name, p in network.named_parameters() if name in bad)

    @property
    def blocks(self) -> list[nn.Module]:
        """Residual blocks in order."""
        return self.reading.blocks

    @property
    def final_norm(self) -> nn.Module:
        """Norm after the last block."""
        return self.reading.final_norm

    @property
    def head(self) -> nn.Module | None:
        """Matrix from the final norm's output to the logits."""
        return self.reading.head

    @property
    def n_layers(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    @property
    def n_states(self) -> int:
        """Number of residual states: the embedding output and every block's output."""
        return self.n_layers + 1

    @property
    def streams(self) -> Streams | None:
        """Residual streams, where the blocks hand on several; `residual` states are their read-out mixture then."""
        return self.reading.streams

    @property
    def width(self) -> int:
        """Channels of the residual stream."""
        return int(text_config(self.network.config).hidden_size)

    @property
    def vocab_size(self) -> int:
        """Number of token ids the model accepts."""
        return int(text_config(self.network.config).vocab_size)

    @property
    def max_length(self) -> int | None:
        """Most tokens the model was built for, None where no layer attends and so nothing sets a bound."""
        if not any("attention" in kind for kind in self.layer_kinds):
            return None
        value = getattr(text_config(self.network.config), "max_position_embeddings", None)
        return int(value) + (self.class_token is not None) if value else None

    @property
    def class_token(self) -> tuple[int, Callable[[int], int]] | None:
        """Id of a class token, and its place among a number of other tokens; None for a model that has none."""
        config = self.network.config
        if not isinstance(config, StackConfig) or config.class_token is None:
            return None
        return config.levels, lambda tokens: int(config.class_place(tokens) or 0)

    @property
    def recall_first(self) -> int:
        """First of the ids that keys and values of recall were trained with, behind those of a text; 0 for all ids."""
        return int(getattr(self.network.config, "recall_first", 0) or 0)

    @property
    def device(self) -> torch.device:
        """Device that takes the token ids."""
        return self.network.device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the weights."""
        return self.network.dtype

    @property
    def bos_token_id(self) -> int | None:
        """Token that begins a text, from the tokenizer or else the configuration."""
        of_tokenizer = getattr(self.tokenizer, "bos_token_id", None)
        value = of_tokenizer if of_tokenizer is not None else getattr(self.network.config, "bos_token_id", None)
        return int(value) if isinstance(value, int) else None

    @property
    def padding_id(self) -> int | None:
        """Id of no token: its row of the embedding is zero where the architecture sets it apart.

        A begin or end token that also pads counts only where the embedding sets it apart.
        """
        apart = getattr(self.network.get_input_embeddings(), "padding_idx", None)
        if apart is not None:
            return int(apart)
        config = text_config(self.network.config)
        value = getattr(config, "pad_token_id", None)
        real = {self.bos_token_id, getattr(config, "bos_token_id", None), getattr(config, "eos_token_id", None)}
        return value if isinstance(value, int) and 0 <= value < self.vocab_size and value not in real else None

    @property
    def first_bad_state(self) -> int | None:
        """First state made with a non-finite weight; it and all later ones are NaN."""
        return self.reading.first_bad_state

    def sublayers(self, kind: str) -> list[int]:
        """Indices of the layers that have the sublayer named in a kind such as `branch:attention`."""
        name = sublayer_kind(kind)
        return list(range(self.n_layers)) if name is None else layers_with(name, self.reading.parts)

    def state_count(self, kind: str = "residual") -> int:
        """Number of entries that `stream` hands out for a kind of state; a kind that the model lacks is refused."""
        check_kind(self.reading, kind)
        return len(self.sublayers(kind)) if kind.startswith("branch") else self.n_states

    def logits(self, normed: Tensor) -> Tensor:
        """Turn the final norm's output into logits, with the model's factor and soft cap."""
        if self.head is None:
            raise InputError(teach("a model with a head", f"{self.name} without one", "load the causal language model"))
        # Mamba keeps its residual stream in float32 in a half-precision model, and transformers casts before the head
        weight = next(self.head.parameters(), normed)
        raw = self.head(normed.to(weight.dtype) * self.reading.head_input_scale) * self.reading.head_scale
        cap = self.reading.head_softcap
        return raw if cap is None else cap * torch.tanh(raw / cap)

    def stream(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        *,
        kind: str = "residual",
        on_state: OnState,
        on_final_norm: OnFinalNorm | None = None,
    ) -> None:
        """Run one forward pass without head and cache, and hand out each state as it appears.

        States are not kept: after the callback returns, a state lives only as long as the model itself needs it.
        Callbacks run in inference mode; `hf-tuple` is the exception that holds every state, as transformers does.

        Args:
            ids: Token ids (batch, token), right-padded.
            mask: (batch, token), True for real tokens; None when there is no padding.
            kind: `residual` (embedding output, then raw block outputs), `branch` (what each block adds),
                `branch:attention`, `branch:mlp`, `branch:ssm`, `branch:recurrent`, `branch:conv` (what a sublayer adds,
                for the layers in `sublayers(kind)`), `hf-tuple` (transformers' own tuple), or `stream:1` and so on, one
                of several residual streams, whose read-out mixture `residual` is.
            on_state: Called with the entry's index and its (batch, token, width) tensor.
            on_final_norm: Called once with the final norm's output.
        """
        check_prompt(ids, mask, self.vocab_size)
        if self.max_length is not None and ids.shape[1] > self.max_length:
            expected = f"at most {self.max_length} tokens, the limit of {self.name}"
            raise InputError(teach(expected, f"{ids.shape[1]}", "ask for a shorter length or another model"))
        check_kind(self.reading, kind)
        arguments = self.reading.arguments(on_device(ids, self.device), mask)
        stream_states(self.reading, arguments, kind, on_state, on_final_norm)

    @timed("digest")
    def digest(self) -> str:
        """Digest of every parameter and stored buffer (name, dtype, shape, bytes) and of ablations, and its scheme.

        Recomputed in every call, on the devices where the weights are; the same on all of them.
        """
        return digest.weights_digest(self._stored(), "|".join(self.ablations))

    def sha256(self) -> str:
        """The digest of versions before `digest.SCHEME`, by which runs that they stored are compared."""
        return digest.sha256(self._stored(), "|".join(self.ablations))

    def _stored(self) -> list[tuple[str, Tensor]]:
        return [*nonfinite.stored_parameters(self.network), *nonfinite.stored_buffers(self.network)]

    def __repr__(self) -> str:
        changed = f", ablated: {', '.join(self.ablations)}" if self.ablations else ""
        kind = f"{self.model_type}, {self.n_layers} layers, width {self.width}, {self.init}"
        return f"Model({self.name!r}, {kind}{changed})"


def _head(network: PreTrainedModel) -> nn.Module | None:
    return network.get_output_embeddings() if network.base_model is not network else None


@timed("checks")
def _run_check(network: PreTrainedModel, reading: Reading, *, doubtful: bool) -> None:
    try:
        # a stack without a head of tokens is a classifier, whose own pass may want a class token
        bare = reading.head is None and isinstance(network.config, StackConfig)
        check(network.base_model if bare else network, reading, doubtful=doubtful)
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError) as error:
        if isinstance(error, UnsupportedModelError):
            raise
        remedy = "repflow reads decoders that run on token ids alone"
        if NO_DRIVER in str(error):
            remedy = f"its layers are Triton kernels, which do not run on {network.device}: load it on a GPU"
        raise UnsupportedModelError(
            f"self-check 'forward pass' failed: {type(network).__name__} raised {type(error).__name__}: {error}; "
            f"{remedy}"
        ) from error


def check_prompt(ids: Tensor, mask: Tensor | None, vocab: int) -> None:
    """Refuse ids and masks that the model would misread: wrong shape, left padding, ids beyond the vocabulary."""
    if ids.ndim != 2 or ids.numel() == 0:
        raise InputError(teach("ids of shape (batch, token)", f"{tuple(ids.shape)}", "pass ids[None] for one prompt"))
    if bool((ids < 0).any()) or bool((ids >= vocab).any()):
        got = f"ids from {int(ids.min())} to {int(ids.max())}"
        raise InputError(teach(f"token ids from 0 to {vocab - 1}", got, "use the model's own tokenizer"))
    if mask is None:
        return
    if mask.shape != ids.shape:
        expected = f"a mask of shape (batch, token) {tuple(ids.shape)}"
        raise InputError(teach(expected, f"{tuple(mask.shape)}", "give one entry per token id"))
    real = mask.bool()
    if bool((real[:, 1:] & ~real[:, :-1]).any()) or not bool(real[:, 0].all()):
        raise InputError(teach("padding on the right", "a mask that starts or resumes later", "right-pad the batch"))
