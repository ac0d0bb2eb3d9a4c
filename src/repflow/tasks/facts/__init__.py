"""A built-in encyclopedia of made-up facts."""

from repflow.moved import successor

__getattr__ = successor("repflow.tasks.facts", "repflow.tasks.facts.articles")
