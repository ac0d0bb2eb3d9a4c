"""Weights: read from files, drawn at random, checked."""
