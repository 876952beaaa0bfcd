"""``holdfast plan``: spares, memory, replicas, cold starts, and how a model is divided."""

from holdfast.cli.plan.commands import plan

__all__ = ["plan"]
