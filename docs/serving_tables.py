"""What clients and operators of a gateway meet, taken from the code that does it.

Names come from running the code or from reading its syntax; what each means is said here. A name
without a meaning, or a meaning without a name, ends the generation: neither can go stale unseen.
"""

# ruff: noqa: INP001 - beside the script that uses it, not in a package

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import msgspec
from config_keys import first_paragraph, meaning_of, table

import holdfast.gateway
from holdfast.config.admin import AdminConnectionConfig
from holdfast.config.fleet_file import AdminSection
from holdfast.control.access.admin_access import AdminAccess
from holdfast.control.access.audit import AuditLog
from holdfast.control.admin.connections import AdminConnections
from holdfast.control.admin.openapi import openapi_document
from holdfast.control.admin.service import AdminService
from holdfast.control.deploy import source
from holdfast.control.deploy.demand_tracker import DemandTracker
from holdfast.control.deploy.deployments import Deployments
from holdfast.control.fleet.figures import Figures
from holdfast.control.gateways.metrics import Totals
from holdfast.control.gateways.process_report import ProcessReport, ProcessRow
from holdfast.control.gateways.serving_processes import ServingProcesses
from holdfast.control.incidents.gpu_watch import GpuWatch
from holdfast.control.incidents.incident_tracker import IncidentTracker
from holdfast.control.incidents.incident_watch import IncidentWatch
from holdfast.control.incidents.notifier import Notifier
from holdfast.control.incidents.own_shortages import OwnShortages
from holdfast.control.process import Control
from holdfast.control.view.agents import AgentInbox
from holdfast.control.view.costs import Costs
from holdfast.control.view.exporter_feed import memory_gauges
from holdfast.control.view.live_view import LiveView
from holdfast.control.view.source_poller import PolledSource, SourcePoller
from holdfast.core.diagnose.evidence import Sign, Stage
from holdfast.core.diagnose.facts import InferencesSeen
from holdfast.core.failure import Cause, Class, Kind
from holdfast.core.gpu import GpuDevice, use_of
from holdfast.core.health.control_silence import ControlSilence, ControlSilenceConfig
from holdfast.core.health.process_watch import Condition
from holdfast.core.intake.byte_budget import ByteBudget, ByteBudgetConfig
from holdfast.core.intake.shortages import Shortages
from holdfast.core.messages import Finish, LoadReported
from holdfast.core.plan.cost import Prices
from holdfast.core.plan.faults import REPLICA_KINDS, FaultKind
from holdfast.core.request.admission import refusals
from holdfast.core.request.admission.fairness import TokenCounters
from holdfast.core.request.admission.queue import FairQueue, QueueConfig
from holdfast.core.request.admission_desk import (
    DEADLY,
    ERROR_DEFAULT,
    ERRORS,
    GONE,
    HOLDER_BUSY,
    LOST,
    NOT_SERVED,
    UNREAD,
)
from holdfast.core.request.answer_policy import NOT_SERVED_STATUSES
from holdfast.core.request.idempotency.key_policy import IdempotencyConfig
from holdfast.core.types import SECOND
from holdfast.core.view.layers import Reading
from holdfast.core.view.snapshot import ReplicaRow, Snapshot
from holdfast.exporters.delivery import Delivery
from holdfast.gateway.api import errors, jsontext, routes
from holdfast.gateway.control_report import ControlReport
from holdfast.gateway.http import syntax
from holdfast.gateway.http.client_port import handshake_counters
from holdfast.gateway.request.idempotency.keyed_requests import KeyedRequests
from holdfast.gateway.request.idempotency.recorded_answers import RecordedAnswers
from holdfast.gateway.telemetry.counters import SERIES_MAX, Counters
from holdfast.gateway.telemetry.demand import DemandGauges
from holdfast.sources.batch_process import BatchSource
from holdfast.sources.nvml import Gpu
from holdfast.testing.standin.faults import SocketKind
from holdfast.testing.store import MemoryStore

_GATEWAY: Final = Path(holdfast.gateway.__path__[0])


def _complete(what: str, found: Iterable[str], said: Iterable[str]) -> None:
    """Refuse a table that misses a name of the code, or has one that the code lacks."""
    here, there = set(said), set(found)
    if there - here:
        raise SystemExit(f"{what} without a meaning: {', '.join(sorted(there - here))}")
    if here - there:
        raise SystemExit(f"{what} that the code does not know: {', '.join(sorted(here - there))}")


# --- errors ---------------------------------------------------------------------------------------

