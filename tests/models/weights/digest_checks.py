"""The digest's GPU form, in Triton's interpreter against the CPU form, and compiled for sm_90 without a GPU.

`digest_checks.py run` needs TRITON_INTERPRET=1, `digest_checks.py compile` must not have it: Triton reads it when it is
imported. Prints a JSON object: check → None or what failed.
"""

import json
import sys

import numpy as np
import torch

from repflow.models.weights.block_sums import block_kernel, on_gpu
from repflow.models.weights.blocks import BLOCK, WORDS, on_cpu

SIZES = (1, 7, 8, 9, 4097, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 8, 3 * BLOCK + 13)


def run():
    data = torch.randint(0, 256, (5 * BLOCK,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    parts = [data[:size] for size in SIZES] + [data[3:100], data[8:77]]  # at an odd address, at a whole one
    sums, expected = on_gpu(parts), on_cpu([part.numpy() for part in parts])
    names = [*map(str, SIZES), "odd address", "offset"]
    return {n: None if np.array_equal(a, b) else f"{a} for {b}" for n, a, b in zip(names, sums, expected, strict=True)}


def compiled():
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    pointers = dict.fromkeys(("starts", "sizes", "keys", "sums"), "*i64")
    constants = {"WORDS": WORDS, "STEP": 1024}
    source = ASTSource(block_kernel, signature=pointers | dict.fromkeys(constants, "constexpr"), constexprs=constants)
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    return {"sm_90": None if binary.asm["cubin"] else "no code"}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run() if sys.argv[1] == "run" else compiled()))
