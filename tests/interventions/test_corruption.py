"""What stands in the place of a region: each replacement is what its name says, and depends on the seed alone."""

import itertools

import numpy as np
import pytest

from repflow.core.errors import InputError
from repflow.interventions.corruption import Sequences, fill, fill_ids
from repflow.spec.corruption import PIXELS, RANDOM_PAIR, TARGET, TEXT, Region

LABELS = np.arange(60) % 3
TOKENS = np.random.default_rng(0).integers(0, 256, (60, 20, 2)).astype(np.uint8)
TOKENS[:, :, 0] = np.arange(60)[:, None]  # the first channel names the image
IMAGES = Sequences(TOKENS, LABELS, 3)
REGION = Region(5, 12)


def drawn(kind, **options):
    return fill(IMAGES, REGION, kind, **{"seed": 0, "draw": 0, **options})


def donors(kind, **options):
    filled = np.round(255 * drawn(kind, **options)).astype(int)
    assert (filled[:, :, 0] == filled[:, :1, 0]).all()
    number = filled[:, 0, 0]
    assert (filled == TOKENS[number, 5:12]).all()  # the lender's own region
    return number


@pytest.mark.parametrize("kind", PIXELS)
def test_the_same_whenever_it_is_drawn(kind):
    assert drawn(kind).shape == (60, 7, 2)
    assert (drawn(kind) == drawn(kind)).all()
    if kind != "mean":
        for change in ({"seed": 1}, {"draw": 1}):
            assert (drawn(kind) != drawn(kind, **change)).any()


def test_every_region_has_draws_of_its_own():
    """The lenders of one region say nothing of those of another that starts or ends with it."""
    still = Sequences(np.broadcast_to(TOKENS[:, :1], TOKENS.shape), LABELS, 3)  # an image is the same at every token
    lent = [fill(still, Region(*ends), "other", seed=0, draw=0)[:, 0] for ends in ((5, 12), (5, 13), (4, 12))]
    for one, other in itertools.combinations(lent, 2):
        assert (one != other).any()


def test_lenders():
    everyone = np.arange(60)
    same, other = donors("same"), donors("other")
    assert (LABELS[same] == LABELS).all()
    assert (same != everyone).all()
    assert (LABELS[other] != LABELS).all()
    assert (LABELS[donors(TARGET, target=2)] == 2).all()
    assert (LABELS[donors(RANDOM_PAIR, target=2)] != 2).all()
    many = np.concatenate([donors("same", draw=draw) for draw in range(200)]).reshape(200, 60)
    counts = np.bincount(many[:, 0], minlength=60)
    assert set(np.flatnonzero(counts)) == set(range(3, 60, 3))  # all others of its class


def test_noise_has_the_spread_that_it_says():
    noise = np.concatenate([drawn("normal", draw=draw) for draw in range(30)]).reshape(-1, 2)
    own = np.concatenate([drawn("data", draw=draw) for draw in range(30)]).reshape(-1, 2)
    size = len(noise) ** -0.5
    assert np.abs(noise.mean(0)).max() < 5 * size
    assert np.abs(noise.std(0) - 1).max() < 5 * size
    flat = TOKENS.reshape(-1, 2) / 255
    assert np.abs(own.mean(0) - flat.mean(0)).max() < 5 * size * flat.std()
    assert np.abs(own.std(0) / flat.std(0) - 1).max() < 5 * size


def test_mean_and_shuffle():
    assert np.allclose(drawn("mean"), TOKENS[:, 5:12].mean(0) / 255)
    filled = np.round(255 * drawn("shuffle")).astype(int)
    assert (filled[:, :, 0] == np.arange(60)[:, None]).all()
    assert all(set(filled[n, :, 1]) <= set(TOKENS[n, :, 1]) for n in range(60))
    numbered = Sequences(np.broadcast_to(np.arange(20, dtype=np.uint8)[:, None], (60, 20, 1)), LABELS, 3)
    places = np.round(255 * fill(numbered, REGION, "shuffle", seed=0, draw=0)).astype(int)
    assert set(places.ravel()) == set(range(20))  # from all of the image, not from the region alone


def test_text():
    ids = np.arange(40).reshape(4, 10)
    for kind in ("random", "shuffle", "other"):
        filled = fill_ids(ids, Region(2, 6), kind, np.array([90, 91]), seed=0, draw=0)
        assert filled.shape == (4, 4)
        if kind == "random":
            assert set(filled.ravel()) == {90, 91}
        elif kind == "shuffle":
            assert (filled // 10 == np.arange(4)[:, None]).all()
        else:
            assert (filled % 10 == np.arange(2, 6)).all()
            assert (filled[:, 0] // 10 != np.arange(4)).all()


@pytest.mark.parametrize("kind", TEXT)
def test_text_is_drawn_again_for_every_seed_draw_and_region(kind):
    ids, vocabulary = np.arange(600).reshape(30, 20), np.arange(1000, 1100)

    def first(region=(2, 6), **options):
        """Of the first prompt, or whose tokens every prompt has: what a draw of the same numbers would repeat."""
        filled = fill_ids(ids, Region(*region), kind, vocabulary, **{"seed": 0, "draw": 0, **options})
        return (filled[:, 0] // 20 if kind == "other" else filled[0, :4]).tolist()

    assert first() == first()
    for other in (first(seed=1), first(draw=1), first((2, 7)), first((1, 5))):
        assert other != first()


def test_too_few_images():
    lone = Sequences(TOKENS[:4], np.array([0, 0, 1, 2]), 3)
    with pytest.raises(InputError, match="at least 2 images of every class"):
        fill(lone, REGION, "same", seed=0, draw=0)
    with pytest.raises(InputError, match="at least 2 classes"):
        fill(Sequences(TOKENS[:4], np.zeros(4, dtype=int), 3), REGION, "other", seed=0, draw=0)
    with pytest.raises(InputError, match="at least 2 prompts"):
        fill_ids(np.ones((1, 5), dtype=int), Region(0, 2), "other", np.arange(3), seed=0, draw=0)
