"""Sections of the page, one module each."""
