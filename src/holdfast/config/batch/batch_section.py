"""The section of the fleet file for files and batches."""

from typing import Annotated

from pydantic import Field

from holdfast.config.batch.queue_store import QueueStoreSection
from holdfast.config.sections import Policy, Section
from holdfast.core.batch.limits import BatchLimits
from holdfast.core.batch.spare_capacity import SpareCapacityConfig
from holdfast.core.batch.verdicts import ItemPolicyConfig


class BatchSection(Section):
    """Whether files and batches are served, their bounds, and how they run beside people."""

    enabled: Annotated[bool, Field(description="true or false; read when 'serve' starts")] = False
    store: QueueStoreSection = QueueStoreSection()
    limits: Annotated[BatchLimits, Policy()] = BatchLimits()
    pace: Annotated[SpareCapacityConfig, Policy()] = SpareCapacityConfig()
    items: Annotated[ItemPolicyConfig, Policy()] = ItemPolicyConfig()


__all__ = ["BatchSection"]
