import json

from hypothesis import given
from hypothesis import strategies as st

from repflow.store.canonical import seal, unseal
from repflow.store.manifest import decode, encode

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text().filter(lambda key: key != "sum"), values, max_size=4), st.sampled_from([None, 2]))
def test_sealed_values_come_back(value, indent):
    raw = seal(value, indent=indent)
    assert unseal(raw, indent=indent) == value
    assert json.loads(raw)["sum"]


def test_every_single_bit_of_a_line_counts():
    line = encode(3, "shard", {"name": "é\u2028", "bytes": 10, "sha256": "ab" * 32, "meta": {"x": 1.5, "t": True}})
    assert decode(line).data["name"] == "é\u2028"
    for position in range(len(line)):
        for bit in range(8):
            flipped = bytearray(line)
            flipped[position] ^= 1 << bit
            assert decode(bytes(flipped)) is None


def test_other_spellings_of_the_same_value_are_damage():
    raw = seal({"a": "é"})
    assert unseal(raw.replace(b"\\u00e9", b"\\u00E9")) is None
    assert unseal(raw.replace(b":", b": ")) is None
    assert unseal(b'{"a":NaN}\n') is None
    assert unseal(b"[1]\n") is None
    assert unseal(b"[" * 100_000) is None
