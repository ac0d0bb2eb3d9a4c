"""Made-up features whose readability is known."""

import numpy as np

from repflow.probes import Split


def class_means(strengths, *, samples=300, width=12, classes=3, seed=0, scales=None):
    """Features (state, sample, width): noise plus a class mean of given strength per state, and balanced labels."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(samples) % classes)
    means = rng.standard_normal((classes, width))
    noise = rng.standard_normal((len(strengths), samples, width))
    features = noise + np.asarray(strengths)[:, None, None] * means[labels]
    if scales is not None:
        features *= np.asarray(scales)[:, None, None]
    return features, labels


def random_splits(samples, seeds, *, seed=0, fractions=(0.6, 0.2)):
    """Splits without any balancing, from numpy alone."""
    out = []
    for k in range(seeds):
        order = np.random.default_rng([seed, k]).permutation(samples)
        cuts = np.cumsum([round(samples * f) for f in fractions])
        out.append(Split(*(np.sort(part) for part in np.split(order, cuts))))
    return out
