"""A stack goes through probing, greedy answers, and the logit lens as other models do."""

import numpy as np
import pytest
import torch

import repflow
from repflow.models import StackConfig, StackForCausalLM
from tests.models.stack.inputs import entry
from tests.studies.probe.inputs import KVPR, tokenizer


@pytest.mark.parametrize("mixers", [["s6", "softmax_attention", "rwkv4"]], ids=["hybrid"])
def test_probe_takes_a_stack(mixers, tmp_path):
    torch.manual_seed(0)
    config = StackConfig([entry(name) for name in mixers], hidden_size=32, vocab_size=len(tokenizer()))
    StackForCausalLM(config).save_pretrained(tmp_path / "stack")
    tokenizer().save_pretrained(tmp_path / "stack")
    result = repflow.probe(repflow.load(tmp_path / "stack"), "kvpr", **{**KVPR, "answers": 2, "answer_tokens": 2})
    assert result["probe_accuracy"].shape == (4, 2)
    assert np.isfinite(result["probe_accuracy"]).all()
    assert result["lens_rank"].shape[0] == 4
    assert {"answer_correct", "probe_selectivity"} <= set(result)
