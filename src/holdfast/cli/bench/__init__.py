"""``holdfast bench``: load a gateway or an engine, and say how fast it is."""

from holdfast.cli.bench.commands import bench

__all__ = ["bench"]
