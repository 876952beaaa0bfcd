"""Converts between frames and the core's types."""

from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.core.failure import Kind
from holdfast.core.messages import (
    FleetView,
    LoadReported,
    ReplicaView,
    Report,
    Seen,
    Summary,
    Tally,
)
from holdfast.core.types import ConfigError, Halt, Replica, State
from holdfast.frames.kinds import (
    FrameError,
    LoadFrame,
    ReplicaViewRow,
    ReportRow,
    SeenFrame,
    TallyRow,
    ViewFrame,
)


def view_to_frame(view: FleetView) -> ViewFrame:
    """Convert a fleet view to its frame."""
    rows = []
    for seen in view.replicas:
        replica = seen.replica
        rows.append(
            ReplicaViewRow(
                replica.id,
                replica.model,
                replica.revision,
                replica.zone,
                replica.region,
                replica.slots,
                replica.weight,
                seen.state.value,
                seen.share,
                seen.firm,
                seen.reason,
                seen.halt or "",
                seen.canary_s,
                seen.ready_in_s,
                replica.host,
                seen.may_try,
            )
        )
    return ViewFrame(view.version, view.epoch, list(view.panic), rows)


def frame_to_view(frame: ViewFrame) -> FleetView:
    """Convert a frame to a fleet view; raises FrameError if a row is invalid."""
    try:
        replicas = tuple(_replica_view(row) for row in frame.replicas)
    except ConfigError as error:
        raise FrameError(f"view {frame.version} cannot be used: {error}") from error
    return FleetView(frame.version, replicas, tuple(frame.panic), frame.epoch)


def _replica_view(row: ReplicaViewRow) -> ReplicaView:
    state = _STATES.get(row.state)
    if state is None:
        raise ConfigError("replica.state", f"is {row.state!r}", "upgrade this gateway")
    declared = (row.id, row.model, row.revision, row.zone, row.region, row.slots, row.weight)
    replica = Replica(*declared, row.host)
    halt = _HALTS.get(row.halt)  # one that a later control knows is none to us
    told = (halt, row.canary_s, row.ready_in_s, row.may_try)
    return ReplicaView(replica, state, row.share, row.firm, row.reason, *told)


_STATES: Final = {state.value: state for state in State}
_HALTS: Final = {halt.value: halt for halt in Halt}


def loads_to_frame(loads: Iterable[LoadReported]) -> LoadFrame:
    """Convert load reports to their frame."""
    told = list(loads)
    return LoadFrame(
        [(one.model, one.replica_id, one.tokens, one.waiting, one.kv_used) for one in told],
        [(one.model, one.replica_id) for one in told if one.reads],
    )


def frame_to_loads(frame: LoadFrame) -> list[LoadReported]:
    """Convert a frame to load reports, each an event for the flow."""
    reading = set(frame.reading)
    return [LoadReported(*row, reads=row[:2] in reading) for row in frame.loads]


def seen_to_frame(
    actions: Iterable[Report | Summary],
    dropped: int = 0,
    died: Iterable[tuple[str, str]] = (),
    compared: Iterable[tuple[str, str, bool]] = (),
    died_ago_s: Iterable[float] = (),
) -> SeenFrame:
    """Convert a gateway's reports and summaries to a frame; summaries are merged into one."""
    reports: list[ReportRow] = []
    tallies: list[TallyRow] = []
    for action in actions:
        if isinstance(action, Report):
            reports.append(ReportRow(action.model, action.replica_id, action.what, action.reason))
        else:
            tallies.extend(_tally_row(tally) for tally in action.tallies)
    return SeenFrame(reports, tallies, dropped, list(died), list(compared), list(died_ago_s))


def _tally_row(tally: Tally) -> TallyRow:
    return TallyRow(
        tally.model,
        tally.replica_id,
        tally.successes,
        tally.failures,
        tally.backpressure,
        tally.inflight,
        tally.tokens,
        {kind.value: count for kind, count in tally.kinds.items()},
        tally.fast,
        dict(tally.finishes),
        list(tally.lengths),
        list(tally.logprobs),
        list(tally.norms),
        tally.moved,
        list(tally.waits),
        list(tally.firsts),
        list(tally.paces),
        tally.withdrawn,
        {name: list(values) for name, values in tally.scores.items()},
        tally.unread,
        tally.explained_s,
        tally.prompts,
    )


def _tally(row: TallyRow) -> Tally:
    kinds = {_KINDS[kind]: count for kind, count in row.kinds.items() if kind in _KINDS}
    samples = tuple(row.lengths), tuple(row.logprobs), tuple(row.norms)
    times = tuple(row.waits), tuple(row.firsts), tuple(row.paces)
    scores = {name: tuple(values) for name, values in row.scores.items()}
    counted = (row.fast, row.finishes, *samples, row.moved, *times, row.withdrawn, scores)
    waiting = row.unread, row.explained_s, row.prompts
    fields = (*msgspec.structs.astuple(row)[:7], kinds, *counted, *waiting)
    return Tally(*fields)


_KINDS: Final = {kind.value: kind for kind in Kind}  # one that a newer gateway knows is left out


def frame_to_seen(frame: SeenFrame, gateway: str) -> Seen:
    """Convert a frame to events for the fleet: the reports, then one summary if any.

    ``died`` and ``compared`` do not concern the fleet: diagnosis reads them from the frame.
    """
    actions: list[Report | Summary] = [
        Report(row.model, row.replica_id, row.what, row.reason) for row in frame.reports
    ]
    if frame.tallies:
        actions.append(Summary(tuple(map(_tally, frame.tallies))))
    return Seen(tuple(actions), gateway)


__all__ = [
    "frame_to_loads",
    "frame_to_seen",
    "frame_to_view",
    "loads_to_frame",
    "seen_to_frame",
    "view_to_frame",
]