# Errors that are raised before the flow sees a request, by code.
_EARLY: Final = {
    "body_timeout": "an upload came too slowly: 32 KB a second beyond its first minute is enough",
    "batches_unavailable": "the process of files and batches restarts, or has too many at once",
    "expired_api_key": "the key is known, and its `expires` has passed",
    "weak_api_key": "the key is known, and has fewer than 8 characters",
    "deadline_exceeded": "a duplicate waited for the first request with its idempotency key",
    "idempotency_answer_gone": "it was executed, and its answer is [not kept](../idempotency.md)",
    "idempotency_key_reused": "its idempotency key was used with another request",
    "idempotency_keys_exhausted": "its tenant holds as many idempotency keys as it may",
    "idempotency_outcome_unknown": "its gateway died, and it may have acted: not executed again",
    "idempotency_stream_interrupted": "as an event: the gateway that produced the stream died",
    "idempotency_unavailable": "the store of idempotency keys does not answer",
    "invalid_idempotency_key": "the header is empty, too long, sent twice or has odd characters",
    "invalid_api_key": "no key, two different ones, or one that is not known",
    "invalid_form": "a form that is not read the same way by everybody",
    "invalid_json": "the body is not JSON, not UTF-8, not an object, or nested too deeply",
    "invalid_value": "a member of the wrong type or beyond its limit; `param` names it",
    "method_not_allowed": "the path exists; `allow` says for which method",
    "missing_required_parameter": "a member is missing; `param` names it",
    "model_not_found": "no such model, or not for this tenant: the two look the same",
    "request_blocked": "replicas died of this very request: see "
    "[requests that end replicas](../serving.md#requests-that-end-replicas)",
    "response_not_found": "no response of this id was given to this tenant",
    "unknown_url": "nothing is at this path",
    "media_refused": "a picture, sound or file that an engine would fetch where it must not: "
    "`param` names the member, see [security](../security.md#what-engines-are-sent-for)",
    "unsupported_media_type": "a body that is neither JSON nor, for audio, a form",
}


def client_errors_table() -> str:
    """Every error in OpenAI's shape: status, type, code, when, and what the client is told."""
    when: dict[tuple[int, str], list[str]] = {}
    for status, code, said in (*_early(), *_refusals(), *_failures()):
        when.setdefault((status, code), []).append(said)
    rows = [_error_row(status, code, "; ".join(said)) for (status, code), said in when.items()]
    rows.sort(key=lambda row: (row[0], row[2]))
    return table(("status", "type", "code", "when", "come back?"), rows)


def _early() -> Iterator[tuple[int, str, str]]:
    raised = dict(_raised())
    _complete("error codes", raised, _EARLY)
    for code, status in raised.items():
        yield status, code, _EARLY[code]


