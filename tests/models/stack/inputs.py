"""Small stacks for tests here and elsewhere."""

import torch

from repflow.models.stack.network import StackConfig, StackForCausalLM

OPTIONS = {"s6": {"state": 4}, "ssd": {"state": 4, "head_dim": 8}, "s4d": {"state": 8}, "h3": {"state": 8}}
HYBRID = ["ssd", "s6", "softmax_attention", "rwkv5", "gla", "softmax_attention"]


def entry(name):
    return {"name": name, **OPTIONS.get(name, {})}


def stack(mixers, *, seed=0, spread=3.0, **options):
    """Random stack of width 16; matrices scaled so that every branch matters."""
    options = {"hidden_size": 16, "vocab_size": 64, **options}
    config = StackConfig(mixers=[entry(name) for name in mixers], **options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = StackForCausalLM(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("weight") and parameter.ndim == 2:
                    parameter.mul_(spread)
    return model.eval()


def ids(batch=3, tokens=20, seed=0):
    return torch.randint(0, 64, (batch, tokens), generator=torch.Generator().manual_seed(seed))
