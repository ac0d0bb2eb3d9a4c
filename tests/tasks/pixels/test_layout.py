"""Orders of pixels: each a permutation of neighbours, patches and grey, and back again."""

import itertools

import numpy as np
import pytest
from PIL import Image

from repflow.core.errors import InputError
from repflow.tasks.pixels.layout import ORDERS, PixelLayout, grey_of, token_order

PICTURES = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("patch", [1, 2])
def test_a_sequence_is_the_image_in_another_order(order, patch):
    layout = PixelLayout(order, patch=patch)
    tokens = layout.sequence(PICTURES)
    assert tokens.shape == (3, layout.tokens((8, 8, 3)), layout.channels((8, 8, 3)))
    assert (layout.picture(tokens, (8, 8, 3)) == PICTURES).all()
    assert sorted(token_order(order, 8, 8)) == list(range(64))


def test_orders_by_hand():
    assert token_order("row", 2, 3).tolist() == [0, 1, 2, 3, 4, 5]
    assert token_order("snake", 3, 3).tolist() == [0, 1, 2, 5, 4, 3, 6, 7, 8]
    assert token_order("hilbert", 2, 2).tolist() == [0, 2, 3, 1]
    first = PixelLayout("column", patch=4).sequence(PICTURES)[0, 1]  # the patch below the first
    assert (first.reshape(4, 4, 3) == PICTURES[0, 4:, :4]).all()


@pytest.mark.parametrize("order", ["snake", "hilbert"])
@pytest.mark.parametrize("side", [2, 8, 16])
def test_snake_and_hilbert_go_from_neighbour_to_neighbour(order, side):
    places = [divmod(int(place), side) for place in token_order(order, side, side)]
    assert all(abs(a - c) + abs(b - d) == 1 for (a, b), (c, d) in itertools.pairwise(places))


def test_grey_is_what_pillow_calls_it():
    shown = np.stack([np.asarray(Image.fromarray(picture).convert("L")) for picture in PICTURES])
    assert np.abs(grey_of(PICTURES)[..., 0].astype(int) - shown).max() <= 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PixelLayout("spiral"), "expected an order of pixels among row, reversed"),
        (lambda: PixelLayout(patch=0), "patch of at least 1"),
        (lambda: PixelLayout(patch=3).tokens((8, 8, 3)), "sides that patches of 3 divide"),
        (lambda: PixelLayout("hilbert").places((6, 6, 3)), "a square of 2, 4, 8"),
        (lambda: PixelLayout("hilbert").places((4, 8, 3)), "a square of 2, 4, 8"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(InputError, match=words):
        make()
