"""Finds mistakes that lead to silent failures, in a fleet file and in a running fleet.

A file can be valid and still be risky: one zone, a canary that cannot fail, retries at three
layers. Each check is one function that returns advice; none of them changes anything, and none
repeats what reading the file refuses anyway. Rejected: a score. A score of 71 does not say what
to do.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from holdfast.config.fleet_file import FleetFile, ModelSection
from holdfast.config.processes.control import ControlSection
from holdfast.config.sources import AgentsSection
from holdfast.control.deploy.gpu_request import gpu_request_of
from holdfast.core.canary import CanaryVerdict
from holdfast.core.deploy.gpu_placement import (
    GpuInventory,
    GpuLedger,
    GpuPlacementConfig,
    GpuRequest,
    Overcommit,
)
from holdfast.core.failure import Cause
from holdfast.core.intake.descriptors import (
    CARRIED_MIN,
    connections_carried,
    descriptors_needed,
    is_scarce,
)

SDK_TRIES: Final = 3  # the OpenAI SDKs try a request twice more by themselves
TRIES_MAX: Final = 9  # of one request by all layers together: beyond it an outage feeds itself
WAIT_MAX_S: Final = 1_800.0  # nobody waits for half an hour for an answer
FIRST_TOKEN_MAX_S: Final = 120.0
_LINKS_MAX: Final = 12  # that one line names

_MUTABLE: Final = re.compile(
    r"(?:^|[/:@])(?:latest|main|master|nightly|dev|stable)$", re.IGNORECASE
)
_UNSETTLED: Final = (CanaryVerdict.UNSETTLED, CanaryVerdict.UNKNOWN)


class AdviceLevel(StrEnum):
    """How urgent a piece of advice is."""

    ERROR = "error"  # it will fail silently
    WARNING = "warning"  # it will fail badly when something else fails
    NOTE = "note"  # worth knowing


@dataclass(slots=True, frozen=True)
class Advice:
    """One mistake: where it is, and how to fix it."""

    level: AdviceLevel
    where: str  # a field of the file, or a part of the running fleet
    problem: str
    fix: str
    leads_to: tuple[Cause, ...] = ()


Found = Iterator[Advice]


# --- the file -------------------------------------------------------------------------------------


def check_file(file: FleetFile) -> list[Advice]:
    """All advice about a fleet file, the most urgent first."""
    found = [advice for check in _OF_FILE for advice in check(file)]
    for model in file.models:
        for of_model in _OF_MODEL:
            found.extend(of_model(file, model))
    return _sorted(found)


def _one_place(file: FleetFile, model: ModelSection) -> Found:
    del file
    zones, count = _zones(model), _count(model)
    field = f"models.{model.name}"
    if count == 1:
        told = "has one replica: while it restarts, nobody answers, and nobody can disagree with it"
        yield Advice(AdviceLevel.WARNING, field, told, "give it two replicas or more")
    elif len(zones) == 1 and count:
        told = f"has its {count} replicas in one zone, {zones[0]}"
        fix = "name the zones of its endpoints, or list several under launch.zones"
        yield Advice(AdviceLevel.WARNING, field, told, fix, (Cause.UNREACHABLE,))


def _blind_canary(file: FleetFile, model: ModelSection) -> Found:
    """A probe that cannot fail is a decoration."""
    del file
    canary, field = model.canary, f"models.{model.name}.canary"
    if model.engine == "triton" and not canary.body:
        told = "asks for a page only: Triton has no question that fits every model"
        fix = "give canary.shape: infer and canary.body with a real inference"
        yield Advice(AdviceLevel.ERROR, field, told, fix, (Cause.WRONG_OUTPUT, Cause.HUNG))
    if _count(model) == 1 and not canary.expect and canary.check is None:
        told = "learns what is right by agreement, and there is one replica to agree with itself"
        fix = "write the right answer under canary.expect"
        yield Advice(AdviceLevel.WARNING, field, told, fix, (Cause.WRONG_OUTPUT,))
    if canary.similarity < 0.5:
        told = f"takes answers for the same that share {canary.similarity:.0%} of their words"
        fix = "raise canary.similarity to 0.8, or use rule: exact"
        yield Advice(AdviceLevel.WARNING, f"{field}.similarity", told, fix, (Cause.WRONG_OUTPUT,))


def _long_waits(file: FleetFile, model: ModelSection) -> Found:
    del file
    deadlines, field = model.deadlines, f"models.{model.name}.deadlines"
    if deadlines.request_s > WAIT_MAX_S:
        told = f"lets a request run for {deadlines.request_s / 60:.0f} min"
        fix = "lower request_s to what a user waits for: a request that hangs holds a slot so long"
        yield Advice(
            AdviceLevel.WARNING, f"{field}.request_s", told, fix, (Cause.HUNG, Cause.STALLED)
        )
    if deadlines.first_token_s > FIRST_TOKEN_MAX_S:
        told = f"waits {deadlines.first_token_s:.0f} s for a first token until it has learned"
        fix = "lower first_token_s; learned deadlines replace it after 100 answers"
        yield Advice(AdviceLevel.NOTE, f"{field}.first_token_s", told, fix, (Cause.HUNG,))


def _mutable_revision(file: FleetFile, model: ModelSection) -> Found:
    del file
    named = [(f"models.{model.name}.revision", model.revision)]
    if model.launch is not None:
        place = f"models.{model.name}.launch.command"
        named += [(f"{place}.{i}", word) for i, word in enumerate(model.launch.command)]
        named.append((f"models.{model.name}.launch.weights", model.launch.weights))
    for field, name in named:
        if _MUTABLE.search(name):
            told = f"names something that changes under the same name: {name[:80]!r}"
            fix = "pin a revision or a digest (image@sha256:…)"
            yield Advice(
                AdviceLevel.WARNING, field, told, fix, (Cause.VERSION_SKEW, Cause.OUTPUT_DRIFT)
            )


def _retries_times_layers(file: FleetFile) -> Found:
    """Each layer that retries multiplies what the one below it does."""
    retry = file.retry
    if not retry.budget:
        told, fix = "is off: retries have no bound", "remove it: the budget keeps storms away"
        yield Advice(AdviceLevel.ERROR, "retry.budget", told, fix, (Cause.OVERLOADED,))
    escalates = any(rule.escalate for one in file.virtual_models for rule in one.rules)
    tries = SDK_TRIES * retry.attempts * (2 if escalates else 1)
    if tries > TRIES_MAX:
        told = (
            f"makes up to {tries} tries of one request: {SDK_TRIES} by a client's SDK, times "
            f"{retry.attempts} here{', times 2 where a rule escalates' if escalates else ''}"
        )
        fix = "lower retry.attempts to 2, and set max_retries=0 in clients: one layer retries"
        yield Advice(AdviceLevel.WARNING, "retry.attempts", told, fix, (Cause.OVERLOADED,))
    if retry.backoff == "none":
        told, fix = "is none: retries come in step", "remove it: full jitter spreads them"
        yield Advice(AdviceLevel.WARNING, "retry.backoff", told, fix, (Cause.OVERLOADED,))


def _unbounded_ejection(file: FleetFile) -> Found:
    share = file.fleet.ejection.share_max
    if share > 0.5:
        told = f"lets suspicion take {share:.0%} of a pool out of service"
        fix = "use at most 0.5: beyond half the checker is the likelier fault"
        yield Advice(
            AdviceLevel.WARNING, "fleet.ejection.share_max", told, fix, (Cause.CHECKER_BROKEN,)
        )


def _admin_roles(file: FleetFile) -> Found:
    """Who may do what at the admin port."""
    admin = file.admin
    if not admin.address.loopback and not admin.tokens:
        told = "is the only token of a port that other hosts reach, and it has all roles"
        fix = "name tokens with the roles each needs under admin.tokens: read for dashboards"
        yield Advice(AdviceLevel.NOTE, "admin.token", told, fix)
    if file.chaos.enabled and not admin.address.loopback:
        told = "lets callers of other hosts inject faults, a detour of users' prompts among them"
        fix = "remove it between game days; only tokens with the role chaos may use it"
        yield Advice(AdviceLevel.WARNING, "chaos.enabled", told, fix)
    if admin.open_read and (admin.token is not None or admin.tokens):
        told = "lets every process of this machine read, though the file names tokens"
        yield Advice(AdviceLevel.NOTE, "admin.open_read", told, "remove it to ask for a token")


def _idempotency(file: FleetFile) -> Found:
    section = file.gateway.idempotency
    if not section.enabled:
        return
    field = "gateway.idempotency"
    if not file.tenants:
        told = "all callers share their idempotency keys, since the file names no tenants"
        yield Advice(AdviceLevel.WARNING, field, told, "give each client a tenant of its own")
    if section.store.path is not None and not section.store.path.is_absolute():
        told = "depends on the folder in which the fleet is started: elsewhere all keys are new"
        yield Advice(AdviceLevel.WARNING, f"{field}.store.path", told, "write the whole path")
    longest = max((model.deadlines.request_s for model in file.models), default=0.0)
    if section.policy.ttl_s < longest:
        told = f"is shorter than a request may take, {longest:g} s: its retry may come too late"
        fix = f"use more than {longest:g}"
        yield Advice(AdviceLevel.WARNING, f"{field}.policy.ttl_s", told, fix)


def _agents(file: FleetFile) -> Found:
    """Whose token speaks for which host."""
    ids = {one.replica.id for one in file.replicas()}
    open_ended = any(model.discover is not None for model in file.models)  # pods have any name
    for source in file.sources:
        if not isinstance(source, AgentsSection):
            continue
        field = f"sources.{source.called}"
        if source.token is not None or not source.agents:
            whose = "a shared token" if source.token is not None else "the admin token"
            told = f"takes reports with {whose}: one host that is broken into speaks for all"
            fix = "give each agent its own under 'agents', with its replicas, and remove 'token'"
            yield Advice(AdviceLevel.WARNING, field, told, fix)
        for agent in source.agents:
            if not agent.certificate and not file.admin.address.loopback:
                told = "has a token alone: whoever copies it speaks for its host, from anywhere"
                fix = "give it a certificate of admin.tls.client_ca, and name it as 'certificate'"
                yield Advice(AdviceLevel.NOTE, f"{field}.agents.{agent.name}", told, fix)
            for name in agent.replicas:
                known = name in ids or any(model.may_name(name) for model in file.models)
                if known or open_ended:
                    continue
                told = f"names the replica {name!r}, which no model of this file has"
                fix = "write the id of an endpoint; what the agent says of it would be lost"
                yield Advice(AdviceLevel.WARNING, f"{field}.agents.{agent.name}", told, fix)


@dataclass(slots=True, frozen=True)
class OpenedLink:
    """Where processes of one fleet reach each other, and how they know that it is they."""

    where: str  # an address, or a socket of the run
    of: str  # the field that opens it
    between: str
    authenticated: str


def links_of(file: FleetFile) -> list[OpenedLink]:
    """All links between a fleet's own processes that a file opens."""
    own = "the user of the process at the other end, as the kernel says"
    here = "in a folder of the run that only its user can open"
    found = [
        OpenedLink(f"control.sock, {here}", "gateway", "gateways of this machine, control", own)
    ]
    if file.batch.enabled or file.consumers:
        told = f"batch.sock and batch-load.sock, {here}"
        found.append(OpenedLink(told, "batch", "gateways, control, the batch process", own))
        told = "a secret of the run, which only its user can read"
        found.append(OpenedLink(file.gateway.listen, "batch", "the batch process, gateways", told))
    found.extend(_links_of_members(file.control))
    for source in file.sources:
        if isinstance(source, AgentsSection):
            told = "a token" + (", or a certificate with it" if file.admin.tls else "")
            field = f"sources.{source.called}"
            found.append(OpenedLink(file.admin.listen, field, "agents, control", told))
    return found


