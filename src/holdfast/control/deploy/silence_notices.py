"""Tells operators and the investigation, once each, that a launched replica fell silent or spoke.

Restarts nothing: whether a silent replica is to be replaced is for its canaries to say.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from holdfast.control.deploy.launched_replica import LaunchedReplica
from holdfast.core.diagnose.detect.silence import SERVING, Heartbeat
from holdfast.core.diagnose.facts import Fact, FellSilent
from holdfast.core.failure import Class
from holdfast.core.messages import Notice
from holdfast.core.types import seconds


class SilencePort(Protocol):
    """The methods of control that ``SilenceNotices`` calls."""

    def note(self, notice: Notice) -> None:
        """Record a notice in the events that operators read."""

    def saw(self, fact: Fact) -> None:
        """Pass a fact to the investigation of failures."""


class SilenceNotices:
    """Remembers which launched replicas are silent, and tells what changes."""

    def __init__(self, host: SilencePort) -> None:
        self._host = host
        self._silent: set[str] = set()  # of whom that was told

    def look(
        self,
        units: Iterable[LaunchedReplica],
        heartbeats: Mapping[str, Heartbeat],
        running: Mapping[str, int | None],
        now: int,
    ) -> None:
        """Tell of each replica that is silent for too long, and of its return, once each.

        ``heartbeats``: of replicas whose process runs. ``running``: requests in flight by replica;
        None: unknown, nothing is concluded of one that serves.
        """
        for unit in units:
            beat = heartbeats.get(unit.id)
            silence = beat.silent(now, running.get(unit.id)) if beat is not None else None
            if silence is not None and unit.id not in self._silent:
                self._silent.add(unit.id)
                where = Class.RUNTIME if silence.phase == SERVING else Class.LOADING
                self._host.note(Notice(now, unit.model, unit.id, "silent", silence.reason, where))
                self._host.saw(FellSilent(unit.id, silence.phase, seconds(now - silence.since)))
            elif silence is None and unit.id in self._silent:
                self._silent.discard(unit.id)
                if beat is not None:
                    told = "it is no longer silent"
                    self._host.note(Notice(now, unit.model, unit.id, "heard again", told))

    def forget(self, replica_id: str) -> None:
        """Forget a replica that is gone."""
        self._silent.discard(replica_id)


__all__ = ["SilenceNotices", "SilencePort"]
