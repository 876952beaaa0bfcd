"""The rules of a fleet file in the terms of a proxy: ejection, retries, budget, timeouts.

For those who cannot put Holdfast into the path of their requests. A proxy sees statuses and
connections; it does not see an answer. What it can be told is told here once, and each proxy's own
module only spells it. ``Departure`` names what a proxy does otherwise, and why.

Rejected: leaving a proxy's own defaults where ours have no counterpart. Envoy's route timeout of
15 s cuts answers, its idle timeout of 5 minutes cuts long ones, and its ejection of at most 10 % of
a pool never ejects one of three.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final
from urllib.parse import urlsplit

from holdfast.config.fleet_file import FleetFile
from holdfast.config.models import ModelSection
from holdfast.core.failure import MEANINGS, Kind, Outcome
from holdfast.core.types import ConfigError, require

# Engines behind uvicorn close an idle connection after 5 s, and a proxy that writes to a closed one
# counts a failure of the replica. Holdfast does not count it, and keeps connections for longer.
IDLE_S_MAX: Final = 4.0
# Failures are counted for so long at a time: two requests a second then reach the ten of which a
# share means something. An ejected replica comes back at the end of one of these periods.
SWEEP_S: Final = 5.0
_WEIGHT_SCALE: Final = 100  # proxies take whole numbers
_SECOND_MS: Final = 1_000


@dataclass(slots=True, frozen=True)
class Target:
    """One address of a model's replicas, and where it is."""

    host: str
    port: int
    region: str = ""
    zone: str = ""
    weight: int = _WEIGHT_SCALE


@dataclass(slots=True, frozen=True)
class Targets:
    """All addresses of a model: replicas that the file lists, or one name of a service."""

    targets: tuple[Target, ...]
    service: bool  # the one target is a name that stands for all replicas
    secure: bool  # TLS
    path: str  # before every path of a request, without a last slash; mostly empty


@dataclass(slots=True, frozen=True)
class EjectionRule:
    """When a replica is taken out for its failures, for how long, and how many may be out."""

    consecutive: int
    failure_percent: int
    outcomes_min: int
    sweep_s: float
    base_s: float
    max_s: float
    jitter_s: float
    percent_max: int


@dataclass(slots=True, frozen=True)
class RetryRule:
    """How often one request, and all requests together, may be tried again."""

    retries: int
    statuses: tuple[int, ...]  # beside 5xx and broken connections
    backoff_s: float
    backoff_max_s: float
    budget_percent: float | None  # of the requests in flight; None: no budget
    concurrent_min: int  # retries at once that are always allowed


@dataclass(slots=True, frozen=True)
class TimeoutRule:
    """How long a connection, an answer and a silence may take."""

    connect_s: float
    request_s: float
    silence_s: float  # no byte of an answer for so long
    pooled_s: float  # an idle connection to a replica is kept so long


@dataclass(slots=True, frozen=True)
class ProxyRules:
    """Everything that a proxy is told of one model."""

    model: str
    served_as: str
    targets: Targets
    ejection: EjectionRule | None  # None: the breaker is off
    retry: RetryRule
    timeouts: TimeoutRule
    slow_start_s: float
    slow_start_percent: float
    in_flight_max: int
    waiting_max: int
    api_key_env: str | None
    departures: tuple[str, ...]  # what the proxy does otherwise than Holdfast, for this model


def rules_of(
    file: FleetFile, services: Mapping[str, str], *, streams_only: bool = False
) -> tuple[ProxyRules, ...]:
    """The rules of every model of a fleet file.

    ``services`` gives ``host:port`` of models whose replicas the file does not list.
    ``streams_only``: every client streams, so that a silence may be bounded like a first token.
    """
    names = [model.name for model in file.models]
    for name in services:
        fix = f"use one of {', '.join(names[:6])}"
        require(name in names, "service", f"is for {name!r}, no model of the file", fix)
    require(bool(names), "models", "has 0 items", "add at least one model")
    return tuple(
        _rules(file, index, services.get(model.name), streams_only=streams_only)
        for index, model in enumerate(file.models)
    )


def _rules(file: FleetFile, index: int, service: str | None, *, streams_only: bool) -> ProxyRules:
    model = file.models[index]
    targets = _targets(model, index, service)
    deadlines, health = model.deadlines, file.fleet.health
    silence_s = deadlines.request_s
    if streams_only:
        silence_s = max(deadlines.first_token_s, deadlines.between_tokens_s)
    slots = [endpoint.slots or model.limit.initial for endpoint in model.endpoints]
    return ProxyRules(
        model=model.name,
        served_as=model.served_as or model.name,
        targets=targets,
        ejection=_ejection(file, model) if model.breaker.enabled else None,
        retry=_retry(file),
        timeouts=TimeoutRule(
            connect_s=file.gateway.upstream.connect_s,
            request_s=deadlines.request_s,
            silence_s=silence_s,
            pooled_s=min(IDLE_S_MAX, file.gateway.upstream.idle_s),
        ),
        slow_start_s=health.slow_start_s,
        slow_start_percent=100 * health.slow_start_floor,
        in_flight_max=(sum(slots) or model.limit.maximum) + model.queue.depth_max,
        waiting_max=model.queue.depth_max,
        api_key_env=model.api_key_env,
        departures=_departures(model, streams_only=streams_only),
    )


# --- where ----------------------------------------------------------------------------------------


