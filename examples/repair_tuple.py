"""States that someone saved with `output_hidden_states=True`: put them where they belong before comparing models.

transformers' tuple lacks the raw last block in most models and the embedding in Mamba; its last entry is normed.
"""

import torch
from transformers import MambaConfig, MambaForCausalLM

import repflow


def main():
    torch.manual_seed(0)
    network = MambaForCausalLM(MambaConfig(vocab_size=128, hidden_size=32, num_hidden_layers=4, state_size=8)).eval()
    ids = torch.randint(0, 128, (2, 16))
    with torch.no_grad():
        saved = network(ids, output_hidden_states=True).hidden_states

    repaired = repflow.from_hidden_states(saved, model_type="mamba")
    print(f"states missing from the tuple: {repaired.missing}")
    true = repflow.states(repflow.load(network), ids).hidden
    for title, states in {"the tuple as it is": torch.stack(saved), "the true states": true}.items():
        cosine = repflow.metrics.layer_cosine(states).mean((1, 2))
        print(f"layer cosine of {title}: {[round(value, 3) for value in cosine.tolist()]}")
    worst = (repaired.hidden[1:] - true[1:]).abs().max().item()
    print(f"largest difference of the repaired states that are there: {worst:.1e}")


if __name__ == "__main__":
    main()
