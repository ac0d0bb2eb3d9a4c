"""flash-linear-attention beside repflow: its kernels stay off the CPU, its Mamba-2 stays out of ours.

In processes of their own: it changes transformers' registry for good when it is imported.
"""

import pytest

from repflow.models.transformers_own import config_class, is_displaced
from tests import warm
from tests.models.tiny_configs import CONFIGS

pytest.importorskip("fla")


DELTA_RULE = """
import sys
if {hidden}: sys.modules["fla"] = None
import torch
from tests.models.tiny_configs import tiny_model
from repflow.models import load
states = []
load(tiny_model("qwen3_next")).stream(
    torch.arange(20)[None] % 128, on_state=lambda i, h: states.append(h.double().sum().item())
)
print("fla" in sys.modules and sys.modules["fla"] is not None)
print(*states)
# transformers imports flash-linear-attention with the delta rule, and with it comes the other Mamba-2
print(type(load("zoo:mamba2").network).__module__)
"""
IMPORTED_FIRST = """
import fla
import repflow
from repflow.core.errors import UnsupportedModelError
for init in ("trained", "default"):
    model = repflow.load("zoo:mamba2", init=init)
    print(type(model.network).__module__, model.model_type)
print(repflow.measure(model, ["The cat sat on the mat."])["token_similarity"].shape[0])
config = fla.models.GLAConfig(hidden_size=32, num_hidden_layers=2, num_heads=2, vocab_size=64)
try:
    repflow.load(fla.models.GLAForCausalLM(config), device="cpu")
except UnsupportedModelError as error:
    print(error)
"""


def test_a_delta_rule_model_runs_its_torch_forms_on_a_cpu(tmp_path):
    """Its states are those of a process in which there is no flash-linear-attention."""
    said = [warm.printed(DELTA_RULE.format(hidden=hidden), cwd=tmp_path)[-3:] for hidden in (0, 1)]
    (beside, ours, mamba2), (alone, theirs, _) = said
    assert (beside, alone) == ("True", "False")
    assert ours == theirs
    assert mamba2 == "transformers.models.mamba2.modeling_mamba2"


def test_the_zoo_is_transformers_after_importing_fla(tmp_path):
    """And a live model of its kernels is refused for what it lacks, a GPU."""
    trained, random, states, refusal = warm.printed(IMPORTED_FIRST, cwd=tmp_path)[-4:]
    assert trained == random == "transformers.models.mamba2.modeling_mamba2 mamba2"
    assert states == "17"
    assert refusal.endswith("its layers are Triton kernels, which do not run on cpu: load it on a GPU")


@pytest.mark.parametrize("model_type", CONFIGS)
def test_configurations_are_transformers_own(model_type):
    assert config_class(model_type).__module__.startswith("transformers.models.")


def test_what_another_package_puts_in_place_is_seen(monkeypatch):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    class OtherConfig(config_class("mamba2")):
        pass

    assert not is_displaced("no_such_type")
    monkeypatch.setitem(CONFIG_MAPPING._extra_content, "mamba2", OtherConfig)
    assert is_displaced("mamba2")
    assert config_class("mamba2") is not OtherConfig