def _targets(model: ModelSection, index: int, service: str | None) -> Targets:
    if not model.endpoints:
        return _service(model, index, service)
    where = f"models[{index}].endpoints"
    fix = "leave the service out, or the endpoints"
    require(service is None, where, "is set, and so is a service for the model", fix)
    kinds: set[tuple[bool, str]] = set()
    targets = []
    for endpoint in model.endpoints:
        parts = urlsplit(endpoint.url)
        kinds.add((parts.scheme == "https", parts.path.rstrip("/")))
        targets.append(
            Target(
                parts.hostname or "",
                parts.port or (443 if parts.scheme == "https" else 80),
                endpoint.region,
                endpoint.zone,
                max(1, round(endpoint.weight * _WEIGHT_SCALE)),
            )
        )
    problem = "mixes http with https, or several paths: a proxy has one of each for a model"
    require(len(kinds) == 1, where, problem, "give its replicas one scheme and one path")
    secure, path = kinds.pop()
    return Targets(tuple(targets), service=False, secure=secure, path=path)


def _service(model: ModelSection, index: int, service: str | None) -> Targets:
    if service is None:
        kind = "launch" if model.launch is not None else "discover"
        problem = "has no addresses in the file: a proxy has to be told a name"
        fix = f"add --service {model.name}=NAME.NAMESPACE.svc:PORT, a headless Service"
        raise ConfigError(f"models[{index}].{kind}", problem, fix)
    host, _, port = service.rpartition(":")
    well = bool(host) and port.isdecimal() and 1 <= int(port) <= 65_535 and "/" not in host
    fix = f"write {model.name}=NAME.NAMESPACE.svc:PORT"
    require(well, "service", f"is {service[:80]!r}", fix)
    secure = model.discover is not None and model.discover.scheme == "https"
    target = Target(host, int(port), model.discover.region if model.discover else "")
    return Targets((target,), service=True, secure=secure, path="")


# --- what -----------------------------------------------------------------------------------------


def _ejection(file: FleetFile, model: ModelSection) -> EjectionRule:
    breaker = model.breaker
    return EjectionRule(
        consecutive=breaker.consecutive,
        failure_percent=max(1, round(100 * breaker.failure_ratio)),
        outcomes_min=breaker.minimum,
        sweep_s=SWEEP_S,
        base_s=breaker.cooldown_s,
        max_s=breaker.cooldown_max_s,
        jitter_s=breaker.jitter * breaker.cooldown_s,
        percent_max=int(100 * file.fleet.ejection.share_max + 1e-9),
    )


def _retry(file: FleetFile) -> RetryRule:
    retry = file.retry
    busy = MEANINGS[Kind.OVERLOADED]
    still_tried = busy.retryable and busy.outcome is Outcome.BACKPRESSURE
    return RetryRule(
        retries=retry.attempts - 1,
        statuses=(429,) if still_tried else (),
        backoff_s=max(0.001, retry.backoff_base_s),
        backoff_max_s=max(0.001, retry.backoff_max_s),
        budget_percent=100 * retry.budget_ratio if retry.budget else None,
        # Ours is a rate; theirs is a number at once. A retry in flight lasts about as long as an
        # answer, so that a second's worth of ours is the smaller of the two.
        concurrent_min=ceil(retry.budget_floor_per_s),
    )


def _departures(model: ModelSection, *, streams_only: bool) -> tuple[str, ...]:
    notes = []
    if not streams_only:
        request_s = model.deadlines.request_s
        notes.append(
            f"{model.name}: a silent replica holds a request for {request_s:g} s, since an answer "
            "in one piece is silent, too; --streams-only bounds it like a first token"
        )
    if model.served_as is not None and model.served_as != model.name:
        notes.append(f"{model.name}: clients have to ask for {model.served_as!r}, the engine's")
    if model.api_key_file is not None:
        notes.append(f"{model.name}: api_key_file is not read; the proxy sends no token")
    return tuple(notes)


# What holds for every proxy and every fleet, in the words of the documentation.
DEPARTURES: Final = (
    "answers are not looked at: wrong, empty, cut and degenerate ones count as success",
    "no canaries, no continuation of broken streams, no queue by priority, no quotas, no hedging",
    "deadlines are those of a pool that has learned nothing yet; they do not follow it",
    "the retry budget is a share of requests in flight, not of those of the last seconds",
    "a refused connection counts as one failure; Holdfast needs no second",
    "an ejected replica comes back with all its share at once; Holdfast sends one request first",
    "ejection times grow by steps of the first one, and replicas that are dead count as members",
)


def departures_of(file: FleetFile, rules: tuple[ProxyRules, ...]) -> list[str]:
    """What a proxy with these rules does otherwise than Holdfast, as one line each."""
    notes = list(DEPARTURES)
    if file.virtual_models:
        names = ", ".join(virtual.name for virtual in file.virtual_models[:6])
        notes.append(f"virtual models are not known to it: {names}")
    for rule in rules:
        notes += rule.departures
    return notes


def duration(seconds: float) -> str:
    """A time as proxies write it, such as ``0.05s``."""
    return f"{round(seconds * _SECOND_MS) / _SECOND_MS:.3f}".rstrip("0").rstrip(".") + "s"


__all__ = [
    "DEPARTURES",
    "IDLE_S_MAX",
    "SWEEP_S",
    "EjectionRule",
    "ProxyRules",
    "RetryRule",
    "Target",
    "Targets",
    "TimeoutRule",
    "departures_of",
    "duration",
    "rules_of",
]
