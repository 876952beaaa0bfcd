"""Canaries: how they fail, how late they are, how fast their tokens come, whether they vary."""
