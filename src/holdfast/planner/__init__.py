"""Plans a fleet: spares, memory, replicas, cold starts and how a model is divided.

The mathematics is in ``core.plan``; here it becomes answers that a person can check, with the
calculation beside them. ``PLANS`` has one entry for each plan, and the command, the admin port
and the page all ask through it.
"""

from collections.abc import Mapping
from typing import Final

from holdfast.planner.capacity.plan import CAPACITY
from holdfast.planner.coldstart_plan import COLDSTART
from holdfast.planner.memory_plan import MEMORY
from holdfast.planner.parallelism_plan import PARALLELISM
from holdfast.planner.question import PlanKind
from holdfast.planner.redundancy_answer import REDUNDANCY
from holdfast.planner.redundancy_plan import RedundancyPlan, redundancy

PLANS: Final[Mapping[str, PlanKind]] = {
    kind.name: kind for kind in (REDUNDANCY, MEMORY, CAPACITY, COLDSTART, PARALLELISM)
}

__all__ = ["PLANS", "RedundancyPlan", "redundancy"]
