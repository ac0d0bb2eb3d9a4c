"""Mixers whose state is written by the delta rule: DeltaNet, Gated DeltaNet, KDA."""
