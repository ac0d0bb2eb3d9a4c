"""Corrupt and attack: what parts of a sequence a model's answer hangs on, and whether they can steer it."""
