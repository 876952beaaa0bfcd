"""The fleet file's section for files and batches, and where the items of batches are kept."""

from holdfast.config.batch.batch_section import BatchSection
from holdfast.config.batch.queue_store import QueueStoreSection

__all__ = ["BatchSection", "QueueStoreSection"]
