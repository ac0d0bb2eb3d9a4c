"""Figures of the page as files for a paper."""
