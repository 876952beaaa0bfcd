"""Turns a what-if question about the running fleet into two scenarios and a plan.

The first scenario is the fleet as it is, the second as it would be: other replicas, a zone lost,
more traffic. Both run under the policies of the running config, with the same seed, so that their
difference is the change and not chance. Beside them stands what the planner says of the same
numbers: a simulation covers minutes, a plan covers years.

What was not measured is asked for, with a default that the page shows: an engine's speed cannot
be read off a config. A ``twin.json`` of 'holdfast twin calibrate' may come with the question; its
engine is then simulated. With several seeds the differences have intervals, by the same code as
'holdfast twin what-if'. One model at a time: models share no replicas, and a page with a form for
each would not be filled in.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any, Final

from holdfast.config.fleet_file import FleetFile
from holdfast.core.plan.faults import REPLICA_KINDS
from holdfast.core.plan.redundancy import Redundancy
from holdfast.core.request import routing
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.types import ConfigError, require
from holdfast.core.view.snapshot import ModelRow, Snapshot
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.scenario import Scenario
from holdfast.twin.twin_file import twin_of

REPLICAS_MAX: Final = 256  # of one model, as in the fleet file
REQUESTS_MAX: Final = 15_000  # in one run; two runs take some three seconds
DURATION_S: Final = (30.0, 300.0)  # of virtual time, shorter under more traffic
FULL: Final = 0.8  # of what a replica can do: above, waiting grows faster than load
_BATCH: Final = 32  # requests at once, where the config declares no slots
_NEED_MAX: Final = 10_000
SEEDS_MAX: Final = 10  # of one question: its requests are shared out among them

Planner = Callable[..., Any]  # holdfast.planner.redundancy; a sibling, so it is handed in


@dataclass(slots=True, frozen=True)
class RunningModel:
    """One model as it runs now; None where a value is not known."""

    model: str
    replicas: int
    zones: tuple[str, ...]
    slots: int
    requests_s: float | None
    output_tokens: float | None
    first_token_s: float | None  # what was promised
    routing: str = ""  # the policy that chooses replicas


def as_it_is(file: FleetFile, view: Snapshot | None) -> dict[str, Any]:
    """The models as they run now, as JSON data from which a what-if question starts."""
    rows = {row.name: row for row in view.models} if view is not None else {}
    standing = [asdict(_standing(file, name, view, rows.get(name))) for name in _names(file)]
    return {
        "models": standing,
        "full": FULL,
        "requests_max": REQUESTS_MAX,
        "routings": list(routing.POLICIES),
        "faults": [kind.value for kind in REPLICA_KINDS],
        "hedge": file.hedge.enabled,
        "seeds_max": SEEDS_MAX,
    }


def _names(file: FleetFile) -> list[str]:
    return [model.name for model in file.models]


def _standing(
    file: FleetFile, name: str, view: Snapshot | None, row: ModelRow | None
) -> RunningModel:
    section = next(model for model in file.models if model.name == name)
    declared = [deployed.replica for deployed in section.deployed()]
    zones = [replica.zone for replica in declared]
    count = len(declared)
    if view is not None:
        seen = [one for one in view.replicas if one.model == name and one.routed]
        if seen:
            count = len(seen)
            zones += [one.zone for one in seen if one.zone]
    slots = Counter(replica.slots for replica in declared).most_common(1)
    rate = row.requests_s if row is not None else None
    tokens = row.tokens_s if row is not None else None
    output = tokens / rate if rate and tokens else None
    return RunningModel(
        model=name,
        replicas=max(1, count),
        zones=tuple(sorted(set(zones))) or ("zone-a",),
        slots=slots[0][0] if slots else 0,
        requests_s=rate,
        output_tokens=output,
        first_token_s=section.slo_first_token,
        routing=section.routing,
    )


@dataclass(slots=True, frozen=True)
class WhatIfQuestion:
    """One validated what-if question about a model."""

    standing: RunningModel
    replicas: int
    lost_zone: str  # empty: none
    traffic: float  # times what it is now
    rate: float  # requests per second, as it is now
    prompt: float  # tokens
    output: float
    stream_tokens_s: float  # of one answer on an idle replica
    first_token_s: float
    availability: float  # of one replica
    zone_availability: float
    target: float
    routing: str = ""  # empty: as it is
    hedge: bool | None = None  # None: as it is
    deadline_s: float | None = None  # of a whole request; None: as it is
    fault: str = ""  # of one replica for a third of the time; empty: none
    seeds: int = 1
    engine: EngineParameters | None = None  # of a twin

    @classmethod
    def of(cls, body: Mapping[str, Any], now: Mapping[str, Any]) -> "WhatIfQuestion":
        """Read a question from a body; raises ``ConfigError`` that names the field."""
        by_name = {one["model"]: one for one in now["models"]}
        name = body.get("model")
        known = isinstance(name, str) and name in by_name
        require(known, "model", "is none that runs", f"use one of {', '.join(by_name)[:200]}")
        plain = by_name[str(name)]
        standing = RunningModel(**plain | {"zones": tuple(plain["zones"])})
        zone = body.get("lost_zone") or ""
        fix = f"use one of {', '.join(standing.zones)}, or leave it out"
        require(zone == "" or zone in standing.zones, "lost_zone", "is none of its zones", fix)
        return cls(
            standing=standing,
            replicas=round(_number(body, "replicas", standing.replicas, 1, REPLICAS_MAX)),
            lost_zone=str(zone),
            traffic=_number(body, "traffic", 1.0, 0.01, 100.0),
            rate=_number(body, "rate", standing.requests_s or None, 0.01, 10_000.0),
            prompt=_number(body, "prompt", 500.0, 1.0, 32_000.0),
            output=_number(body, "output", standing.output_tokens or 200.0, 1.0, 32_000.0),
            stream_tokens_s=_number(body, "stream_tokens_s", 75.0, 0.1, 10_000.0),
            first_token_s=_number(body, "first_token_s", standing.first_token_s or 2.0, 0.01, 600),
            availability=_number(body, "availability", 0.99, 0.5, 0.999999),
            zone_availability=_number(body, "zone_availability", 0.9999, 0.5, 1.0),
            target=_number(body, "target", 0.999, 0.5, 0.99999999),
            routing=_choice(body, "routing", tuple(routing.POLICIES)),
            hedge=_flag(body, "hedge"),
            deadline_s=_number(body, "deadline_s", 0.0, 0.0, 86_400.0) or None,
            fault=_choice(body, "fault", tuple(kind.value for kind in REPLICA_KINDS)),
            seeds=round(_number(body, "seeds", 1.0, 1, SEEDS_MAX)),
            engine=_engine(body, standing),
        )

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The keys of the fleet file that make the change, with their values before and after."""
        name, standing = self.standing.model, self.standing
        rows: list[tuple[str, Any, Any]] = []
        if self.replicas != standing.replicas:
            rows.append((f"models.{name}.launch.replicas", standing.replicas, self.replicas))
        if self.routing and self.routing != standing.routing:
            rows.append((f"models.{name}.routing", standing.routing, self.routing))
        if self.hedge is not None:
            rows.append(("hedge.enabled", None, self.hedge))
        if self.deadline_s is not None:
            rows.append((f"models.{name}.deadlines.request_s", None, self.deadline_s))
        return [{"key": key, "before": before, "after": after} for key, before, after in rows]

    @property
    def law(self) -> EngineParameters:
        """The engine of a twin; else usual proportions, scaled to the given speed."""
        if self.engine is not None:
            return self.engine
        usual = EngineParameters()
        slower = 1000.0 / self.stream_tokens_s / (usual.step_ms + usual.per_sequence_ms)
        return EngineParameters(
            step_ms=usual.step_ms * slower,
            per_sequence_ms=usual.per_sequence_ms * slower,
            per_kv_token_ms=usual.per_kv_token_ms * slower,
            per_prompt_token_ms=usual.per_prompt_token_ms * slower,
        )

    @property
    def replica_requests_s(self) -> float:
        """Requests per second that one replica can serve with its batch full."""
        law, batch = self.law, self.standing.slots or _BATCH
        held = batch * (self.prompt + self.output / 2.0)
        step = law.step_ms + law.per_sequence_ms * batch + law.per_kv_token_ms * held
        per_request_ms = self.output * step / batch + law.per_prompt_token_ms * self.prompt
        return 1000.0 / per_request_ms

    def need(self, traffic: float) -> int:
        """Number of replicas that carry ``traffic`` times the rate without being full."""
        load = self.rate * traffic
        return min(_NEED_MAX, max(1, ceil(load / (FULL * self.replica_requests_s))))


