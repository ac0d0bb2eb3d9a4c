"""Tiny trainings that take a fraction of a second, for the tests of `repflow.training`."""

import torch

from repflow.models import StackConfig, StackForCausalLM, StackForSequenceClassification
from repflow.training import Batch, DrawnBatches, OptimiserConfig, Schedule, TrainingConfig

VOCABULARY = 13


def network(seed=0, **options):
    torch.manual_seed(seed)
    chosen = {"mixers": ["s6", "softmax_attention"], "hidden_size": 8, "vocab_size": VOCABULARY, **options}
    return StackForCausalLM(StackConfig(**chosen))


def classifier(seed=0):
    torch.manual_seed(seed)
    config = StackConfig("ssd", num_hidden_layers=1, hidden_size=8, input_channels=3, num_labels=4)
    return StackForSequenceClassification(config)


def copies(draws):
    """Rows (4, 6) whose second half repeats the first."""
    half = torch.randint(0, VOCABULARY, (4, 3), generator=draws)
    return Batch(torch.cat([half, half], 1))


def source(seed=0, draw=copies):
    return DrawnBatches(draw, seed=seed)


def config(**options):
    chosen = {
        "steps": 12,
        "device": "cpu",
        "optimiser": OptimiserConfig(rate=1e-2),
        "schedule": Schedule("cosine", warmup=2, final=0.1),
        "log_every": 4,
        "checkpoint_every": 5,
        "evaluate": 6,
        **options,
    }
    return TrainingConfig(**chosen)


def weights(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def assert_equal_bits(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def without_clock(log):
    return [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in log]
