"""What a command leaves for later while it imports transformers."""

import subprocess
import sys

from repflow.cli.deferred import deferred

CHECK = """
import sys
from repflow.cli.console import import_torch

import_torch()
unwanted = ("scipy.optimize", "scipy.stats", "pandas", "sklearn", "plotly", "fla", "matplotlib", "xarray")
print([name for name in unwanted if name in sys.modules])
from transformers.loss import loss_for_object_detection as losses
from scipy.optimize import linear_sum_assignment

cost = [[4, 1, 3], [2, 0, 5], [3, 2, 2]]
ours, theirs = losses.linear_sum_assignment(cost), linear_sum_assignment(cost)
print([part.tolist() for part in ours] == [part.tolist() for part in theirs])
"""


def test_a_command_imports_no_optimiser_tables_or_drawing():
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "True"]


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
