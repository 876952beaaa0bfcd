"""The table of all cause rules, in the order of the taxonomy.

    loading ─ process ─ answers ─ surroundings ─ GPUs ─ routing

The rows are grouped by what one has to understand to change them: how replicas load, how their
processes fail, what they answer, and what is around them. Only this table holds all of them; it is
refused at import if a cause is missing or if two explain each other.
"""

from typing import Final

from holdfast.core.diagnose.causes.answers import ANSWERS
from holdfast.core.diagnose.causes.gpus import GPUS
from holdfast.core.diagnose.causes.loading import LOADING
from holdfast.core.diagnose.causes.process import PROCESS
from holdfast.core.diagnose.causes.rule import CauseRule, closure
from holdfast.core.diagnose.causes.surroundings import ROUTING, SURROUNDINGS
from holdfast.core.failure import Cause

_ROWS: Final = {**LOADING, **PROCESS, **ANSWERS, **SURROUNDINGS, **GPUS, **ROUTING}

CAUSES: Final[dict[Cause, CauseRule]] = {cause: _ROWS[cause] for cause in Cause}
EXPLAINS: Final = closure(CAUSES)  # what follows from what, through others too

__all__ = ["CAUSES", "EXPLAINS"]
