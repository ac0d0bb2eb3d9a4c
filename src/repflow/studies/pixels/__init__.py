"""Pixels: classifiers trained on images as sequences, and what their answers depend on."""
