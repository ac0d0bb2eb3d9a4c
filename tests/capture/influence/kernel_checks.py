"""Influence through whole blocks on the Triton kernels against transformers' own layers, in a process of its own.

Run with TRITON_INTERPRET=1, which lets the kernels take CPU tensors. Prints a JSON object: check → None or what failed.
"""

import json
import sys
import traceback
import warnings
from contextlib import nullcontext

import numpy as np
import torch
from transformers import AutoModelForCausalLM

import repflow
from repflow.capture.influence.jacobian import FINAL, fast_layers, influence_squares
from repflow.mixers.triton import ssd as triton_ssd
from repflow.models.transformers_own import config_class
from tests.interpreter import patch_once

triton_ssd.TRAINING = triton_ssd.TILES = triton_ssd.Tiles(chunk=16, rows=16)
IDS = torch.tensor([[5, 3, 8, 1]])


SIZES = {
    "mamba": {"hidden_size": 16, "num_hidden_layers": 1, "state_size": 4, "expand": 1},
    "mamba2": {
        "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4, "num_heads": 2, "head_dim": 8, "n_groups": 1,
        "chunk_size": 8, "expand": 1,
    },
}  # fmt: skip


def load(model_type, scan):
    """One layer of full-grown weights: the interpreter takes seconds for each."""
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        network = AutoModelForCausalLM.from_config(
            config_class(model_type)(vocab_size=16, pad_token_id=0, **SIZES[model_type])
        )
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.mul_(4.0 if name.endswith("proj.weight") else 1.0)
        return repflow.load(network, scan=scan)


def agree(model_type):
    model, plain = load(model_type, "auto"), load(model_type, "reference")
    assert not isinstance(fast_layers(model), nullcontext)
    assert isinstance(fast_layers(plain), nullcontext)
    # two probes: the graph is used more than once, and what the kernels kept must still be there
    ours, theirs = (influence_squares(m, IDS, None, at=[3], probes=2)[FINAL].mean for m in (model, plain))
    off = float(np.abs(np.sqrt(ours) - np.sqrt(theirs)).max() / np.sqrt(theirs).max())
    assert off < 1e-3, f"{off:.1e}"
    assert (theirs[0, 0, :3] > 1e-6 * theirs[0, 0, 3]).all()  # the scan's own part is seen
    assert not any("forward" in module.__dict__ for module in model.network.modules())


def check_mamba():
    agree("mamba")


def check_mamba2():
    agree("mamba2")


def main():
    patch_once()
    errors = {}
    for name, check in list(globals().items()):
        if name.startswith("check_m"):
            try:
                check()
                errors[name] = None
            except Exception:  # noqa: BLE001  reported by the test
                errors[name] = traceback.format_exc()
    json.dump(errors, sys.stdout)


if __name__ == "__main__":
    main()