def _links_of_members(control: ControlSection) -> Iterator[OpenedLink]:
    between = "gateways and standby controls of the other members, control"
    if control.tls is not None:
        told = f"certificates of {control.tls.ca}, each for its own member's host"
    else:
        told = f"the secret of {control.shared_secret}, which both ends prove to know"
    for member in control.members:
        yield OpenedLink(member.address, f"control.members.{member.name}", between, told)


def check_link_secret(path: str, problem: str) -> list[Advice]:
    """Advice about the secret of controls on one machine; ``problem``: why it cannot be used."""
    if not problem:
        return []
    fix = "chmod 600, owned by the user of all controls; or remove it, and the next start makes one"
    return [Advice(AdviceLevel.ERROR, path, f"{problem}: gateways believe no other control", fix)]


def check_machine(file: FleetFile, descriptors: int) -> list[Advice]:
    """Advice about a fleet file on a machine whose processes may open so many files."""
    wanted = file.gateway.http.connections_max
    carried = connections_carried(descriptors)
    if not is_scarce(descriptors, wanted):
        return []
    told = f"allows {wanted} connections, and {descriptors} open files carry {carried}"
    fix = (
        f"raise the limit on open files to {descriptors_needed(wanted)} (ulimit -n, LimitNOFILE= "
        f"in a unit, --ulimit nofile=), or lower it to {carried}"
    )
    level = AdviceLevel.ERROR if carried < CARRIED_MIN else AdviceLevel.WARNING
    field = "gateway.http.connections_max"
    return [Advice(level, field, told, fix, (Cause.OWN_SHORTAGE,))]