def _choice(body: Mapping[str, Any], name: str, known: tuple[str, ...]) -> str:
    value = body.get(name) or ""
    fix = f"use one of {', '.join(known)}, or leave it out"
    require(value == "" or value in known, name, f"is {value!r}"[:80], fix)
    return str(value)


def _flag(body: Mapping[str, Any], name: str) -> bool | None:
    value = body.get(name)
    fits = value is None or isinstance(value, bool)
    require(fits, name, f"is {value!r}"[:80], "use true or false, or leave it out")
    return value if isinstance(value, bool) else None


def _engine(body: Mapping[str, Any], standing: RunningModel) -> EngineParameters | None:
    """The fitted engine of a ``twin.json`` in a body; with the slots of the running config."""
    given = body.get("twin")
    if given is None:
        return None
    fitted = twin_of(json.dumps(given)).models
    fix = f"calibrate {standing.model}"
    require(standing.model in fitted, "twin", f"knows only {', '.join(fitted)[:200]}", fix)
    law = fitted[standing.model].engine
    return replace(law, batch_max=standing.slots) if standing.slots else law


def _number(
    body: Mapping[str, Any], name: str, default: float | None, least: float, most: float
) -> float:
    value = body.get(name)
    if value is None or value == "":
        value = default
    if value is None:
        raise ConfigError(name, "is not known yet", f"give a number from {least:g} to {most:g}")
    fits = not isinstance(value, bool) and isinstance(value, int | float) and least <= value <= most
    require(fits, name, f"is {value!r}"[:80], f"use a number from {least:g} to {most:g}")
    return float(value)


