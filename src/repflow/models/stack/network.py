"""Stack: a residual language model or sequence classifier of any mixers, as a transformers model.

The layers are exact and small rather than tuned: what is measured on them is the mixer in a known frame. transformers'
auto classes know it as `repflow_stack`, so a folder made by `save_pretrained` or a `config:FILE.json` loads like any
other model.

Every mixer is causal, so batches are padded on the right and need no mask, except for pooling. A classifier may also
mix both ways and have a class token; its sequences are then of one length. `generate` reads the
prompts once and goes on from what every layer kept of them (`StackCache`); prompts of one batch are of equal length.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    SequenceClassifierOutput,
)

from repflow.core.errors import InputError, teach
from repflow.mixers.check import check_causality
from repflow.mixers.scan.precision import without_autocast
from repflow.models.stack.block import StackBlock, make_norm, pool, shared_parameters
from repflow.models.stack.cache import StackCache
from repflow.models.stack.config import StackConfig

__all__ = [
    "StackCache",
    "StackConfig",
    "StackForCausalLM",
    "StackForSequenceClassification",
    "StackModel",
    "auto_class",
]


class StackPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """What the stack's models have in common: weights are set where modules are made, and shared by name."""

    config_class = StackConfig
    base_model_prefix = "model"
    _no_split_modules = ["StackBlock"]  # noqa: RUF012  transformers wants a list
    _is_stateful = True

    def _init_weights(self, module: nn.Module) -> None:
        """Leave every module as it initialised itself: a mixer knows its family's rule."""

    @classmethod
    def get_init_context(cls, *args: Any, **kwargs: Any) -> list[Any]:
        """Build on a real device when loading, since mixers may compute constants; seeds stay untouched."""
        contexts = super().get_init_context(*args, **kwargs)
        others = [c for c in contexts if not (isinstance(c, torch.device) and c.type == "meta")]
        return [*others, torch.random.fork_rng(devices=[])]

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Parameters that stand for others: those of layers that share, and a tied head."""
        return super().get_expanded_tied_weights_keys(all_submodels=True) if all_submodels else self._shared()

    def _shared(self) -> dict[str, str]:
        return {}


class StackModel(StackPreTrainedModel):
    """Embedding, residual blocks, final norm.

    >>> model = StackModel(StackConfig(mixers=["s6", "softmax_attention"], hidden_size=8))
    >>> model(torch.tensor([[1, 2, 3]])).last_hidden_state.shape
    torch.Size([1, 3, 8])
    """

    def __init__(self, config: StackConfig) -> None:
        super().__init__(config)
        width, spread = config.hidden_size, config.initializer_range
        self.embeddings: nn.Embedding | None = None
        if config.input_channels is None:
            self.embeddings = nn.Embedding(config.vocab_size, width)
            nn.init.normal_(self.embeddings.weight, std=spread)
        else:
            self.input_projection = nn.Linear(config.input_channels, width)
        if config.max_position_embeddings is not None:
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
            nn.init.normal_(self.position_embeddings.weight, std=spread)
        if config.class_token is not None:
            self.class_token = nn.Parameter(torch.randn(width))
        self.embedding_dropout = nn.Dropout(config.embedding_dropout) if config.embedding_dropout else nn.Identity()
        if config.embedding_norm:
            self.embedding_norm = make_norm(config, "layer" if config.norm == "none" else config.norm)
        self.blocks = nn.ModuleList(StackBlock(config, layer) for layer in range(config.num_hidden_layers))
        kind = "none" if not config.final_norm else "rms" if config.norm == "none" else config.norm
        self.final_norm = make_norm(config, kind)
        self._tied_weights_keys = self._shared()
        self.post_init()

    def _shared(self) -> dict[str, str]:
        return shared_parameters(self.blocks, self.config.share)

    def get_input_embeddings(self) -> nn.Module | None:
        """Embedding table; None where the inputs are real numbers."""
        return self.embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the embedding table."""
        self.embeddings = value

    def embed(self, inputs: Tensor, start: int = 0) -> Tensor:
        """Residual stream before the first block.

        Args:
            start: Tokens before these.
            inputs: Token ids (batch, token); with input_channels, real inputs (batch, token, channel), or ids as
                levels: id v of V is spread over the input range in equal steps, the same in every channel. Real inputs
                get the class token; ids name it by the last id, so that states stay those of the ids.
        """
        channels = self.config.input_channels
        if inputs.is_floating_point():
            if channels is None or inputs.ndim != 3 or inputs.shape[2] != channels:
                expected = "token ids (batch, token)" if channels is None else f"inputs (batch, token, {channels})"
                raise InputError(teach(expected, f"floats of shape {tuple(inputs.shape)}", "see input_channels"))
            return self._placed(project_rows(self.input_projection, inputs), start)
        if inputs.ndim != 2:
            expected = "token ids (batch, token)"
            raise InputError(teach(expected, f"shape {tuple(inputs.shape)}", "pass ids[None] for one sequence"))
        if channels is not None:
            (low, high), kind = self.config.input_range, self.input_projection.weight.dtype
            level = (low + (high - low) * inputs / max(self.config.levels - 1, 1)).to(kind)
            hidden = self.input_projection(level[..., None].expand(-1, -1, channels))
        else:
            assert self.embeddings is not None
            hidden = self.embeddings(inputs)
        marked = None if self.config.class_token is None else inputs == self.config.levels
        return self._placed(hidden, start, marked)

    def _placed(self, hidden: Tensor | None, start: int = 0, marked: Tensor | None = None) -> Tensor:
        """Add positions, and the class token where `marked` says, or at its place where nothing is marked."""
        assert hidden is not None
        most = self.config.max_position_embeddings
        if most is not None:
            places = torch.arange(start, start + hidden.shape[1], device=hidden.device)
            if marked is not None:  # which has no position of its own
                places = ((~marked).cumsum(1) - 1).clamp(min=0)
            end = start + hidden.shape[1] - (marked is not None and bool(marked.any()))
            if end > most:
                expected = f"at most {most} tokens, which have a position embedding"
                raise InputError(teach(expected, str(end), "cut the sequence"))
            hidden = hidden + self.position_embeddings(places)
        if marked is not None:
            hidden = torch.where(marked[..., None], self.class_token.to(hidden.dtype), hidden)
        elif (place := self.config.class_place(hidden.shape[1])) is not None:
            token = self.class_token.to(hidden.dtype).expand(len(hidden), 1, -1)
            hidden = torch.cat([hidden[:, :place], token, hidden[:, place:]], 1)
        normed = self.embedding_norm(hidden) if self.config.embedding_norm else hidden
        entering: Tensor = self.embedding_dropout(normed)
        return entering

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast | tuple:
        """Run all blocks.

        Args:
            input_ids: Token ids (batch, token), or real inputs (batch, token, channel) for a model with input_channels.
            attention_mask: (batch, token), padding on the right only; the states do not depend on it, unless whole
                sequences are sorted.
            inputs_embeds: Embeddings (batch, token, width) in place of input_ids, before positions and embedding norm.
            output_hidden_states: Also return the embedding output and every block's raw output, L + 1 states.
            return_dict: False for a tuple.
            past_key_values: What an earlier pass returned: the tokens follow those seen there.
            use_cache: Also return what is kept of the tokens, to go on from; not where any of them is padding.
            kwargs: transformers' further arguments (positions), which a stack does not use.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError(teach("either input_ids or inputs_embeds", "both or neither", "pass one of them"))
        check_right_padding(attention_mask)
        cache = self._cache(past_key_values, bool(use_cache), attention_mask)
        start = 0 if cache is None else cache.get_seq_length()
        hidden = self._placed(inputs_embeds, start) if input_ids is None else self.embed(input_ids, start)
        keep = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        states = [hidden] if keep else []
        beside = {"first": first_input(self.blocks, hidden)} if self.config.neutreno else {}
        if attention_mask is not None and self.config.sorts_whole:
            beside["mask"] = attention_mask
        for layer, block in enumerate(self.blocks):
            carries = () if cache is None else ((cache.mixers[layer], cache.mlps[layer]),)
            hidden = block(hidden, *carries, **beside)
            if keep:
                states.append(hidden)
        output = BaseModelOutputWithPast(
            last_hidden_state=self.final_norm(hidden),
            past_key_values=cache,
            hidden_states=tuple(states) if keep else None,
        )
        return _returned(output, return_dict)

    def _cache(self, cache: Any, wanted: bool, mask: Tensor | None) -> StackCache | None:
        """What the tokens go on from and are kept in; None where neither is asked for or padding would be kept."""
        begun = isinstance(cache, StackCache) and cache.get_seq_length() > 0
        if not begun and (not wanted or (mask is not None and not bool(mask.all()))):
            return None
        return StackCache.of(cache, len(self.blocks))


class StackForCausalLM(StackPreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A stack that predicts the next token.

    >>> model = StackForCausalLM(StackConfig(mixers="rwkv5", num_hidden_layers=2, hidden_size=8, vocab_size=10))
    >>> model(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3, 10])
    """

    _tied_weights_keys = {"lm_head.weight": "model.embeddings.weight"}  # noqa: RUF012  transformers wants a dict

    def __init__(self, config: StackConfig) -> None:
        config = _for_task(config, "language")
        if config.class_token is not None or config.bidirectional:
            got = "a class token" if config.class_token is not None else "layers that mix both ways"
            raise InputError(teach("a causal stack without a class token", got, "build a classifier, or leave it out"))
        super().__init__(config)
        self.model = StackModel(config)
        refuse_leak(self.model)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _shared(self) -> dict[str, str]:
        return dict(self._tied_weights_keys) if self.config.tie_word_embeddings else {}

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        return self.lm_head

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple:
        """Logits (batch, token, vocabulary), and the mean loss of the next token where there are labels.

        Args:
            input_ids: As `StackModel.forward`.
            attention_mask: As `StackModel.forward`.
            inputs_embeds: As `StackModel.forward`.
            labels: Token ids (batch, token), shifted here; −100 is left out.
            logits_to_keep: Number of last tokens to read, or their indices; 0 for all.
            return_dict: False for a tuple.
            num_items_in_batch: Labels of all passes whose gradients a step accumulates: the loss is then their sum's
                share, as transformers' Trainer expects it.
            kwargs: Passed to `StackModel.forward`.
        """
        output = self.model(input_ids, attention_mask, inputs_embeds, return_dict=True, **kwargs)
        rows = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(output.last_hidden_state[:, rows])
        loss = None
        if labels is not None:
            wide = logits[:, :-1].flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
            loss = causal_loss(wide, labels[:, 1:].flatten().to(wide.device), num_items_in_batch)
        result = CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=output.past_key_values, hidden_states=output.hidden_states
        )
        return _returned(result, return_dict)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, past_key_values: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The tokens that the cache has not seen; all of them where there is none."""
        seen = past_key_values.get_seq_length() if isinstance(past_key_values, StackCache) else 0
        return {
            "input_ids": input_ids[:, seen:],
            "attention_mask": attention_mask,
            "past_key_values": past_key_values if seen else None,
            "use_cache": kwargs.get("use_cache"),
        }


class StackForSequenceClassification(StackPreTrainedModel):
    """A stack that names a sequence's class, from its mean or last state behind the final norm.

    >>> config = StackConfig(mixers="ssd", num_hidden_layers=2, hidden_size=8, input_channels=3, num_labels=5)
    >>> StackForSequenceClassification(config)(torch.randn(2, 7, 3)).logits.shape
    torch.Size([2, 5])
    """

    def __init__(self, config: StackConfig) -> None:
        if config.num_labels < 1:
            raise InputError(teach("num_labels of at least 1", str(config.num_labels), "give the number of classes"))
        config = _for_task(config, "classification")
        super().__init__(config)
        self.model = StackModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> None:
        """None: classes are not tokens."""
        return

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput | tuple:
        """Logits (batch, class), and the mean loss where there are labels (batch,)."""
        self._check_mask(attention_mask)
        output = self.model(input_ids, attention_mask, inputs_embeds, return_dict=True, **kwargs)
        read = self._summed_up(output.last_hidden_state, input_ids, attention_mask)
        with without_autocast(read.device):  # classes of nearly equal logits would tie in half precision
            logits = self.score(read.to(self.score.weight.dtype))
        loss = None
        if labels is not None:
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
            loss = functional.cross_entropy(wide, labels.to(wide.device))
        output = SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=output.hidden_states)
        return _returned(output, return_dict)

    def _check_mask(self, mask: Tensor | None) -> None:
        """Refuse padding where tokens before it would see it."""
        apart = self.config.class_token is not None or bool(self.config.bidirectional)
        if apart and mask is not None and not bool(mask.all()):
            expected = "sequences of one length for a class token or layers that mix both ways"
            raise InputError(teach(expected, "a mask with padding", "run sequences of other lengths by themselves"))

    def _summed_up(self, hidden: Tensor, inputs: Tensor | None, mask: Tensor | None) -> Tensor:
        """State (batch, width) that the class is read from."""
        if self.config.class_token is None:
            return pool(hidden, mask, self.config.pooling)
        if inputs is None or inputs.is_floating_point():
            place = self.config.class_place(hidden.shape[1] - 1)
            assert place is not None
            return hidden[:, place]
        marked = inputs == self.config.levels
        if not bool((marked.sum(1) == 1).all()):
            expected = f"one class token in each row of ids, whose id is {self.config.levels}"
            got = f"{marked.sum(1).tolist()[:8]}"
            raise InputError(teach(expected, got, f"put it at the {self.config.class_token} of the row"))
        return hidden[marked]


def project_rows(projection: nn.Linear, inputs: Tensor) -> Tensor:
    """Project real inputs (batch, token, channel); on a GPU by one product a row.

    The gradient of the weight, a few channels by the width, is then a sum of short products. As one product over all
    tokens it is too few numbers to share among threads: 1.3 ms of a step of 9 to 28 for the pixel laboratory's models
    on an H200.
    """
    inputs = inputs.to(projection.weight.dtype)
    if not inputs.is_cuda:
        return projection(inputs)
    return torch.baddbmm(projection.bias, inputs, projection.weight.mT.expand(len(inputs), -1, -1))


def refuse_leak(model: StackModel) -> None:
    """Refuse a language model that reads the tokens it predicts, unless that was asked for by name.

    Raises:
        InputError: Outputs depend on later tokens; says by how much.
    """
    order = model.config.reorder
    if order is None or order.get("leaky"):
        return
    problem = _leak(model)
    if problem:
        got = f"reorder with the form {order.get('form')}, which reads later tokens ({problem})"
        remedy = "take the form chunks or prefix, or say leaky=True and call every result leaky"
        raise InputError(teach("a language model that reads earlier tokens only", got, remedy))


def _leak(model: StackModel) -> str:
    """How outputs of the first block depend on later tokens; weights without values are judged by their form."""
    block: Any = model.blocks[0]
    if next(block.parameters()).is_meta:
        return "by its form" if model.config.sorts_whole else ""
    try:
        check_causality(block.mixer)
    except InputError as error:
        return str(error)
    return ""


def first_input(blocks: nn.ModuleList, hidden: Tensor) -> Tensor:
    """What the first block's mixer reads of the stream."""
    block: Any = blocks[0]
    normed: Tensor = block.mixer_norm(hidden)
    return normed