def launches_on_gpus(file: FleetFile) -> bool:
    """Whether control would choose GPUs for replicas of a fleet file that it launches."""
    return any(gpu_request_of(model) is not None for model in file.models)


def check_gpus(file: FleetFile, seen: GpuInventory) -> list[Advice]:
    """Advice about launched models on the GPUs of this host, as if nothing else used them."""
    asking = [
        (model, request) for model in file.models if (request := gpu_request_of(model)) is not None
    ]
    if not asking:
        return []
    if not seen.devices:
        return [_without_gpu(model, request, seen.reason) for model, request in asking]
    told = f"has {_gpus_of(seen)}"
    fix = "launched replicas are placed on them; 'holdfast status --json' says who has which"
    found = [Advice(AdviceLevel.NOTE, "this host", told, fix)]
    ledger = GpuLedger(GpuPlacementConfig())
    empty = [replace(device, memory_used=None) for device in seen.devices]
    for model, request in asking:
        field, count = f"models.{model.name}.launch", _count(model)
        for number in range(1, count + 1):
            placed = ledger.claim(f"{model.name}-{number}", request, empty, 0)
            if placed.placed and not placed.overcommits:
                continue
            does = "waits" if not placed.placed else "shares a GPU that has no room for it"
            told = f"wants {count} replicas, and the {number}. {does}: {placed.reason}"
            fix = "lower replicas or gpus, share with gpu_share, or run it where more GPUs are"
            found.append(Advice(AdviceLevel.WARNING, field, told, fix, (Cause.NOT_PLACED,)))
            break
        else:
            if count and not ledger.has_room(request, empty, 0):
                told = "leaves no GPU free: a rolling update drains one replica before the next"
                fix = "keep room for one more replica, or update when one fewer is enough"
                found.append(Advice(AdviceLevel.NOTE, field, told, fix))
    return _sorted(found)


