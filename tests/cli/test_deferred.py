"""What a command leaves for later while it imports transformers, and what a measurement never loads."""

import json
import subprocess
import sys

from repflow.cli.deferred import deferred

CHECK = """
import json, sys
from repflow.cli.console import import_torch

import_torch()
unwanted = ("scipy.optimize", "scipy.stats", "pandas", "sklearn", "plotly", "fla", "matplotlib", "xarray")
print(json.dumps([name for name in unwanted if name in sys.modules]))

import transformers.modeling_utils, transformers.models.auto.modeling_auto, transformers.generation
before = set(sys.modules)
import torch, repflow
from transformers import GPT2Config, GPT2LMHeadModel
network = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=16, n_positions=16))
repflow.measure(network, torch.arange(8)[None])
new = set(sys.modules) - before
others = {"pandas", "plotly", "matplotlib", "xarray", "ray", "zarr", "sklearn"}
models = {name.split(".")[2] for name in new if name.startswith("transformers.models.") and ".modeling_" in name}
print(json.dumps([sorted(new & others), sorted(models)]))

from transformers.loss import loss_for_object_detection as losses
from scipy.optimize import linear_sum_assignment

cost = [[4, 1, 3], [2, 0, 5], [3, 2, 2]]
ours, theirs = losses.linear_sum_assignment(cost), linear_sum_assignment(cost)
print(json.dumps([part.tolist() for part in ours] == [part.tolist() for part in theirs]))
"""


def test_commands_and_measurements_load_nothing_that_they_do_not_use():
    """No optimiser, tables or drawing; of the modeling files of transformers that of the one model, and no others."""
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=True)
    early, measured, same = map(json.loads, done.stdout.splitlines())
    assert early == []
    assert measured == [[], ["gpt2"]]
    assert same


def forget(monkeypatch, name):
    if name in sys.modules:
        monkeypatch.delitem(sys.modules, name)


def test_other_names_bring_in_the_real_module(monkeypatch):
    forget(monkeypatch, "colorsys")
    with deferred("colorsys", "rgb_to_hsv"):
        from colorsys import rgb_to_hsv

        assert not hasattr(sys.modules["colorsys"], "__file__")
        from colorsys import hsv_to_rgb

        assert sys.modules["colorsys"].__file__
    assert hsv_to_rgb(*rgb_to_hsv(0.2, 0.4, 0.6)) == (0.2, 0.4, 0.6)
    assert sys.modules["colorsys"].hsv_to_rgb is hsv_to_rgb


def test_the_stand_in_is_gone_after_the_block(monkeypatch):
    forget(monkeypatch, "colorsys")
    with deferred("colorsys", "rgb_to_hsv"):
        pass
    assert "colorsys" not in sys.modules
    import colorsys

    with deferred("colorsys", "rgb_to_hsv"):
        assert sys.modules["colorsys"] is colorsys
