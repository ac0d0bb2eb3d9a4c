"""Two tiny models of random weights, measured on the same random tokens: does depth make tokens alike?

Swap the two for `repflow.load("EleutherAI/pythia-70m")` or a folder of yours.
"""

import torch
from transformers import AutoModelForCausalLM, GPTNeoXConfig, Mamba2Config

import repflow

SHARED = {"vocab_size": 128, "hidden_size": 64}
CONFIGS = (
    GPTNeoXConfig(num_hidden_layers=4, num_attention_heads=4, intermediate_size=256, **SHARED),
    Mamba2Config(num_hidden_layers=8, num_heads=8, head_dim=16, state_size=16, n_groups=1, **SHARED),
)


def main():
    for config in CONFIGS:
        torch.manual_seed(0)
        network = AutoModelForCausalLM.from_config(config)
        result = repflow.measure(network, "random", init="xavier", length=64, samples=4, grid=4)
        band = result.band("token_similarity")
        first, last = band.mean[0], band.mean[-1]
        print(f"{config.model_type}: token similarity {first:.3f} at the embedding, {last:.3f} at the last block")
        print(f"  95 % band at the last block: {band.low[-1]:.3f} to {band.high[-1]:.3f}")
        print(f"  smoothness on the matched grid: {result.mean('matched/smoothness'):.3f}")


if __name__ == "__main__":
    main()
