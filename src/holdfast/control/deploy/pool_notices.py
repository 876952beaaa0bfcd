"""Tells operators once how the inference pool of a model fares: found, missing, empty, moved.

Each model has one sentence about its pool; a notice is made when the sentence changes. A pool that
was deleted and one that could never be read are so told apart from one that selects no pod.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from holdfast.config.fleet_file import FleetFile, ModelSection
from holdfast.core.messages import Notice
from holdfast.core.view.layers import Reading
from holdfast.core.view.pod_pools import choose_pool

WHAT: Final = "inference pool"
_STAY: Final = "replicas that it has stay, and no new one is taken"


@dataclass(slots=True, frozen=True)
class _Told:
    """How a model's pool was when it was last spoken of."""

    problem: str = ""  # why there is no pool to use
    place: str = ""  # the pool with its labels and ports
    empty: bool = False  # it has no pod
    ports: tuple[int, ...] = ()
    strangers: tuple[str, ...] = ()  # model names of the pool that the fleet file does not have


class PoolNotices:
    """Builds the notices about inference pools of models: found, missing, empty, port moved.

    Each is made once, when the state of a model's pool changes.
    """

    def __init__(self) -> None:
        self._served: frozenset[str] = frozenset()
        self._told: dict[str, _Told] = {}

    def follow(self, file: FleetFile) -> None:
        """Take the names of models and virtual models from a new fleet file.

        What was told of removed models is forgotten.
        """
        named = [one.name for one in file.models]
        self._served = frozenset([*named, *(one.name for one in file.virtual_models)])
        self._told = {name: told for name, told in self._told.items() if name in named}

    def changes(self, model: ModelSection, reading: Reading, replicas: int) -> Iterator[Notice]:
        """Yield the notices that a new reading gives reason for; none where nothing changed.

        ``replicas`` is how many were found in the pool. Models without an inference pool have none.
        """
        rule = model.discover
        if rule is None or not rule.inference_pool:
            return
        choice = choose_pool(reading.pools, rule.inference_pool, rule.namespace)
        before, now = self._told.get(model.name, _Told()), time.monotonic_ns()
        if choice.pool is None:
            if choice.problem and choice.problem != before.problem:
                told = f"{choice.problem}; {_STAY if replicas else 'no replica is found'}"
                yield Notice(now, model.name, "", WHAT, told)
                self._told[model.name] = _Told(choice.problem)
            return
        pool = choice.pool
        strangers = tuple(one for one in pool.models if one not in self._served)
        told_now = _Told("", pool.describe(), not replicas, pool.ports, strangers)
        self._told[model.name] = told_now
        if told_now.strangers and told_now.strangers != before.strangers:
            told = f"{pool.id} also serves {', '.join(strangers)}, which no model here is called"
            yield Notice(now, model.name, "", WHAT, told)
        if replace(told_now, strangers=()) == replace(before, strangers=()):
            return
        text = pool.describe()
        if before.ports and before.ports != pool.ports:
            was = ", ".join(map(str, before.ports))
            text = f"its replicas move from port {was}; {text}"
        told = f"{text}: there is no such pod" if not replicas else text
        yield Notice(now, model.name, "", WHAT, told)


__all__ = ["WHAT", "PoolNotices"]