def _raised() -> Iterator[tuple[str, int]]:
    """Codes that some module of the gateway writes down, with their status."""
    for path in sorted(_GATEWAY.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            given = {str(number): value for number, value in enumerate(node.args)}
            given |= {word.arg or "": word.value for word in node.keywords}
            if node.func.id == "invalid":
                yield _text(given.get("2") or given.get("code")) or "invalid_value", 400
            elif node.func.id == "ApiError":
                status, code = given.get("0"), _text(given.get("2"))
                if isinstance(status, ast.Constant) and code:
                    yield code, int(str(status.value))


def _text(node: ast.expr | None) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ""


def _refusals() -> Iterator[tuple[int, str, str]]:
    for name in refusals.__all__:
        built = getattr(refusals, name)
        if inspect.isfunction(built) and built.__annotations__.get("return") is refusals.Refusal:
            parameters = inspect.signature(built).parameters.values()
            called = built(*("" if p.annotation is str else 1 for p in parameters))
            yield called.status, called.code, _sentence(first_paragraph(built))


def _sentence(text: str) -> str:
    """The gist of a docstring's sentence, as a part of one."""
    gist = text.partition(";")[0].rstrip(".")
    return f"{gist[0].lower()}{gist[1:]}"


def _failures() -> Iterator[tuple[int, str, str]]:
    by_answer: dict[tuple[int, str], list[str]] = {}
    for kind, answer in ERRORS.items():
        by_answer.setdefault(answer, []).append(f"`{kind.value}`")
    for (status, code), kinds in by_answer.items():
        if status != 499:  # nobody is there to be told
            yield status, code, f"an attempt ended in {', '.join(kinds)}"
    yield *ERROR_DEFAULT, "an attempt failed in any other way"
    yield *DEADLY, "the connection died under it on two replicas"
    yield *UNREAD, "a prompt of 2,048 tokens or more had no first token by the request's deadline"
    for status in sorted(NOT_SERVED_STATUSES):
        yield status, NOT_SERVED, "the engines of the model do not have what this path asks for"
    yield *GONE, "the replica that kept the response is gone, or keeps it no more"
    yield 503, HOLDER_BUSY, "the replica that keeps the response took no request in time"
    yield *LOST, "told to the batch process alone: the connection died under it"


def _error_row(status: int, code: str, when: str) -> tuple[str, ...]:
    error = errors.from_code(status, code, "", 1.0)
    lines = errors.error_headers(error)
    again = "the client's own policy"
    if b"x-should-retry: true" in lines:
        again = "yes, after `retry-after`"
    elif b"x-should-retry: false" in lines:
        again = "no"
    return str(status), f"`{error.type}`", f"`{code}`", when, again


def refusals_table() -> str:
    """What a connection is told that cannot be understood, or not be served."""
    rows = []
    for refusal in sorted(syntax.REFUSALS, key=lambda one: one.status):
        kind = msgspec.json.decode(refusal.body)["error"]["type"]
        rows.append((str(refusal.status), f"`{kind}`", f"`{refusal.code}`", refusal.message))
    return table(("status", "type", "code", "message"), rows)


# --- headers --------------------------------------------------------------------------------------

_HEADERS: Final = {
    "x-request-id": "on every answer but those in the next table: the id for `holdfast explain`, "
    "and `error.request_id` in an error",
    "x-holdfast-replica": "the replica that answered, or began to; not on errors",
    "x-holdfast-attempts": "how many attempts it took so far; more than 1: a retry, a hedge or a "
    "continuation",
    "x-holdfast-degraded": "a lower rung of a ladder answered: the name of that model",
    "x-holdfast-capped": "a ladder bounded the answer by so many tokens, fewer than were asked "
    "for; one that reaches them ends with `length`",
    "x-holdfast-continued": "how often the answer was continued elsewhere; only where the whole "
    "answer was known before the headers went out, otherwise the stream's last chunk says it",
    "x-holdfast-model": "the model that a virtual name led to",
    "idempotent-replayed": "`true`: the answer of an earlier request with the same "
    "[idempotency key](../idempotency.md)",
    "x-ratelimit-limit-requests": "what this gateway's part of the quota holds at most",
    "x-ratelimit-remaining-requests": "what is left of it here",
    "x-ratelimit-reset-requests": "how long until it is full again, such as `6m0s` or `12ms`",
    "x-ratelimit-limit-tokens": "the same in tokens",
    "x-ratelimit-remaining-tokens": "the same in tokens",
    "x-ratelimit-reset-tokens": "the same in tokens",
    "retry-after": "on 429 and 503: whole seconds, rounded up, at least 1",
    "retry-after-ms": "the same in milliseconds; OpenAI's SDKs read it first",
    "x-should-retry": "`true` on 429 and 503, `false` on 501 and other 4xx but 408; OpenAI's SDKs "
    "obey it before anything else",
}
_OF_REQUESTS: Final = {  # of clients, and of the batch process to gateways
    "x-holdfast-degrade",
    "x-holdfast-runner",
    "x-holdfast-tenant",
    "x-holdfast-priority",
}
_HEADER: Final = re.compile(
    r"\b(x-(?:request|holdfast|should)(?:-[a-z]+)+|retry-after(?:-ms)?|idempotent-replayed)\b"
)


def headers_table() -> str:
    """The response headers that are ours."""
    found: set[str] = set()
    for path in _GATEWAY.rglob("*.py"):
        found.update(_HEADER.findall(path.read_text(encoding="utf-8")))
    numbers = {f"{what}_{kind}": 1.0 for kind in ("requests", "tokens") for what in _LIMITS}
    numbers |= {f"reset_{kind}_s": 1.0 for kind in ("requests", "tokens")}
    lines = errors.rate_limit_headers(numbers).decode().split("\r\n")
    found.update(line.partition(":")[0] for line in lines if line)
    _complete("response headers", found - _OF_REQUESTS, _HEADERS)
    return table(
        ("header", "what it says"), [(f"`{name}`", said) for name, said in _HEADERS.items()]
    )


_LIMITS: Final = ("limit", "remaining")

# --- paths ----------------------------------------------------------------------------------------

_BATCHES: Final = (
    (
        "`/v1/files`, `/v1/files/{id}`, `/v1/files/{id}/content`",
        "GET, POST, DELETE",
        "files of [batches](../batch.md), where `batch.enabled` is set",
    ),
    (
        "`/v1/batches`, `/v1/batches/{id}`, `/v1/batches/{id}/cancel`",
        "GET, POST",
        "batches, likewise",
    ),
)
_RESPONSES: Final = (
    (
        "`/v1/responses/{id}`, `/v1/responses/{id}/input_items`",
        "GET, DELETE",
        "a response, of [the replica that keeps it](../serving.md#answers-that-an-engine-keeps)",
    ),
    ("`/v1/responses/{id}/cancel`", "POST", "likewise"),
)
_PROBES: Final = (
    ("`/livez`", "GET", "the process turns; no key is asked for"),
    ("`/readyz`", "GET", "it accepts, has a fleet view and is not draining: 200, else 503"),
    ("`/readyz/{model}`", "GET", "a replica of this model may be chosen: 200, else 503"),
)


def paths_table() -> str:
    """What can be asked of the data port."""
    rows = []
    for path, route in routes.ROUTES.items():
        rows.append((f"`{path.decode()}`", route.method.decode(), _about(route)))
    for example in (b"/v1/models/m", b"/v2/models/m/infer"):
        method = b"GET" if example.startswith(b"/v1") else b"POST"
        route = routes.find(method, example)
        shown = example.decode().replace("/m", "/{model}").replace("{model}odels", "models")
        rows.append((f"`{shown}`", method.decode(), _about(route)))
    return table(("path", "method", "what it is"), [*rows, *_RESPONSES, *_BATCHES, *_PROBES])


def _about(route: routes.Route) -> str:
    if route.lists_models:
        one = route.api is routes.Api.MODEL
        return "one model, if this key may use it" if one else "the models that this key may use"
    said = {routes.BodyKind.JSON: "JSON", routes.BodyKind.MULTIPART: "a form with a file"}
    streams = "; may be streamed" if route.streams else ""
    model = "; the model is in the path" if route.model_in is routes.ModelIn.PATH else ""
    return f"{said[route.body]}{streams}{model}"


def removed_members() -> str:
    """Members of a request that no engine gets to see."""
    names = [f"`{name}`" for name in sorted(jsontext._UNWANTED)]  # noqa: SLF001 - said nowhere else
    begins = [f"`{begin}…`" for begin in jsontext._UNWANTED_PREFIXES]  # noqa: SLF001 - as above
    return f"{', '.join(names)}; and all that begin with {', '.join(begins)}"


def admin_table() -> str:
    """What can be asked and ordered at the operators' port, from its own description."""
    rows = [
        (f"`{path}`", method.upper(), operation["summary"])
        for path, operations in openapi_document()["paths"].items()
        for method, operation in operations.items()
    ]
    return table(("path", "method", "what it says or does"), rows)


def fixed_settings() -> str:
    """The settings that a reload refuses to change."""
    return "\n".join(f"- `{name}`" for name in source._FIXED)  # noqa: SLF001 - said nowhere else


# --- metrics --------------------------------------------------------------------------------------

_METRICS: Final = {
    "requests_total": "requests that ended, by the model that served them and the status",
    "gen_ai_server_request_duration_seconds": "from arrival to the end of the answer, by model "
    "and status",
    "gen_ai_server_time_to_first_token_seconds": "from arrival until a client is shown the "
    "beginning of a streamed answer",
    "gen_ai_server_time_per_output_token_seconds": "of a streamed answer, its mean: between its "
    "first and its last token, as its client saw it",
    "gen_ai_client_operation_duration_seconds": "of an attempt on a replica, by outcome: `ok`, or "
    "`failed`, which includes those that were called back",
    "gen_ai_client_time_to_first_chunk_seconds": "of an attempt that streamed to its end, until "
    "its first content",
    "gen_ai_client_time_per_output_chunk_seconds": "between two chunks of such an attempt, its "
    "mean",
    "gen_ai_client_token_usage": "tokens of an attempt, by type: `input` (prompt), `output` "
    "(answer)",
    "tokens_total": "tokens by tenant, model, route (a virtual name or `direct`), use and type; "
    "see [cost](../operating/cost.md)",
    "gpu_seconds_total": "GPU-seconds by model and what they were for: a use, `idle` or `starting`",
    "gpu_cost_total": "what these cost by the fleet file's prices",
    "attempt_seconds_total": "how long attempts on a replica took, one after the other",
    "attempts_total": "attempts that ended, by replica and kind: `ok`, or a kind of "
    "[failure](failures.md)",
    "extra_attempts_total": "attempts beyond the first that were not continuations",
    "continuations_total": "answers that went on elsewhere",
    "escalations_total": "cheap answers that failed a check, by virtual name and check",
    "comparisons_total": "answers asked of a second replica too, by model and result: `agreed`, "
    "`disagreed`, `unanswered`",
    "idempotency_requests_total": "requests with an [idempotency key](../idempotency.md), by what "
    "became of them: `executed`, `joined`, `replayed`, `taken_over`, or why not",
    "idempotency_store_failures_total": "calls of the store of idempotency keys that failed",
    "quota_refusals_total": "requests beyond their tenant's quota, by tenant and code",
    "refused_total": "requests refused before they were admitted, by status and code",
    "hook_errors_total": "calls of a rule's hook that raised or returned nonsense, by hook",
    "connection_refusals_total": "connections turned away or given up, by reason",
    "handshakes_failed_total": "TLS handshakes that were not completed, by how: `failed` (or too "
    "slow) or `evicted` for others",
    "shortages_total": "times that a gateway or control lacked something of its own: "
    "`descriptors`, `memory` or `ports`",
    "admin_connections_closed_total": "connections of the admin port that were closed because they "
    "stood still, by what for",
    "series_overflow_total": "counts that found no room for their own series",
    "engine_inferences_total": "requests that ended in an inference server since its start, by "
    "model, replica and outcome, as it counts them; it begins anew with its process",
    "engine_pending_requests": "requests that wait in an inference server for their execution",
    "engine_queue_seconds": "mean wait of a request in an inference server's queue, in the last "
    "minute",
    "engine_compute_seconds": "mean time of a request in its execution, in the last minute",
    "engine_batch_size": "inferences for each execution of the model, in the last minute",
    "engine_failed_ratio": "share of what ended in an inference server that failed, in the last "
    "minute",
    "engine_gpu_memory_used_bytes": "memory in use on an inference server's devices, by its own "
    "word, with what others use there",
    "engine_gpu_memory_total_bytes": "memory of these devices",
    "engine_gpu_busy_ratio": "share of the time that they compute, the mean of them",
    "engine_model_gpu_bytes": "GPU memory of one model alone, where its backend tells",
    "requests_in_flight": "requests under way, of all gateways",
    "connections_open": "client connections, of all gateways",
    "connections_new": "of them, those that have brought no whole request head yet",
    "held_bytes": "bodies of requests under way and answers that are not read, of all gateways",
    "receiving_bytes": "bodies that are not complete, of all gateways",
    "idempotency_waiting": "requests with an idempotency key under way, of all gateways",
    "idempotency_answers_held": "answers to such requests in the memory of gateways",
    "idempotency_answer_bytes": "the size of these",
    "idempotency_stores_down": "gateways that cannot reach their store of idempotency keys",
    "gateway_ready": "1: this gateway accepts requests",
    "gateway_silent_seconds": "since control heard of this gateway; it tells once a second",
    "serving_processes_replaced_total": "gateway processes and controls that the supervisor killed "
    "and replaced, by what was seen: `stopped` or `stuck`",
    "serving_process_late_seconds": "how long a gateway process or control has been late, stopped "
    "or under a debugger, as the supervisor sees it, and the supervisor, as control sees it; 0: it "
    "is well",
    "control_frames_refused_total": "frames of controls that lead no more, refused by gateways",
    "control_silences_total": "times that a gateway had heard nothing of control for seconds",
    "control_silent_seconds_total": "how long these lasted, of all gateways",
    "gateway_epoch": "the config that this gateway runs",
    "gateways": "gateway processes that are connected",
    "config_epoch": "the config that control runs; grows with each accepted file",
    "config_refused_total": "files that were refused",
    "replicas": "replicas by model and state",
    "replica_share": "how much of its weight a replica gets: 0 none, 1 all",
    "replica_inflight": "requests on it, of all gateways",
    "replica_waiting": "requests that wait inside this replica's engine, where it tells",
    "replica_kv_used": "share of its KV cache in use, 0 to 1, where its engine tells",
    "desired_replicas": "how many a launched model should have now, for HPA or KEDA to follow",
    "active_requests": "requests that ran or ended within the last second",
    "queued_requests": "requests that wait at the gateways",
    "queued_tokens": "what these ask for: prompts, and answers at their longest",
    "tokens_per_second": "of prompts and answers, over half a minute; absent while not known",
    "first_token_p95_seconds": "of streams in the last minute, the worst of all gateways; absent "
    "below 20 streams",
    "model_memory_used_ratio": "share of memory that requests fill, 0 to 1: of the KV cache where "
    "engines tell, else of the GPUs of replicas whose memory goes with their work; for HPA or KEDA "
    "to follow",
    "replica_gpu_memory_used_ratio": "share of the GPU memory it could have that a replica holds, "
    "0 to 1; not of engines that take their memory at the start",
    "replica_gpu_memory_held_bytes": "what a replica itself holds of its GPUs, where that is known",
    "replica_gpu_memory_used_bytes": "what is used on a replica's GPUs, by whomever",
    "replica_gpu_memory_total_bytes": "memory of a replica's GPUs",
    "replica_gpu_utilisation_ratio": "share of time in which a replica's GPUs did anything, 0 to 1",
    "replica_gpu_temperature_celsius": "of a replica's hottest GPU",
    "replica_gpu_power_watts": "what a replica's GPUs draw together",
    "replica_gpu_ecc_uncorrected": "memory errors of a replica's GPUs that could not be corrected, "
    "since their driver was loaded",
    "replica_gpu_xid": "the fault that a driver reported last of a replica's GPUs",
    "replica_gpu_throttled": "1: a replica's GPU is slowed by heat or by its power supply",
    "early_warnings": "filesystems and GPUs that are three quarters full, and no incident yet",
    "gpu_memory_used_bytes": "of a GPU of this host",
    "gpu_memory_total_bytes": "of a GPU of this host",
    "gpu_utilisation_ratio": "share of time in which a GPU did anything at all, 0 to 1",
    "gpu_temperature_celsius": "of a GPU of this host",
    "gpu_power_watts": "what a GPU draws",
    "gpu_ecc_uncorrected_total": "memory errors of a GPU that could not be corrected",
    "incidents_open": "failures that are not over, by class and cause",
    "incidents_total": "failures found since this control began",
    "evidence_total": "signs of failures that detectors saw, by sign",
    "facts_total": "observations that detectors were given",
    "facts_dropped_total": "observations that came faster than they could be judged",
    "facts_reported_total": "of them, those that came through `POST /facts`",
    "admin_sign_ins_failed_total": "wrong tokens, codes and links at the admin port",
    "admin_sign_ins_limited_total": "tries that were refused unseen, after too many wrong ones",
    "admin_orders_total": "rows of the audit trail: orders, also refused ones",
    "admin_orders_unrecorded_total": "of them, those that the store had no room for",
    "admin_sessions": "browsers that are signed in",
    "agent_reports_total": "reports of agents that were taken",
    "agent_reports_refused_total": "reports of agents that were refused: name, size, pace, form",
    "agent_claims_refused_total": "rows and events in reports about another agent's host or "
    "replica; left out",
    "fact_reports_refused_total": "reports of which nothing was taken",
    "investigation_errors_total": "mistakes inside detectors; each cost one observation",
    "notifications_total": "messages to hooks, by what became of them: `sent`, `failed` (given up) "
    "or `dropped` (its queue was full)",
    "source_reads_total": "readings of a platform, by source",
    "source_failures_total": "of them, those in which something could not be read",
    "source_calls_total": "calls to the platform that these took",
    "source_seconds_total": "how long these took",
    "source_age_seconds": "how old the oldest part of the last reading is",
    "source_parts_failing": "parts of the last reading that could not be read; above 0 it is blind",
    "batch_items_waiting": "lines of batches that wait to be sent, by model",
    "batch_items_delayed": "lines that pause before they are tried again",
    "batch_items_in_flight": "lines that are being answered",
    "batch_dead_letters": "lines that were given up; `holdfast queue` shows why",
    "batch_oldest_seconds": "how long the oldest line that has not ended has waited",
    "batch_drain_seconds": "until all lines have ended, at the rate of the last minute",
    "batches_open": "batches that have not ended, by state",
    "consumed_messages_waiting": "messages that wait in a queue that others fill, by queue",
    "consumed_messages_in_flight": "messages of it that somebody has received",
    "consumed_messages_held": "of them, those that this process has received and not ended",
    "consumed_dead_letters": "its dead letters, in its platform's own queue where there is one",
    "consumed_oldest_seconds": "how long its oldest message has waited, where that is known",
    "consumed_drain_seconds": "until it is worked off, at the rate of the last minute",
    "views_joined_total": "joined views that were built",
    "views_failed_total": "mistakes while one was built; the last one stays",
    "view_listeners": "clients that follow the view",
    "view_listeners_refused_total": "clients turned away, because so many follow it already",
    "view_listeners_dropped_total": "clients let go, because they did not read",
    "books_errors_total": "mistakes while costs were added up or figures were handed on",
    "traces_dropped_total": "traced requests that found no room at a gateway",
    "exports_total": "points and traces for exporters, by what became of them: `sent`, `failed` or "
    "`dropped` (no room)",
    "history_series": "series of the history",
    "history_points_waiting": "points that are not written yet",
    "history_points_dropped_total": "points that found no room, because the disk is slow",
    "history_points_refused_total": "points of series beyond the bound",
    "history_write_failures_total": "writes that failed; what was in them is tried again or lost",
    "metrics_series_left_out": "series beyond what control keeps",
}
_TYPE: Final = re.compile(r"^# TYPE holdfast_(\w+) (\w+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="')


def metrics_table() -> str:
    """Every metric, from a scrape of a control that was told one of each."""
    text = _scrape()
    kinds = dict(_TYPE.findall(text))
    _complete("metrics", kinds, _METRICS)
    rows = []
    for name, said in _METRICS.items():
        sample = re.search(rf"^holdfast_{name}(?:_bucket)?(\{{.*?\}})? ", text, re.MULTILINE)
        labels = _LABEL.findall(sample[1] or "") if sample else []
        shown = ", ".join(f"`{label}`" for label in labels if label != "le")
        rows.append((f"`holdfast_{name}`", kinds[name], shown, said))
    return table(("metric", "type", "labels", "what it is"), rows)


def _scrape() -> str:
    """What control would answer to Prometheus, of a gateway that saw one of each."""
    told = _told_by_a_gateway()
    gateway = SimpleNamespace(
        counters=told.counters,
        gauges=told.gauges,
        name="gateway-0",
        serves=True,
        silent_s=0.1,
        epoch=1,
    )
    replica = {"id": "m-1", "model": "m", "state": "ready", "share": 1.0, "inflight": 0}
    hub, demands, gpus = SimpleNamespace(gateways={gateway.name: gateway}), DemandTracker(), _gpus()
    deployments = SimpleNamespace(gauges=_deployments_say)
    demands.loads([LoadReported("m", "m-1", None, 1, 0.5)])
    lacked = OwnShortages(lambda _: None)
    lacked.port_counters = AdminConnections(AdminConnectionConfig()).counters
    control: Any = SimpleNamespace(
        _hub=hub,
        _totals=Totals(),
        _deployments=deployments,
        _demand_tracker=demands,
        _gpus=gpus,
        _lookout=SimpleNamespace(
            gauges=lambda: _inference_series()[1],
            device_memory=lambda _now: {"m-1": 0.5},
        ),
        lacked=lacked,
        view=SimpleNamespace(snapshot=_gpu_snapshot),
    )
    sampler = SimpleNamespace(history=SimpleNamespace(snapshot=Counter))
    admin = AdminSection()
    parts: Any = SimpleNamespace(
        access=AdminAccess(lambda: admin, audit=AuditLog(MemoryStore())),
        hub=hub,
        totals=control._totals,  # noqa: SLF001 - as above
        source=SimpleNamespace(refused=0),
        loop=SimpleNamespace(replicas=lambda: [replica]),
        lookout=SimpleNamespace(metrics=_incidents_say),
        costs_and_exports=_costs_and_exports(),
        source_poller=SimpleNamespace(
            metrics=_sources_say, sources={"agents": AgentInbox(), "batches": _batches()}
        ),
        view=SimpleNamespace(metrics=_view_says),
        serving_processes=SimpleNamespace(metrics=_supervisor_says),
        epoch=lambda: 1,
        sampler=lambda: sampler,
        counters=lambda: Control._counters(control),  # noqa: SLF001 - as above
        load_gauges=lambda: Control._load_gauges(control),  # noqa: SLF001 - as above
    )
    return AdminService(parts).metrics()


def _gpu_snapshot() -> Snapshot:
    """Of a replica on a GPU which says everything."""
    device = GpuDevice(
        "GPU-a", 0, "", 1, 2, 0.5, 60, 87, 300, ecc_uncorrected=0, throttle=(), xid=1
    )
    row = ReplicaRow("m-1", "m", "ready", routed=True, gpu=use_of((device,), (1,)))
    return Snapshot(0.0, replicas=(row,))


def _sources_say() -> tuple[dict[str, float], dict[str, float]]:
    """Of one that was read."""
    read = Reading("aws", "aws", 0.0)
    watch = PolledSource("aws", "aws", reads=1, calls=1, seconds=0.1, reading=read)
    source_poller: Any = SimpleNamespace(_wall=lambda: 0.0, _watches={"aws": watch})
    return SourcePoller.metrics(source_poller)


def _batches() -> BatchSource:
    """Of one model with everything."""
    source = BatchSource(Path("/none"))
    told = dict.fromkeys(("waiting", "delayed", "in_flight", "dead", "oldest_s", "drain_s"), 1)
    consumer = {**told, "held": 1, "queue": "q", "model": "m"}
    said = {"models": {"m": told}, "batches": {"in_progress": 1}, "consumers": [consumer]}
    source._last = said  # noqa: SLF001 - as above
    return source


def _supervisor_says() -> tuple[dict[str, float], dict[str, float]]:
    """Of one gateway process that is well."""
    row = ProcessRow("gateway-0", 1, Condition.TURNING.value, 0.0)
    processes = ServingProcesses(Path("/none"), MemoryStore(), lambda _fact: None, lambda: 0.0)
    processes._report = ProcessReport("supervisor", [row])  # noqa: SLF001 - as above
    return processes.metrics()


def _view_says() -> tuple[dict[str, float], dict[str, float]]:
    view: Any = SimpleNamespace(built=0, errors=0, refused=0, dropped=0, listeners=0)
    return LiveView.metrics(view)


def _costs_and_exports() -> Any:
    """Of a fleet that has begun to cost something, and tells somebody of it."""
    costs = Costs(Prices())
    costs.look([{"id": "m-1", "model": "m", "state": "ready", "inflight": 0}], {}, 0)
    sent: Any = SimpleNamespace(name="traces", sent=0, failed=0, dropped=0)
    counters = {**costs.counters(), **Delivery.counters(sent), "books_errors_total": 0}
    cache = {'replica_kv_used{model="m",replica="m-1"}': 0.5}
    gauges = memory_gauges(cache, [{"model": "m"}])
    return SimpleNamespace(metrics=lambda: (counters, gauges))


def _incidents_say() -> tuple[dict[str, float], dict[str, float]]:
    """Of one that has found something."""
    incident: Any = SimpleNamespace(failure_class=Class.RUNTIME, cause=Cause.LEAK, stage=Stage.OPEN)
    seen: Any = SimpleNamespace(evidence_seen={Sign.MEMORY_LEAKS: 1}, incidents={"": incident})
    incidents: Any = SimpleNamespace(
        _investigation=seen,
        _unclosed=lambda: [incident],
        _earlier_evidence={},
        _notifier=Notifier({}),
        opened={("runtime", "leak"): 1},
        facts_seen=1,
        facts_dropped=0,
        errors=0,
    )
    lookout: Any = SimpleNamespace(
        incidents=SimpleNamespace(
            counters=lambda: IncidentTracker.counters(incidents),
            gauges=lambda: IncidentTracker.gauges(incidents),
        ),
        reported=SimpleNamespace(taken=0, refused=0),
        _inference_series=_inference_series,
    )
    return IncidentWatch.metrics(lookout)


def _inference_series() -> tuple[dict[str, float], dict[str, float]]:
    """Of an inference server that was read twice and tells everything."""
    figures = Figures()
    for step in (1, 2):
        told = [step] * (len(fields(InferencesSeen)) - 1)
        figures.take(InferencesSeen("m-1", *told), step * SECOND)
    return figures.inference_series([("m", "m-1")], 2 * SECOND)


def _deployments_say() -> Mapping[str, float]:
    models: Any = SimpleNamespace(_models={"m": None}, count=lambda _model: 1)
    return Deployments.gauges(models)


def _gpus() -> GpuWatch:
    """One that has seen a GPU which says everything."""
    numbers = {field.name: 1 for field in fields(Gpu)}
    seen: Any = SimpleNamespace(gpus=(SimpleNamespace(**numbers),))
    watch = GpuWatch()
    watch._report = seen  # noqa: SLF001 - without a driver
    return watch


def _demand() -> DemandGauges:
    """Of a model of which everything is known."""
    queue = FairQueue(QueueConfig(), TokenCounters({}))
    lane: Any = SimpleNamespace(
        queue=queue,
        first_token_p95=lambda _now: 1.0,
        take_served=lambda: (1, 1),
        take_answered_elsewhere=lambda: 0,
    )
    flow: Any = SimpleNamespace(lanes={"m": lane})
    gauges = DemandGauges()
    for now in (0, 60 * SECOND):
        gauges.read([flow], now)
    return gauges


def _keyed() -> Any:
    """The idempotency keys of a gateway."""
    thread = SimpleNamespace(failures=0, problem=None)
    answers = RecordedAnswers(IdempotencyConfig())
    keyed: Any = SimpleNamespace(thread=thread, callers={}, answers=answers)
    keyed.gauges = lambda: KeyedRequests.gauges(keyed)
    return keyed


def _told_by_a_gateway() -> Any:
    counters = Counters()
    counters.attempt("m-1", "m", Kind.RESET, 1)
    counters.answered("m-1", "m", "a", "direct", 1, 1, 1)
    counters.streamed("m", 1, 1, 1)
    counters.first_token("m", 1)
    counters.finished(Finish(1, 200, "ok", "", attempts=3, continued=1, model="m"), 1)
    counters.refused(400, "invalid_json")
    counters.over_quota("a", "rate_limit_exceeded")
    counters.escalated("auto", "length")
    counters.compared("m", "agreed")
    counters.keyed("executed")
    while len(counters.values) < SERIES_MAX:  # one more than there is room for
        counters.add(f"filler_{len(counters.values)}")
    counters.add("one_too_many")
    for name in [name for name in counters.values if name.startswith("filler_")]:
        del counters.values[name]
    frames: list[Any] = []
    readiness = SimpleNamespace(ready=lambda: (True, "ready"))
    settings = SimpleNamespace(
        virtual=SimpleNamespace(hook_errors={"package.module:function": 0}),
        tenants=SimpleNamespace(take_used=tuple),
    )
    driver: Any = SimpleNamespace(
        settings=settings,
        observer=SimpleNamespace(counters=counters, traces=SimpleNamespace(dropped=0)),
        port=SimpleNamespace(take_demand=dict),
        busy=0,
        readiness=readiness,
        trials=lambda _now: ([], []),
        look_at_demand=lambda _now, *, due: due,
        demand=_demand(),
        flow=SimpleNamespace(running=dict),
        keyed=_keyed(),
    )
    budget = ByteBudget(ByteBudgetConfig())
    server: Any = SimpleNamespace(counters={"slow_reader": 0}, open=0, newcomers=(), budget=budget)
    link: Any = SimpleNamespace(send=frames.append, refused=0, connected=True)
    acceptor: Any = SimpleNamespace(failed=0, given_up=0)
    port: Any = SimpleNamespace(counters=lambda: handshake_counters(acceptor))
    report = ControlReport(link, ControlSilence(ControlSilenceConfig(), 0), Shortages(), 0)
    report.tell_stats(driver, server, port, {}, 1)
    return frames[0]


# --- stand-ins ------------------------------------------------------------------------------------


def stand_in_faults_table() -> str:
    """What can be wrong with a stand-in."""
    kinds: list[tuple[type, FaultKind | SocketKind]] = [(FaultKind, kind) for kind in REPLICA_KINDS]
    kinds += [(SocketKind, kind) for kind in SocketKind]
    rows = [(f"`{kind.value}`", meaning_of(owner, kind.name)) for owner, kind in kinds]
    return table(("fault", "what it does"), rows)


__all__ = [
    "admin_table",
    "client_errors_table",
    "fixed_settings",
    "headers_table",
    "metrics_table",
    "paths_table",
    "refusals_table",
    "removed_members",
    "stand_in_faults_table",
]
