"""Recency: how far back does a token reach?"""

from repflow.moved import successor

__getattr__ = successor("repflow.studies.recency", "repflow.studies.recency.study")
