"""Print every number that docs/pitfalls.md quotes. Random weights and random tokens only; about a minute on two cores.

Run `python docs/pitfall_numbers.py`. Each function is one pitfall and says its own shapes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
)

import repflow
from repflow import metrics
from repflow.models.transformers_own import config_class

SMALL: dict[str, object] = {"vocab_size": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
WIDE: dict[str, object] = {"hidden_size": 64, "num_hidden_layers": 4, **SMALL}
PADDED: dict[str, dict[str, object]] = {
    "gpt2": {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 64, **SMALL},
    "gpt_neo": {
        "hidden_size": 64,
        "num_layers": 4,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 2]],
        "window_size": 4,
        **SMALL,
    },
    "rwkv": {"attention_hidden_size": 64, **WIDE},
    "mamba": {"state_size": 8, **WIDE},
}


def tuple_numbers(network: PreTrainedModel, vocab: int) -> None:
    """Compare transformers' tuple with the true states, 4 prompts of 128 random tokens."""
    ids = torch.randint(0, vocab, (4, 128), generator=torch.Generator().manual_seed(0))
    model = repflow.load(network)
    true = repflow.states(model, ids).hidden
    wrong = repflow.states(model, ids, kind="hf-tuple").hidden
    for name in ("smoothness", "stability"):
        good, bad = (getattr(metrics, name)(hidden).mean().item() for hidden in (true, wrong))
        print(f"  {name}: true {good:.4f}, tuple {bad:.4f}, ratio {bad / good:.2f}")
    good, bad = (metrics.layer_cosine(hidden).mean((1, 2)) for hidden in (true, wrong))
    print(f"  layer cosine, first step: true {good[0]:.4f}, tuple {bad[0]:.4f}")
    print(f"  layer cosine, last step:  true {good[-1]:.4f}, tuple {bad[-1]:.4f}")


def left_padding() -> None:
    """Compare 12 real tokens alone with the same tokens behind 4 padding tokens and a mask."""
    for kind, options in PADDED.items():
        torch.manual_seed(0)
        network = AutoModelForCausalLM.from_config(config_class(kind)(**options)).eval()
        with torch.no_grad():
            for parameter in network.parameters():
                if parameter.ndim == 2:
                    parameter.mul_(4)  # at transformers' own spread of .02 every branch is almost silent
        ids = torch.randint(3, 128, (1, 12))
        mask = torch.ones(1, 12, dtype=torch.long)
        shifts = {}
        for side in ("left", "right"):
            pad, zero = torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 4, dtype=torch.long)
            order = (pad, ids) if side == "left" else (ids, pad)
            masks = (zero, mask) if side == "left" else (mask, zero)
            real = slice(4, None) if side == "left" else slice(None, 12)
            with torch.no_grad():
                alone = network.base_model(ids, use_cache=False).last_hidden_state
                taken = {"attention_mask": torch.cat(masks, 1)}
                padded = network.base_model(torch.cat(order, 1), use_cache=False, **taken).last_hidden_state
            shifts[side] = (padded[:, real] - alone).abs().max().item()
        left, right = shifts["left"], shifts["right"]
        print(f"  {kind}: largest change of a real token's last hidden state: {left:.2g} left, {right:.2g} right")


def biased_cka() -> None:
    """CKA of two independent Gaussian matrices."""
    generator = torch.Generator().manual_seed(0)
    for count, width in ((2048, 2560), (512, 768), (4096, 768)):
        x, y = (torch.randn(count, width, generator=generator) for _ in range(2))
        biased, unbiased = (float(metrics.linear_cka(x, y, unbiased=flag)) for flag in (False, True))
        print(f"  n = {count}, d = {width}: biased {biased:.3f}, unbiased {unbiased:+.4f}")


