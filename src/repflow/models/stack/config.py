"""Configuration of a stack: which mixers, in what residual frame; saved as config.json."""

from __future__ import annotations

import copy
import difflib
import inspect
import math
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedConfig

from repflow.core.errors import InputError, nearest, teach
from repflow.mixers.build import family_name
from repflow.mixers.option import at_least, of_kind, one_of
from repflow.mixers.reorder import check_span, reorder_options

NORMS = ("rms", "layer", "none")
MLPS = ("gelu", "swiglu", "rwkv")
POOLINGS = ("mean", "last")
TASKS = ("language", "classification")
REORDERED = ("first", "all")
CLASS_TOKENS = ("start", "middle", "end")
LEVELS = (-1.0, 1.0)
"""Of the first and the last id of a stack with input_channels."""


class StackConfig(PreTrainedConfig):  # type: ignore[misc]
    """What a stack is made of.

    Args:
        mixers: One entry per layer: a family's name, or {"name": family, option: value, ...} with the options of
            `repflow.mixers.build`. A single entry serves all `num_hidden_layers`.
        hidden_size: Width of the residual stream.
        vocab_size: Token ids; levels of the input where there are input_channels. With a class token the last id is
            the token's.
        num_hidden_layers: Number of layers; the length of `mixers` where that is a list.
        mlp: Feed-forward layer behind each mixer: gelu, swiglu, rwkv (channel mixing), None for none, or a list of
            these.
        mlp_size: Its hidden channels; 4 widths, for swiglu 8/3 rounded up to a multiple of 8, if left out.
        norm: Norm in front of every mixer and feed-forward layer: rms, layer or none.
        norm_eps: Added to the norm's variance.
        final_norm: Whether a norm stands behind the last layer; as `norm` says if left out.
        embedding_norm: Whether a norm stands in front of the first layer, as in RWKV; layer where `norm` is none.
        skip: λ of h ← λ h + mixer(norm(h)) (λ-skip, Joseph et al. 2024, arXiv 2410.10609); 1 is the usual stream.
        skip_learned: Whether each block learns its own λ, beginning there.
        neutreno: λ of mixer(u) + λ (u⁰ - u), u = norm(h) and u⁰ that of the first block, which pulls every block's
            input back to the first one (after NeuTRENO, Nguyen et al. 2023, arXiv 2312.00751, whose correction is on
            attention's values; here on what any mixer reads); 0 for none.
        reorder: Options of `repflow.mixers.reorder.TokenOrder`, with which blocks read tokens in another order, and
            `blocks`: all, or the first alone (the default, as in the paper's code); None for tokens as they come.
        share: Whether layers share weights: True, all layers with equal entries do; or a number per layer, equal
            numbers share.
        max_position_embeddings: Tokens that get a learned position embedding; None for none.
        input_channels: Channels of real inputs (batch, token, channel) in place of token ids; None for ids.
        input_range: Levels of the first and the last id where ids stand for real inputs.
        class_token: Where a classifier has a learned token from whose state the class is read: start, middle (behind
            half of the others) or end; None for none. One at the start needs a layer that mixes both ways. It has no
            position embedding. Sequences are then of one length.
        bidirectional: Whether a classifier's layers also mix from the last token to the first, by a mixer of their own
            whose output is added; or a list of these. Sequences are then of one length.
        dropout: Share of channels that are dropped from what each mixer and feed-forward layer adds, while training;
            or a list of these.
        embedding_dropout: The same for what enters the first layer.
        channel_dropout: Whether `dropout` drops a channel from all tokens of a row at once: a mean over tokens averages
            out what is dropped token by token.
        pooling: How a classifier without a class token sums up a sequence: mean over its tokens, or the last one.
        task: language or classification; decides what `repflow.load` builds.
        initializer_range: Standard deviation of the embeddings at initialisation.
        tie_word_embeddings: Whether the head is the embedding table.
        kwargs: Whatever else transformers keeps in a configuration: num_labels, bos_token_id, ...

    >>> config = StackConfig(mixers=["Mamba-2", {"name": "attention", "heads": 2}], hidden_size=16)
    >>> config.num_hidden_layers, [mixer["name"] for mixer in config.mixers]
    (2, ['ssd', 'softmax_attention'])
    """

    model_type = "repflow_stack"
    # Only what differs from these is stored: configurations from before they existed stay equal to new ones.
    skip: float = 1.0
    skip_learned: bool = False
    neutreno: float = 0.0
    reorder: dict[str, Any] | None = None
    input_range: Sequence[float] = LEVELS
    class_token: str | None = None
    bidirectional: Sequence[bool] = ()
    dropout: Sequence[float] = ()
    embedding_dropout: float = 0.0
    channel_dropout: bool = False

    def __init__(
        self,
        mixers: str | dict[str, Any] | Sequence[str | dict[str, Any]] = "s6",
        *,
        hidden_size: int = 64,
        vocab_size: int = 256,
        num_hidden_layers: int | None = None,
        mlp: str | Sequence[str | None] | None = None,
        mlp_size: int | None = None,
        norm: str = "rms",
        norm_eps: float = 1e-5,
        final_norm: bool | None = None,
        embedding_norm: bool = False,
        skip: float = 1.0,
        skip_learned: bool = False,
        neutreno: float = 0.0,
        reorder: dict[str, Any] | None = None,
        share: bool | Sequence[int] = False,
        max_position_embeddings: int | None = None,
        input_channels: int | None = None,
        input_range: Sequence[int | float] = LEVELS,
        class_token: str | None = None,
        bidirectional: bool | Sequence[bool] = False,
        dropout: float | Sequence[float] = 0.0,
        embedding_dropout: float = 0.0,
        channel_dropout: bool = False,
        pooling: str = "mean",
        task: str = "language",
        initializer_range: float = 0.02,
        tie_word_embeddings: bool = False,
        **kwargs: Any,
    ) -> None:
        _refuse_misspelt(kwargs)
        one_of("norm", norm, NORMS)
        one_of("pooling", pooling, POOLINGS)
        one_of("task", task, TASKS)
        self._set_stream(skip, skip_learned, neutreno)
        self._set_reorder(reorder)
        switches = {"embedding_norm": embedding_norm, "tie_word_embeddings": tie_word_embeddings}
        for name, value in {**switches, **({} if final_norm is None else {"final_norm": final_norm})}.items():
            of_kind(name, value, "bool")
        if not (norm_eps >= 0 and initializer_range >= 0):
            got = f"{norm_eps} and {initializer_range}"
            raise InputError(teach("norm_eps and initializer_range of at least 0", got, "leave them out"))
        sizes = {"hidden_size": hidden_size, "vocab_size": vocab_size, "mlp_size": mlp_size}
        sizes |= {"max_position_embeddings": max_position_embeddings, "input_channels": input_channels}
        for name, size in sizes.items():
            of_kind(name, size, "int | None")
        at_least(1, **{name: size for name, size in sizes.items() if size is not None})
        self.mixers = _entries(mixers, num_hidden_layers)
        self.num_hidden_layers = len(self.mixers)
        self.mlp = _per_layer("mlp", mlp if isinstance(mlp, str | None) else list(mlp), len(self.mixers))
        for kind in self.mlp:
            if kind is not None:
                one_of("mlp", kind, MLPS)
        self.share = _groups(share, self.mixers, self.mlp)
        self._set_classifier(input_range, class_token, bidirectional)
        self._set_dropout(dropout, embedding_dropout, channel_dropout)
        self.hidden_size, self.vocab_size, self.mlp_size = hidden_size, vocab_size, mlp_size
        self.norm, self.norm_eps, self.embedding_norm = norm, norm_eps, embedding_norm
        self.final_norm = norm != "none" if final_norm is None else final_norm
        self.max_position_embeddings, self.input_channels = max_position_embeddings, input_channels
        if max_position_embeddings is not None:
            check_span(self.reorder, max_position_embeddings)
        self.pooling, self.task, self.initializer_range = pooling, task, initializer_range
        if tie_word_embeddings and input_channels is not None:
            got = f"tie_word_embeddings with {input_channels} input channels"
            raise InputError(teach("token ids where the head is the embedding table", got, "untie the head"))
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)
        self.tie_word_embeddings = tie_word_embeddings

    def _set_stream(self, skip: float, skip_learned: bool, neutreno: float) -> None:
        """Keep what changes the residual stream, where it does."""
        of_kind("skip_learned", skip_learned, "bool")
        for name, value in {"skip": skip, "neutreno": neutreno}.items():
            of_kind(name, value, "float")
            if not math.isfinite(value):
                raise InputError(teach(f"a finite {name}", str(value), "leave it out"))
        self._keep({"skip": skip, "skip_learned": skip_learned, "neutreno": neutreno})

    def _set_reorder(self, reorder: dict[str, Any] | None) -> None:
        """Keep how tokens are reordered, where they are."""
        if reorder is None:
            return
        options = reorder_options(reorder)
        blocks = options.pop("blocks", REORDERED[0])
        one_of("blocks of reorder", blocks, REORDERED)
        self.reorder = {"blocks": blocks, **options}

    def reorders(self, layer: int) -> bool:
        """Whether a layer reads tokens in another order."""
        return self.reorder is not None and (layer == 0 or self.reorder["blocks"] == "all")

    @property
    def sorts_whole(self) -> bool:
        """Whether blocks sort whole sequences, so that tokens read later ones and must not read padding."""
        order = self.reorder or {}
        return order.get("form") == "whole" and order.get("order") != "identity"

    def _set_classifier(self, input_range: Sequence[int | float], class_token: str | None, bidirectional: Any) -> None:
        """Keep what classifiers of images need, where it is asked for."""
        if class_token is not None:
            one_of("class_token", class_token, CLASS_TOKENS)
            if self.sorts_whole and not (self.reorder or {}).get("restore"):
                got = "reorder of whole sequences, whose outputs stay where the tokens were sorted to"
                remedy = 'add "restore": True to reorder, or leave class_token out and pass pooling="mean"'
                raise InputError(teach("a class token whose output stands at its place", got, remedy))
        both = _per_layer(
            "bidirectional",
            bidirectional if isinstance(bidirectional, bool) else list(bidirectional),
            self.num_hidden_layers,
        )
        for way in both:
            of_kind("bidirectional", way, "bool")
        if class_token == "start" and not any(both) and not self.sorts_whole:
            got = 'class_token="start" where every layer mixes from left to right: it sees nothing but itself'
            remedy = 'pass class_token="end", or bidirectional=True'
            raise InputError(teach("a class token that sees other tokens", got, remedy))
        try:
            low, high = map(float, input_range)
        except (TypeError, ValueError):  # not two, or no numbers
            low = high = math.nan
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InputError(teach("input_range of two numbers in order", repr(input_range), "leave it out"))
        self._keep({"input_range": [low, high], "class_token": class_token})
        if any(both):
            self.bidirectional = both

    def _set_dropout(self, dropout: Any, entering: float, channels: bool) -> None:
        """Keep what is dropped while training, where anything is."""
        shares = dropout if isinstance(dropout, int | float) else list(dropout)
        dropped = _per_layer("dropout", shares, self.num_hidden_layers)
        for name, share in (*(("dropout", share) for share in dropped), ("embedding_dropout", entering)):
            of_kind(name, share, "float")
            if not 0 <= share < 1:
                raise InputError(teach(f"{name} from 0 to below 1", str(share), "leave it out for none"))
        of_kind("channel_dropout", channels, "bool")
        if channels and not any(dropped):
            raise InputError(teach("channel_dropout beside a dropout", "no dropout", "pass dropout=0.1 too"))
        self._keep({"embedding_dropout": float(entering), "channel_dropout": channels})
        if any(dropped):
            self.dropout = [float(share) for share in dropped]

    def _keep(self, values: dict[str, Any]) -> None:
        """Set what differs from the class' own values; the others are not stored."""
        for name, value in values.items():
            plain = getattr(type(self), name)
            if value != (list(plain) if isinstance(plain, tuple) else plain):
                setattr(self, name, value)

    def both_ways(self, layer: int) -> bool:
        """Whether a layer also mixes from the last token to the first."""
        return bool(self.bidirectional and self.bidirectional[layer])

    def dropped(self, layer: int) -> float:
        """Dropout of a layer."""
        return self.dropout[layer] if self.dropout else 0.0

    @property
    def levels(self) -> int:
        """Ids that are levels, or tokens other than the class token."""
        return int(self.vocab_size) - (self.class_token is not None)

    def class_place(self, tokens: int) -> int | None:
        """Place of the class token before, behind or between other tokens; None without one.

        >>> StackConfig(class_token="middle").class_place(9), StackConfig(class_token="end").class_place(9)
        (4, 9)
        """
        return {None: None, "start": 0, "middle": tokens // 2, "end": tokens}[self.class_token]


def _refuse_misspelt(others: dict[str, Any]) -> None:
    """Transformers keeps whatever it does not know: a name close to one of ours is a slip, not a fact to keep."""
    own = [name for name in inspect.signature(StackConfig).parameters if name != "kwargs"]
    for name in others:
        if not hasattr(PreTrainedConfig, name) and difflib.get_close_matches(name, own, n=1, cutoff=0.8):
            raise InputError(teach("an option of StackConfig", repr(name), nearest(name, own)))


def _entries(mixers: str | dict[str, Any] | Sequence[str | dict[str, Any]], layers: int | None) -> list[dict[str, Any]]:
    """Mixers of all layers, each {"name": family, option: value, ...}."""
    of_kind("num_hidden_layers", layers, "int | None")
    if not isinstance(mixers, str | dict | Sequence):
        raise InputError(teach("mixers: a name, or a list of them", repr(mixers), 'write ["s6", "softmax_attention"]'))
    several = not isinstance(mixers, str | dict)
    entries = list(mixers) if several else [mixers] * (1 if layers is None else layers)
    if not entries:
        raise InputError(teach("at least one layer", "none", "name a mixer per layer"))
    if several and layers is not None and layers != len(entries):
        expected = f"num_hidden_layers of {len(entries)}, one per entry of mixers"
        raise InputError(teach(expected, str(layers), "leave num_hidden_layers out"))
    named = []
    for entry in entries:
        if isinstance(entry, str):
            entry = {"name": entry}
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            remedy = 'write {"name": "s6", "state": 16}'
            raise InputError(teach("a mixer's name, or a name with options", repr(entry), remedy))
        named.append({**copy.deepcopy(entry), "name": family_name(entry["name"])})
    return named


def _per_layer(name: str, value: Any, layers: int) -> list[Any]:
    values = value if isinstance(value, list) else [value] * layers
    if len(values) != layers:
        raise InputError(teach(f"{name} for each of {layers} layers", f"{len(values)}", "give one, or one per layer"))
    return values


def _groups(share: bool | Sequence[int], mixers: list[dict[str, Any]], mlps: list[str | None]) -> list[int]:
    """Group of every layer; layers of one group share their weights, so they must be built alike."""
    built = list(zip(mixers, mlps, strict=True))
    if isinstance(share, bool):
        return [built.index(layer) for layer in built] if share else list(range(len(built)))
    groups = _per_layer("share", list(share), len(built))
    for index, group in enumerate(groups):
        first = groups.index(group)
        if built[first] != built[index]:
            pair = " and ".join(f"{at + 1} ({mixers[at]['name']})" for at in (first, index))
            got = f"blocks {pair} in group {group}"
            raise InputError(teach("layers that share weights to be equal", got, "give them different numbers"))
    return groups