def _without_gpu(model: ModelSection, request: GpuRequest, reason: str) -> Advice:
    waits = request.overcommit is Overcommit.NEVER
    level = AdviceLevel.ERROR if waits else AdviceLevel.WARNING
    told = f"needs {request.count} of this host's GPUs for each replica, and there is {reason}"
    fix = "run it on a host with GPUs (and the extra 'gpu'), or set gpus: 0 for a CPU"
    return Advice(level, f"models.{model.name}.launch", told, fix, (Cause.NOT_PLACED,))


def _gpus_of(seen: GpuInventory) -> str:
    """The devices of a host in one line: how many of which kind, and who is linked to whom."""
    kinds = Counter(
        (device.name or "unknown", device.memory_total, device.is_slice) for device in seen.devices
    )
    parts = []
    for (name, total, is_slice), count in kinds.items():
        size = "" if total is None else f" with {total / (1 << 30):.0f} GiB"
        kind = "MIG slices of" if is_slice else "GPUs"
        parts.append(f"{count} {kind} {name}{size}")
    labels = {device.uuid: device.label for device in seen.devices}
    links = sorted(
        f"{device.label}-{labels[other]}"
        for device in seen.devices
        for other in device.neighbours
        if device.uuid < other
    )
    linked = f"; NVLink joins {', '.join(links[:_LINKS_MAX])}" if links else ""
    return ", ".join(parts) + linked + (" …" if len(links) > _LINKS_MAX else "")


