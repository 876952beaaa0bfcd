"""``holdfast queue``: the items of durable queues, their dead letters, and what to do with them."""

from holdfast.cli.queues.commands import queue

__all__ = ["queue"]
