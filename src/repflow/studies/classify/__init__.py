"""Classify: grids of classifiers of texts, in folds of which each is tested once."""
