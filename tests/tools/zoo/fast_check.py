"""Bamba's mixers on the Triton kernels against transformers' own: prints the number of swapped mixers and two errors.

Run with TRITON_INTERPRET=1, which Triton reads when it is imported.
"""

import json

import torch

from tools.zoo.fast import fast_forward
from tools.zoo.models import build

network = build("hybrid", "tiny", 1024, 64, 0).train()
ids = torch.randint(0, 1024, (2, 9), generator=torch.Generator().manual_seed(3))


def run():
    network.zero_grad()
    logits = network(ids, use_cache=False).logits
    logits.square().sum().backward()
    return logits.detach(), [parameter.grad.clone() for parameter in network.parameters()]


theirs = run()
with fast_forward(network) as names:
    ours = run()
away = [(mine - own).norm() / own.norm().clamp(min=1e-12) for mine, own in zip(ours[1], theirs[1], strict=True)]
print(json.dumps([len(names), float((ours[0] - theirs[0]).abs().max()), float(max(away))]))
