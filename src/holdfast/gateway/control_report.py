"""What a gateway reports to control: figures where they move, evidence, answers to questions.

Figures are counters (once a second), gauges, readiness, demand and the trials that breakers wish
for. Evidence is what no figure holds: requests on which replicas died, compared answers, traces.
Nothing waits for control: what it must not miss is kept while it is away, the latest of it only.
"""

from collections.abc import Mapping
from time import monotonic_ns, time
from typing import Final

import msgspec

from holdfast.core.health.control_silence import ControlSilence
from holdfast.core.intake.descriptors import OwnResource
from holdfast.core.intake.shortages import Shortages
from holdfast.core.types import SECOND, seconds
from holdfast.frames import (
    ExplainAnswer,
    ExplainAsk,
    MetricsAnswer,
    MetricsAsk,
    StatsFrame,
    TracesFrame,
    seen_to_frame,
)
from holdfast.frames.control_links import ControlLinks
from holdfast.gateway.http.client_port import ClientPort
from holdfast.gateway.http.server import Server
from holdfast.gateway.request.request_driver import RequestDriver

_COUNTERS: Final = SECOND


class ControlReport:
    """Sends the figures and the evidence of one gateway process to control.

    Keeps what control has not heard yet of the uses of keys.
    """

    def __init__(
        self,
        link: ControlLinks,
        silence: ControlSilence,
        shortages: Shortages,
        descriptors: int,
    ) -> None:
        self._link = link
        self._silence = silence
        self._shortages = shortages
        self._descriptors = descriptors  # the limit on open files; 0: not known
        self._counters_at = 0
        # When each key of the config let somebody in last, of what control has not heard yet.
        self._key_uses: dict[tuple[str, str], int] = {}

    def tell_stats(
        self,
        driver: RequestDriver,
        server: Server,
        port: ClientPort | None,
        missing: Mapping[OwnResource, int],
        now: int,
    ) -> None:
        """Send the figures of now, where they moved or are due; ``now`` in ns.

        ``missing``: what this process lacked since the last call, by resource.
        """
        counters: dict[str, int | float] = {}
        due = now >= self._counters_at
        if due:
            self._counters_at = now + _COUNTERS
            counters = self._counters(driver, server, port)
            self.note_key_uses(driver)
        wanted, trying = driver.trials(now)
        demand = driver.port.take_demand()
        moved = driver.look_at_demand(now, due=due)
        if not (moved or wanted or trying or demand or missing):
            return
        ready, reason = driver.readiness.ready()
        frame = StatsFrame(
            counters,
            _gauges(driver, server),
            ready,
            "" if ready else reason,
            demand,
            wanted,
            trying,
            {str(resource): count for resource, count in missing.items()},
            self._descriptors,
            driver.flow.running(),
            self._take_key_uses() if due else [],
        )
        self._link.send(frame)

    def _counters(
        self, driver: RequestDriver, server: Server, port: ClientPort | None
    ) -> dict[str, int | float]:
        """All counters of this process, since it began."""
        counters = driver.observer.counters.read()
        counters["control_silences_total"] = self._silence.silences
        counters["control_frames_refused_total"] = self._link.refused
        counters["control_silent_seconds_total"] = round(seconds(self._silence.total), 3)
        for name, count in server.counters.items():
            counters[f'connection_refusals_total{{reason="{name}"}}'] = count
        for resource, count in self._shortages.counts.items():
            counters[f'shortages_total{{resource="{resource}"}}'] = count
        if port is not None:
            counters |= port.counters()
        if driver.keyed is not None:
            counters["idempotency_store_failures_total"] = driver.keyed.thread.failures
        for name, count in driver.settings.virtual.hook_errors.items():
            counters[f'hook_errors_total{{hook="{name}"}}'] = count
        if driver.observer.traces is not None:
            counters["traces_dropped_total"] = driver.observer.traces.dropped
        return counters

    def tell_evidence(self, driver: RequestDriver) -> None:
        """Send what concerns no figure; while control is away, the latest of it is kept."""
        if self._link.connected:
            dead, compared = driver.observer.deadly.take(), driver.comparisons.take()
            if dead or compared:
                now = monotonic_ns()
                ago_s = [round(seconds(now - at), 3) for *_, at in dead]
                died = [(replica_id, name) for replica_id, name, _ in dead]
                self._link.send(seen_to_frame((), 0, died, compared, ago_s))
            if driver.observer.traces is not None and (traces := driver.observer.traces.take()):
                self._link.send(TracesFrame(traces))

    def answer(self, frame: ExplainAsk | MetricsAsk, driver: RequestDriver) -> None:
        """Answer a question of control: the story of one request, or all counters."""
        if isinstance(frame, ExplainAsk):
            story = driver.observer.records.explain(str(frame.request_id))
            told = b"" if story is None else msgspec.json.encode(story)
            self._link.send(ExplainAnswer(frame.ask_id, story is not None, told))
        else:
            told = msgspec.json.encode(driver.observer.counters.read())
            self._link.send(MetricsAnswer(frame.ask_id, told))

    def note_key_uses(self, driver: RequestDriver) -> None:
        """Stamp the keys that were used since the last look; to the second is enough.

        Call it before a new config replaces the directory of keys.
        """
        at = int(time())
        for tenant, key in driver.settings.tenants.take_used():
            self._key_uses[tenant, key] = at

    def _take_key_uses(self) -> list[tuple[str, str, int]]:
        """What control has not heard yet; kept while it is away."""
        if not self._link.connected:
            return []
        uses, self._key_uses = self._key_uses, {}
        return [(tenant, key, at) for (tenant, key), at in uses.items()]


def _gauges(driver: RequestDriver, server: Server) -> dict[str, int | float]:
    gauges: dict[str, int | float] = {
        "requests_in_flight": driver.busy,
        "connections_open": server.open,
        "connections_new": len(server.newcomers),
        "held_bytes": server.budget.held,
        "receiving_bytes": server.budget.received,
        **driver.demand.gauges,
    }
    if driver.keyed is not None:
        gauges |= driver.keyed.gauges()
    return gauges


__all__ = ["ControlReport"]