def scenarios(question: WhatIfQuestion, file: FleetFile) -> tuple[Scenario, Scenario]:
    """The scenario of the fleet as it is, and of the fleet as it would be."""
    name = question.standing.model
    whole = file.flow_config()
    # Tenants and ladders belong to the whole fleet: one model's rehearsal has neither.
    flow = FlowConfig(
        lane=whole.lanes[name],
        lanes={name: whole.lanes[name]},
        retry=whole.retry,
        hedge=replace(whole.hedge),
    )
    most = question.rate * max(1.0, question.traffic)
    duration = max(DURATION_S[0], min(DURATION_S[1], REQUESTS_MAX / most / question.seeds))
    before = _scenario(question, flow, file, duration, question.standing.replicas, 1.0)
    changed = _changed(question, flow)
    after = _scenario(question, changed, file, duration, question.replicas, question.traffic)
    third = {"at": duration / 3, "until": duration * 2 / 3}
    faults: list[dict[str, Any]] = []
    if question.fault:
        faults.append({"kind": question.fault, "target": f"{name}-0", "factor": 3.0, **third})
        if question.changes or question.traffic != 1.0:  # what does the change do to a fleet in it
            before = Scenario.model_validate({**dict(before), "faults": list(faults)})
    if question.lost_zone:
        faults.append({"kind": "zone_loss", "target": question.lost_zone, **third})
    if faults:
        after = Scenario.model_validate({**dict(after), "faults": faults})
    return before, after


def _changed(question: WhatIfQuestion, flow: FlowConfig) -> FlowConfig:
    """The policies as they would be."""
    lane = flow.lane
    if question.routing and question.routing != lane.routing:
        lane = replace(lane, routing=question.routing, routing_options={})
    if question.deadline_s is not None:
        lane = replace(lane, deadlines=replace(lane.deadlines, request_s=question.deadline_s))
    hedge = flow.hedge
    if question.hedge is not None:
        hedge = replace(hedge, enabled=question.hedge)
    return replace(flow, lane=lane, lanes={question.standing.model: lane}, hedge=hedge)


def _scenario(
    question: WhatIfQuestion,
    flow: FlowConfig,
    file: FleetFile,
    duration: float,
    replicas: int,
    traffic: float,
) -> Scenario:
    zones = question.standing.zones
    used = zones[: max(1, replicas)]
    if question.lost_zone and question.lost_zone not in used:
        used = (*used[:-1], question.lost_zone)  # a zone that nobody is in cannot be lost
    return Scenario.model_validate(
        {
            "name": question.standing.model,
            "duration": duration,
            "models": [
                {
                    "name": question.standing.model,
                    "replicas": replicas,
                    "zones": list(used),
                    "slots": question.standing.slots,
                    "engine": question.law,
                    "workload": {
                        "rate": question.rate * traffic,
                        "prompt": {"mean": question.prompt},
                        "output": {"mean": question.output},
                    },
                }
            ],
            "slo": {"first_token_s": question.first_token_s},
            "flow": flow,
            "fleet": file.fleet_config(),
        }
    )


def answer(question: WhatIfQuestion, ran: Mapping[str, Any], planner: Planner) -> dict[str, Any]:
    """The answer for the page: two results, a plan, and all that was assumed."""
    zones = len(question.standing.zones)
    need = question.need(question.traffic)
    rows = [
        _redundancy(question, "now", question.standing.replicas, question.need(1.0)),
        _redundancy(question, "then", question.replicas, need),
    ]
    try:
        plan = planner(
            need,
            question.availability,
            question.target,
            zones=zones,
            zone_availability=question.zone_availability,
        ).to_dict()
        problem = ""
    except ConfigError as error:  # a target that no number of spares reaches is an answer too
        plan, problem = None, str(error)
    return {
        "question": {**asdict(question), "need": need},
        "replica_requests_s": question.replica_requests_s,
        "now": ran["now"],
        "then": ran["then"],
        "differences": ran.get("differences", []),
        "changes": question.changes,
        "duration_s": ran["duration_s"],
        "took_s": ran["took_s"],
        "redundancy": rows,
        "plan": plan,
        "plan_problem": problem,
    }


def _redundancy(question: WhatIfQuestion, label: str, replicas: int, need: int) -> dict[str, Any]:
    zones, zone_availability = len(question.standing.zones), question.zone_availability
    fleet = Redundancy(need, question.availability, zones, zone_availability)
    spares = replicas - need
    return {
        "label": label,
        "replicas": replicas,
        "need": need,
        "spares": spares,
        "availability": fleet.availability(spares) if spares >= 0 else 0.0,
    }


__all__ = ["Planner", "RunningModel", "WhatIfQuestion", "answer", "as_it_is", "scenarios"]
