"""A training of a tiny GPT-2 with dropout in plain PyTorch, for the tests of `repflow.training.flow`."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

VOCABULARY = 32
PROMPTS = [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12], [3, 1, 4, 1, 5, 9]]


def tiny_gpt2(seed=0, layers=2, dropout=0.1):
    torch.manual_seed(seed)
    shape = {"n_embd": 16, "n_layer": layers, "n_head": 2, "vocab_size": VOCABULARY, "n_positions": 16}
    drops = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    return GPT2LMHeadModel(GPT2Config(**shape, **drops, bos_token_id=1, eos_token_id=2)).train()


def batches(count, seed=1, size=4, tokens=8):
    draws = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCABULARY, (size, tokens), generator=draws) for _ in range(count)]


def train(model, *, steps=6, accumulate=1, call=None, after=None, rate=1e-2, clip=None):
    """Losses of the steps; `call` is what computes (a wrapped model), `after` is called with each step."""
    call = model if call is None else call
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    torch.manual_seed(2)
    for step, ids in enumerate(batches(steps), start=1):
        optimiser.zero_grad()
        for part in ids.chunk(accumulate):
            loss = call(input_ids=part, labels=part, use_cache=False).loss / accumulate
            loss.backward()
            losses.append(loss.item())
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
        if after is not None:
            after(step)
    return losses


def weights(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def assert_equal_bits(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name
