"""A metric of your own, measured beside the built-in ones.

On the command line: `repflow measure MODEL --metrics default,examples/own_metric.py:participation`.
"""

from transformers import GPT2Config, GPT2LMHeadModel

import repflow


def participation(hidden):
    """Channels that carry the energy: (Σ e)² / Σ e², e the energy of a channel. hidden: (state, token, width)."""
    energy = hidden.square().sum(1)
    return energy.sum(-1).square() / energy.square().sum(-1)


def main():
    repflow.register_metric(participation, axes=("state",))
    network = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_embd=32, n_layer=4, n_head=4, n_positions=64))
    result = repflow.measure(network, "random", metrics=["participation", "token_similarity"], length=32, samples=4)
    for state, value in enumerate(result.mean("participation")):
        print(f"state {state}: {value:.1f} of 32 channels")


if __name__ == "__main__":
    main()
