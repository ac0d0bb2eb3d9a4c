"""The digest of weights: its definition word by word, what it must see, and the same value in every form.

The GPU's form is run by tests/mixers/triton_scan_checks.py and compiled by compile_checks.py beside it.
"""

import hashlib
import random

import numpy as np
import pytest
import torch

from repflow.models.weights.blocks import BLOCK, KEYS, WORDS
from repflow.models.weights.digest import SCHEME, block_sums, sha256, weights_digest

MASK = (1 << 64) - 1
DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


def of(*tensors, also="", names="abcdefgh"):
    return weights_digest(list(zip(names, tensors, strict=False)), also)


def plain_sums(data):
    """The definition, in Python's own integers."""
    rows = []
    for start in range(0, len(data), BLOCK):
        block = data[start : start + BLOCK]
        first = second = 0
        for place in range(-(-len(block) // 8)):
            word = int.from_bytes(block[8 * place : 8 * place + 8].ljust(8, b"\0"), "little")
            a, b, c = (int(key) for key in KEYS[:, place])
            x = a * word & MASK
            mixed = x ^ (x >> 32)
            first, second = first + b * mixed & MASK, second + c * mixed & MASK
        rows.append([first, second])
    return np.array(rows, np.uint64).reshape(-1, 2)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000, BLOCK - 3, BLOCK, BLOCK + 1, 2 * BLOCK + 4])
def test_the_sums_are_their_definition(size):
    data = random.Random(size).randbytes(size)
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
    assert np.array_equal(block_sums([tensor])[0], plain_sums(data))


def test_the_keys_are_odd_and_differ():
    assert (KEYS % 2 == 1).all()
    assert len(np.unique(KEYS)) == 3 * WORDS


def test_every_flipped_bit_is_seen():
    """Every bit of a small tensor; and in a large one bits at the ends of words and blocks and at random."""
    small = torch.randn(5, 3)
    seen = {of(small)}
    for bit in range(small.numel() * 32):
        changed = small.clone()
        changed.view(-1).view(torch.uint8)[bit // 8] ^= 1 << (bit % 8)
        seen.add(of(changed))
    assert len(seen) == 1 + small.numel() * 32
    large = torch.randn(3 * BLOCK // 4 + 1)
    before, flat = of(large), large.view(torch.uint8)
    bits = [0, 63, 64, 8 * BLOCK - 1, 8 * BLOCK, 8 * len(flat) - 1, *random.Random(0).sample(range(8 * len(flat)), 60)]
    for bit in bits:
        flat[bit // 8] ^= 1 << (bit % 8)
        assert of(large) != before, bit
        flat[bit // 8] ^= 1 << (bit % 8)
    assert of(large) == before


def test_pairs_of_flipped_sign_bits_are_seen():
    """The weak spot of plain sums of products: 2^63 times an odd key is 2^63, so two such changes would cancel."""
    weights = torch.randn(256, dtype=torch.float64)
    seen = {of(weights)}
    for i in range(0, 256, 5):
        for j in range(i + 1, 256, 7):
            changed = weights.clone()
            changed[[i, j]] *= -1
            seen.add(of(changed))
    assert len(seen) == 1 + sum(len(range(i + 1, 256, 7)) for i in range(0, 256, 5))
    assert of(-weights) not in seen


def test_what_else_is_seen():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 64, generator=generator) for _ in range(2))
    changes = {
        "as it is": of(a, b),
        "renamed": of(a, b, names="ac"),
        "swapped": of(b, a),
        "transposed": of(a.t(), b),
        "another shape": of(a.reshape(32, 128), b),
        "a dtype with the same bytes": of(a.view(torch.int32), b),
        "another dtype": of(a.double(), b),
        "rows swapped": of(a.flip(0), b),
        "one tensor less": of(a),
        "an empty one more": of(a, b, torch.empty(0)),
        "an empty one of another shape": of(a, b, torch.empty(0, 3)),
        "a byte more": of(a, b, torch.zeros(1, dtype=torch.uint8)),
        "two zero bytes": of(a, b, torch.zeros(2, dtype=torch.uint8)),
        "something else said": of(a, b, also="norms"),
    }
    assert len(set(changes.values())) == len(changes)
    assert of(a, b) == weights_digest([("b", b), ("a", a)]), "the order of the tensors does not matter"
    one, other = weights_digest([("a|b", a)]), weights_digest([("a", a), ("b", a)])
    assert one != other


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_layout(dtype):
    size = 3 * 17
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (size * dtype.itemsize,), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(3, 17)
    assert np.array_equal(block_sums([tensor])[0], plain_sums(bytes(raw.tolist())))
    changed = raw.clone()
    changed[-1] ^= 1
    assert of(changed.view(dtype).reshape(3, 17)) != of(tensor)
    assert of(tensor.t().contiguous().t()) == of(tensor), "only values count, not how they lie in memory"
    wide = torch.stack([tensor, tensor], -1)
    assert of(wide[..., 0]) == of(tensor)
    assert of(tensor[0, 0]) != of(tensor[0, :1]), "a number is not a vector of one"


def test_threads_give_the_same(monkeypatch):
    weights = torch.randn(700 * BLOCK // 4 + 3)  # three tasks
    names = set()
    for threads in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        names.add(of(weights))
    assert len(names) == 1
    assert names.pop().endswith(f":{SCHEME}")


def test_the_digest_stays_what_it_is():
    """Stored runs hold it: another value for the same weights would refuse them all."""
    weights = torch.arange(40000, dtype=torch.float32)
    assert of(weights, torch.ones(3, dtype=torch.bfloat16), also="x") == (
        "888951ef7aad0844143676b1e2140eb59a1703e04ab9dd7e5a1cf5a92a90245b:blocks-2"
    )


def test_the_earlier_scheme_is_as_it_was():
    weights = torch.arange(6.0).reshape(2, 3)
    plain = hashlib.sha256(b"w|torch.float32|(2, 3)|" + weights.numpy().tobytes()).hexdigest()
    named = hashlib.sha256(b"ablations|norms|w|torch.float32|(2, 3)|" + weights.numpy().tobytes()).hexdigest()
    assert (sha256([("w", weights)]), sha256([("w", weights)], "norms")) == (plain, named)