def one_sink() -> None:
    """CKA of independent states that share one massive token, 256 tokens, width 64."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(256, 64, generator=generator) for _ in range(2))
    for title in ("without", "with"):
        biased, unbiased = (float(metrics.linear_cka(x, y, unbiased=flag)) for flag in (False, True))
        share, _ = metrics.gram_share(x[None])
        print(f"  {title}: biased CKA {biased:.3f}, unbiased {unbiased:+.3f}, gram_share {share[0]:.3f}")
        x[0] *= 100
        y[0] *= 100
    print(f"  null sd of the unbiased form at n = 256: {(2 / (256 * 253)) ** 0.5:.4f}")


def common_direction() -> None:
    """Independent tokens plus one vector that every token of every prompt has; 4 prompts, 128 tokens, width 64."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, 4, 128, 64, generator=generator)
    shifted = hidden + 1.5 * torch.randn(64, generator=generator)
    for title, states in (("without", hidden), ("with", shifted)):
        plain = metrics.token_similarity(states).mean()
        excess = metrics.token_similarity_excess(states).mean()
        print(f"  {title}: token_similarity {plain:.3f}, excess {excess:+.4f}")
    own = hidden - hidden.mean(2, keepdim=True)
    print(f"  centred by its own mean: {metrics.token_similarity(own).mean():.5f}, -1/(n-1) = {-1 / 127:.5f}")
    alike = shifted - shifted.mean(2, keepdim=True)
    print(f"  the shifted one, centred by its own mean: {metrics.token_similarity(alike).mean():.5f}")


def half_precision() -> None:
    """Inter-token similarity of 4096 tokens, width 64, with sums kept in bfloat16; and float16's end."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, 4096, 64, generator=generator, dtype=torch.float64) + 0.1
    exact = metrics.token_similarity(hidden)[0].item()
    short = hidden[0].to(torch.bfloat16)
    unit = short / short.norm(dim=-1, keepdim=True)
    total = torch.zeros(64, dtype=torch.bfloat16)
    for row in unit:
        total = total + row
    value = ((total.square().sum() - 4096) / (4096 * 4095)).item()
    kept = metrics.token_similarity(hidden.to(torch.bfloat16))[0].item()
    print(f"  exact {exact:.5f}; bfloat16 states, float32 sums {kept:.5f}; bfloat16 sums {value:.5f}")
    print(f"  70,000 in float16: {torch.tensor(70_000.0).half().item()}")


def best_of_many() -> None:
    """Largest CKA over all 25 x 25 pairs of unrelated states, 64 tokens, width 32."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(25, 64, 32, generator=generator) for _ in range(2))
    both = metrics.cka_matrix(torch.cat([a, b]))[:25, 25:]
    print(f"  mean {both.mean():+.4f}, sd {both.std():.4f}, largest {both.max():.3f}")


def xlstm_gate() -> None:
    """What xLSTM's feed-forward layers add at default and at xavier initialisation; 4 layers, width 64."""
    config = config_class("xlstm")(num_heads=4, chunk_size=16, **WIDE)
    ids = torch.randint(0, 128, (1, 16), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config)
    for init in ("default", "xavier"):
        added = repflow.states(repflow.load(network, init=init), ids, kind="branch:mlp").hidden
        print(f"  {init}: largest |entry| that an FFN adds {added.abs().max():.3g}")


def rwkv_scale() -> None:
    """Norm of RWKV's last block with transformers' rescaling at inference and without; 4 layers, width 64."""
    torch.manual_seed(0)
    config = config_class("rwkv")(attention_hidden_size=64, rescale_every=2, **WIDE)
    network = AutoModelForCausalLM.from_config(config).eval()
    ids = torch.randint(0, 128, (1, 16), generator=torch.Generator().manual_seed(0))
    caught: list[Tensor] = []
    handle = network.base_model.blocks[-1].register_forward_hook(lambda _, __, out: caught.append(out[0].detach()))
    with torch.no_grad():
        network(ids, use_cache=False)
    handle.remove()
    true = repflow.states(network, ids).hidden[-1]
    print(f"  true norm over transformers' norm: {(true.norm() / caught[0].norm()).item():.3f}")


def main() -> None:
    """Run every pitfall."""
    torch.manual_seed(0)
    for width in (768, 192):
        print(f"hf tuple, random GPT-2 (12 layers, width {width})")
        tuple_numbers(GPT2LMHeadModel(GPT2Config(n_embd=width)), 50257)
    torch.manual_seed(0)
    print("hf tuple, random Mamba of the 130M shape (24 layers, width 768)")
    tuple_numbers(MambaForCausalLM(MambaConfig(num_hidden_layers=24)), 50280)
    for title, pitfall in {
        "left padding (4 layers, width 64, 12 tokens)": left_padding,
        "biased CKA of independent matrices": biased_cka,
        "one massive token": one_sink,
        "one common direction": common_direction,
        "half precision": half_precision,
        "best of many": best_of_many,
        "xLSTM's gate": xlstm_gate,
        "RWKV's rescaling": rwkv_scale,
    }.items():
        print(title)
        pitfall()


if __name__ == "__main__":
    main()