_OF_FILE: Final[tuple[Callable[[FleetFile], Found], ...]] = (
    _retries_times_layers,
    _unbounded_ejection,
    _admin_roles,
    _idempotency,
    _agents,
)
_OF_MODEL: Final[tuple[Callable[[FleetFile, ModelSection], Found], ...]] = (
    _one_place,
    _blind_canary,
    _long_waits,
    _mutable_revision,
)


def _zones(model: ModelSection) -> list[str]:
    if model.launch is not None:
        return list(model.launch.zones)
    return sorted({endpoint.zone for endpoint in model.endpoints})


def _count(model: ModelSection) -> int:
    return model.launch.replicas if model.launch is not None else len(model.endpoints)


# --- a running fleet ------------------------------------------------------------------------------


def check_running(status: Mapping[str, Any], incidents: list[Mapping[str, Any]]) -> list[Advice]:
    """Advice from the status page and the open incidents of a running fleet."""
    found: list[Advice] = []
    for problem in status.get("config_problems") or ():
        fix = "mend the file; until then the last good one runs"
        found.append(Advice(AdviceLevel.ERROR, "the fleet file", f"was refused: {problem}", fix))
    found.extend(_gateways(status))
    found.extend(_replicas(status.get("replicas") or []))
    found.extend(_store(status.get("store") or {}))
    found.extend(_incident(one) for one in incidents if one.get("stage") != "closed")
    for model in status.get("panic") or ():
        told = "has too few replicas that are well, so all are tried (panic)"
        found.append(Advice(AdviceLevel.ERROR, f"model {model}", told, "see its incidents"))
    for model, names in (status.get("breakers_overruled") or {}).items():
        told = f"has users' failures on most replicas; still tried: {', '.join(names)}"
        fix = "see its incidents; without any, a tenant's requests fail by themselves"
        found.append(Advice(AdviceLevel.WARNING, f"model {model}", told, fix))
    return _sorted(found)


def check_token_file(path: str, *, exposed: bool) -> list[Advice]:
    """Advice about the token of a state directory, which opens the admin port of this machine."""
    if not exposed:
        return []
    told = "can be read by others than its owner, and opens the admin port with all roles"
    fix = "start the fleet anew: it makes another that only its owner can read"
    return [Advice(AdviceLevel.ERROR, path, told, fix)]


def secret_paths(file: FleetFile) -> list[Path]:
    """The files with secrets that a fleet file names: keys, tokens and private keys of TLS."""
    named: list[Path | None] = [*file.secret_files]
    ports = (file.gateway.tls, file.admin.tls, file.control.tls)
    for section in (*ports, *(model.tls for model in file.models)):
        named += [section.key] if section is not None else []
    named += [model.api_key_file for model in file.models]
    return list(dict.fromkeys(path for path in named if path is not None))


def check_secret_files(exposed: Iterable[Path]) -> list[Advice]:
    """Advice about files with secrets that every user of this machine can read."""
    told = "holds a secret, and every user of this machine can read it"
    fix = "chmod o-r (of a secret volume: defaultMode: 0440), and rotate it if others log in here"
    return [Advice(AdviceLevel.NOTE, str(path), told, fix) for path in exposed]