def causal_loss(logits: Tensor, targets: Tensor, items: Tensor | int | None) -> Tensor:
    """Mean cross entropy, or its sum over `items`, where the gradients of several passes are accumulated."""
    if items is None:
        return functional.cross_entropy(logits, targets)
    total = functional.cross_entropy(logits, targets, reduction="sum")
    return total / (items.to(total.device) if isinstance(items, Tensor) else items)


def check_right_padding(mask: Tensor | None) -> None:
    """Refuse a mask with padding before or between tokens: causal states would hold the padding.

    While a CUDA graph is recorded nothing may be read back: who replays it asks of every batch beforehand. A recording
    that fails would keep its memory until the process ends.
    """
    recording = mask is not None and mask.is_cuda and torch.cuda.is_current_stream_capturing()
    if mask is not None and mask.ndim == 2 and not recording:
        real = mask.bool()
        if bool((real[:, 1:] & ~real[:, :-1]).any()) or not bool(real[:, 0].all()):
            got = "a mask that starts or resumes later"
            raise InputError(teach("padding on the right", got, "right-pad the batch (padding_side='right')"))


def auto_class(config: Any) -> Any:
    """Auto class of transformers for a configuration: of causal language models where it has one.

    Further a stack's classifier, language models that transformers has beside a vision tower alone, and those that
    it has without a head alone.
    """
    if isinstance(config, StackConfig) and config.task == "classification":
        return AutoModelForSequenceClassification
    if "AutoModelForCausalLM" not in (getattr(config, "auto_map", None) or {}):
        for factory in (AutoModelForCausalLM, AutoModelForImageTextToText, AutoModel):
            if type(config) in factory._model_mapping:
                return factory
    return AutoModelForCausalLM


def _for_task(config: StackConfig, task: str) -> StackConfig:
    """The configuration, or a copy that says the task: one given to two models must not become the other's."""
    if config.task != task:
        config = copy.deepcopy(config)
        config.task = task
    return config


def _returned(output: Any, return_dict: bool | None) -> Any:
    return output.to_tuple() if return_dict is False else output


AutoConfig.register(StackConfig.model_type, StackConfig, exist_ok=True)
AutoModel.register(StackConfig, StackModel, exist_ok=True)
AutoModelForCausalLM.register(StackConfig, StackForCausalLM, exist_ok=True)
AutoModelForSequenceClassification.register(StackConfig, StackForSequenceClassification, exist_ok=True)
