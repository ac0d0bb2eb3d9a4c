"""Corrupt and attack: what parts of a sequence a model's answer depends on, and whether they can steer it."""
