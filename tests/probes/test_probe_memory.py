"""Working memory: counted in live tensors while the probes are fitted, and shared out before."""

import weakref

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from repflow.probes import ArrayFeatures, fit_probes
from repflow.probes.budget import plan_groups, state_bytes
from repflow.probes.rows import plan_rows
from tests.probes.probe_inputs import random_splits

SAMPLES, WIDTH, CLASSES, STATES = 600, 64, 3, 12


class Live(TorchDispatchMode):
    """Most bytes of tensors alive at once, those of the features left out."""

    def __init__(self, features):
        super().__init__()
        self.known, self.most = {}, 0
        self.features = features.untyped_storage().data_ptr()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **kwargs or {})
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.numel() > 500:
                self.known[id(leaf)] = weakref.ref(leaf)
        alive = [tensor for tensor in (ref() for ref in self.known.values()) if tensor is not None]
        self.known = {id(tensor): weakref.ref(tensor) for tensor in alive}
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in alive}
        storages.pop(self.features, None)
        self.most = max(self.most, sum(storages.values()))
        return out


def data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(STATES, SAMPLES, WIDTH, generator=generator), np.arange(SAMPLES) % CLASSES


@pytest.mark.parametrize("recipe", ["paper", "robust"])
def test_peak_is_at_most_half_the_features(recipe, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # the mode watches one thread
    x, y = data()
    with Live(x) as live:
        fit_probes(ArrayFeatures(x), y, random_splits(SAMPLES, 2), n_classes=CLASSES, recipe=recipe, epochs=2)
    one = SAMPLES * WIDTH * 4
    assert one < live.most <= 0.5 * STATES * one


@pytest.mark.parametrize(("threads", "memory"), [(1, None), (4, None), (2, 10**6), (64, None), (2, 1)])
@pytest.mark.parametrize("recipe", ["paper", "robust"])
def test_groups_and_workers_fit_the_budget(threads, memory, recipe, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    x, y = data()
    splits = random_splits(SAMPLES, 2)
    plan = plan_rows(splits, np.stack([y, y]), max_rows=100, device=torch.device("cpu"), dtype=torch.float32)
    common = {"n_classes": CLASSES, "recipe": recipe, "split": False}
    groups = plan_groups(ArrayFeatures(x), plan, device=torch.device("cpu"), memory=memory, **common)
    one = state_bytes(ArrayFeatures(x), plan, **common)
    budget = 0.4 * x.numel() * 4 if memory is None else memory
    assert 1 <= groups.workers <= threads
    assert groups.size * groups.workers * one <= budget or groups == (1, 1)
