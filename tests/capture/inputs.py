"""Tiny loaded models and ragged prompts, made once."""

import functools

import numpy as np
import transformers

from repflow.models import load
from repflow.tasks import id_prompts
from tests.models.tiny_configs import VOCAB, tiny_model

transformers.logging.set_verbosity_error()

LENGTHS = (7, 21, 2, 13, 21, 5, 3, 17, 9)


@functools.cache
def model(kind="gpt_neox", dtype="float32"):
    """Shared, so never change it."""
    return load(tiny_model(kind), dtype=dtype)


def prompts(lengths=LENGTHS, seed=0, bos_id=None):
    """Random ids of these lengths; sample i depends on the seed and i."""
    rows = [np.random.default_rng([seed, i]).integers(3, VOCAB, n).tolist() for i, n in enumerate(lengths)]
    if bos_id is not None:
        for row in rows[::2]:
            row[0] = bos_id
    return id_prompts(rows, VOCAB, bos_id=bos_id)
