"""Random ragged samples, and a driver that puts them through a meter in any batches."""

import numpy as np
import torch

from repflow.metrics.meter import BatchInfo


def sample_states(seed, lengths, n_states=4, width=5, dtype=torch.float64, sinks=True):
    """One tensor (state, token, width) per sample, a random walk over depth, some with a massive first token."""
    rng = np.random.default_rng(seed)
    samples = []
    for i, length in enumerate(lengths):
        steps = rng.standard_normal((n_states, length, width)) + 0.3 * rng.standard_normal(width)
        hidden = steps.cumsum(0)
        if sinks and i % 2 and length > 3:
            hidden[1:, 0] *= 60
        samples.append(torch.from_numpy(hidden).to(dtype))
    return samples


def pad(samples, garbage=float("nan"), extra=0):
    """Right-pad to (state, batch, token, width) and mask (batch, token); padding holds garbage."""
    longest = max(s.shape[1] for s in samples) + extra
    states, _, width = samples[0].shape
    hidden = torch.full((states, len(samples), longest, width), garbage, dtype=samples[0].dtype)
    mask = torch.zeros(len(samples), longest, dtype=torch.long)
    for row, sample in enumerate(samples):
        hidden[:, row, : sample.shape[1]] = sample
        mask[row, : sample.shape[1]] = 1
    return hidden, mask


def feed(meter, samples, batches, *, final=None, garbage=float("nan"), extra=0, bos=(), kinds=()):
    """Run the meter over batches, each a list of indices into `samples`; the sample id is the index.

    `kinds` gives each state a dtype of its own.
    """
    for batch in batches:
        hidden, _ = pad([samples[i] for i in batch], garbage, extra)
        lengths = tuple(samples[i].shape[1] for i in batch)
        meter.begin(BatchInfo(tuple(batch), lengths, tuple(bos[i] for i in batch) if bos else ()))
        for state in range(hidden.shape[0]):
            meter.update(state, hidden[state].to(kinds[state]) if kinds else hidden[state])
        if final is not None:
            meter.final_norm(pad([final[i] for i in batch], garbage, extra)[0][0])
        meter.end()
    return meter


def values(meter):
    """Arrays of a meter's table."""
    return {name: array for name, (_, array) in meter.compute().items()}


def splits(rng, count):
    """A random order of samples cut into random batches."""
    order = rng.permutation(count).tolist()
    batches = []
    while order:
        size = int(rng.integers(1, 4))
        batches.append(order[:size])
        order = order[size:]
    return batches
