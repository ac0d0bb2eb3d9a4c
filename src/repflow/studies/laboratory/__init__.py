"""Laboratories: studies that train a grid of models and look at each; `repflow recall` is one."""
