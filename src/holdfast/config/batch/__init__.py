"""The fleet file's sections for batches, their store, and queues that others fill."""

from holdfast.config.batch.batch_section import BatchSection
from holdfast.config.batch.consumers import CONSUMERS_MAX, ConsumerSection
from holdfast.config.batch.queue_store import QueueStoreSection

__all__ = ["CONSUMERS_MAX", "BatchSection", "ConsumerSection", "QueueStoreSection"]
