"""Models: an adapter over transformers' decoders that checks itself, and everything that turns a spec into one."""

from repflow.models.conformance import ModelReport, check_model
from repflow.models.devices import probe_dtype, probe_dtypes
from repflow.models.load import load, twin
from repflow.models.pretrained import Model
from repflow.models.recurrence.quantities import SsmQuantities, ssm_quantities
from repflow.models.repair import RepairedStates, from_hidden_states
from repflow.models.stack.network import StackConfig, StackForCausalLM, StackForSequenceClassification, StackModel
from repflow.models.weights.nonfinite import NonFinite

__all__ = [
    "Model",
    "ModelReport",
    "NonFinite",
    "RepairedStates",
    "SsmQuantities",
    "StackConfig",
    "StackForCausalLM",
    "StackForSequenceClassification",
    "StackModel",
    "check_model",
    "from_hidden_states",
    "load",
    "probe_dtype",
    "probe_dtypes",
    "ssm_quantities",
    "twin",
]
