"""What is read of a language model of a grid: its loss on texts, recall, leak, eigenvalues and token norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from repflow.mixers.eigen import spectral_norm
from repflow.mixers.reorder import Reordered
from repflow.mixers.s6 import S6
from repflow.studies.recall.accuracy import count_right
from repflow.training.text import measure_leak, text_loss

if TYPE_CHECKING:
    from repflow.models.stack.network import StackForCausalLM
    from repflow.tasks.recall import RecallSetting
    from repflow.training.text import TextData

Arrays = dict[str, np.ndarray]
NORM_WINDOWS = 8
"""Windows on which token norms are read."""


def read_texts(network: StackForCausalLM, data: TextData, length: int) -> Arrays:
    """Perplexity of every text with its interval over documents, and the loss by place of the held-out one."""
    losses = [text_loss(network, part, length=length) for part in data.tests.values()]
    bands = [loss.perplexity for loss in losses]
    nats = np.full((len(losses), max(len(loss.nats) for loss in losses)), np.nan)
    for row, loss in zip(nats, losses, strict=True):
        row[: len(loss.nats)] = loss.nats
    return {
        "perplexity": np.array([float(band.mean) for band in bands]),
        "perplexity_low": np.array([float(band.low) for band in bands]),
        "perplexity_high": np.array([float(band.high) for band in bands]),
        "bits_per_byte": np.array([float(loss.bits_per_byte.mean) for loss in losses]),
        "document_nats": nats,
        "loss_by_place": losses[0].by_place,
    }


def read_leak(network: StackForCausalLM, data: TextData, length: int, positions: int) -> Arrays:
    """What the loss owes to tokens that the model should not have read yet."""
    leak = measure_leak(network, data.held_out, length=length, positions=positions)
    gap = leak.gap
    return {
        "leak": np.array(gap.mean),
        "leak_low": np.array(gap.low),
        "leak_high": np.array(gap.high),
        "whole_loss": np.array(leak.whole_loss.mean),
        "prefix_loss": np.array(leak.prefix_loss.mean),
    }


def read_recall(network: StackForCausalLM, kinds: Sequence[RecallSetting], rows: int, data: TextData) -> np.ndarray:
    """Share of right answers by number of pairs (pairs,), on rows that no model was trained on."""
    counts = count_right(network, kinds, rows, offset=data.vocabulary)
    return np.asarray(counts["right"].sum(1) / counts["queries"].sum(1))


def read_spectra(network: StackForCausalLM) -> Arrays:
    """Eigenvalues of S_Cᵀ S_B other than the zeros of rank deficiency, and its spectral norm, of every S6 layer."""
    layers: list[S6 | None] = []
    for block in network.model.blocks:
        mixer: Any = block.mixer
        mixer = mixer.inner if isinstance(mixer, Reordered) else mixer
        layers.append(mixer if isinstance(mixer, S6) else None)
    known = [mixer for mixer in layers if mixer is not None]
    if not known:
        return {}
    values = np.full((len(layers), max(len(mixer.spectrum()) for mixer in known)), np.nan, dtype=np.complex128)
    norms = np.full(len(layers), np.nan)
    for layer, mixer in enumerate(layers):
        if mixer is not None:
            own = mixer.spectrum().numpy()
            values[layer, : len(own)], norms[layer] = own, spectral_norm(*mixer.maps())
    imaginary = np.where(np.isnan(values.real), np.nan, values.imag)
    return {"eigenvalues_real": values.real, "eigenvalues_imaginary": imaginary, "spectral_norm": norms}


@torch.no_grad()
def read_norms(network: StackForCausalLM, data: TextData, length: int) -> np.ndarray:
    """Mean norm of a token behind the embedding and behind every block (state,), on held-out windows."""
    device = next(network.parameters()).device
    ids = data.held_out.ids
    count = max(1, min(NORM_WINDOWS, len(ids) // length))
    rows = ids[: count * length].reshape(count, -1) if len(ids) >= length else ids[None]
    states = network.model(torch.from_numpy(rows.astype(np.int64)).to(device), output_hidden_states=True).hidden_states
    return np.array([float(state.double().norm(dim=-1).mean()) for state in states])
