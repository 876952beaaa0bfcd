"""Holdfast: a serving layer for distributed inference that does not fail silently."""

__version__ = "0.1.0"