def _gateways(status: Mapping[str, Any]) -> Found:
    gateways = status.get("gateways") or []
    if not gateways:
        fix = "look at the log of 'holdfast serve'"
        yield Advice(AdviceLevel.ERROR, "gateways", "none is connected to control", fix)
    epochs = Counter(one.get("epoch") for one in gateways)
    if len(epochs) > 1:
        told = f"run {len(epochs)} different configs at once"
        fix = "restart those that refused the last one; 'holdfast status --json' says why"
        yield Advice(AdviceLevel.ERROR, "gateways", told, fix)
    for one in status.get("processes") or ():
        if one.get("condition") in {"late", "stopped", "stuck", "traced"}:
            told = f"has been {one['condition']} for {one.get('for_s', 0):.0f} s (pid {one['pid']})"
            fix = "see who stops or starves it: 'holdfast incidents' names the cause"
            if one.get("name") == "supervisor":
                fix = f"nobody replaces it, nor others meanwhile: kill -CONT {one['pid']}"
            yield Advice(AdviceLevel.ERROR, str(one.get("name")), told, fix)
    if len(gateways) == 1:
        told = "there is one process: clients see a reset if it dies"
        yield Advice(AdviceLevel.NOTE, "gateways", told, "set gateway.workers to 2 or more")


def _replicas(rows: list[Mapping[str, Any]]) -> Found:
    by_model: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_model.setdefault(str(row.get("model")), []).append(row)
    for model, mine in by_model.items():
        revisions = sorted({str(row.get("revision")) for row in mine})
        if len(revisions) > 1:
            told = f"serves {len(revisions)} revisions at once: {', '.join(revisions)}"
            fix = "finish the rollout or take it back: answers depend on who gives them"
            yield Advice(AdviceLevel.WARNING, f"model {model}", told, fix, (Cause.VERSION_SKEW,))
        ready = [row for row in mine if row.get("state") == "ready"]
        if len(mine) > 1 and len(ready) == 1:
            told = f"lives on one ready replica of {len(mine)}"
            yield Advice(AdviceLevel.WARNING, f"model {model}", told, "see 'holdfast incidents'")
        if len(ready) > 1 and len({row.get("zone") for row in ready}) == 1:
            told = f"is ready in one zone only, {ready[0].get('zone')}"
            fix = "look why the other zones have none"
            yield Advice(AdviceLevel.WARNING, f"model {model}", told, fix, (Cause.UNREACHABLE,))
    for row in rows:
        canary = row.get("canary") or {}
        if canary.get("verdict") in _UNSETTLED:
            told = (
                f"nobody knows whether its answers are right: {canary.get('detail') or 'unknown'}"
            )
            fix = "write the right answer under models[].canary.expect"
            yield Advice(
                AdviceLevel.WARNING, f"replica {row.get('id')}", told, fix, (Cause.WRONG_OUTPUT,)
            )


def _store(store: Mapping[str, Any]) -> Found:
    problem = store.get("problem")
    if problem:
        fix = "free the disk: after a restart control would not know its replicas"
        yield Advice(AdviceLevel.ERROR, "the state store", f"cannot be written: {problem}", fix)


def _incident(one: Mapping[str, Any]) -> Advice:
    told = f"is open: {one.get('title')}"
    fix = str(one.get("fix") or f"run 'holdfast explain {one.get('id')}'")
    causes = tuple(cause for cause in Cause if cause.value == one.get("cause"))
    return Advice(AdviceLevel.ERROR, f"incident {one.get('id')}", told, fix, causes)


def _sorted(found: list[Advice]) -> list[Advice]:
    order = list(AdviceLevel)
    return sorted(found, key=lambda advice: order.index(advice.level))


__all__ = [
    "Advice",
    "AdviceLevel",
    "OpenedLink",
    "check_file",
    "check_gpus",
    "check_link_secret",
    "check_machine",
    "check_running",
    "check_secret_files",
    "check_token_file",
    "launches_on_gpus",
    "links_of",
    "secret_paths",
]
