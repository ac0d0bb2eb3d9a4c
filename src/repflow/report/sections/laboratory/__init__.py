"""Sections of grids of trained models: a module per laboratory, and the figures that they share."""
