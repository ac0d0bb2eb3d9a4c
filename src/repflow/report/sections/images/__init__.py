"""Sections on classifiers of images."""
