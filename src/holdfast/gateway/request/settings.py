"""Builds a gateway's settings and targets from a fleet file, once per config."""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast.config.fleet_file import Deployed, FleetFile, ModelSection
from holdfast.config.gateway import BodyConfig, HttpConfig, StreamConfig, UpstreamConfig
from holdfast.core.health.answers.answer_comparison import ComparingConfig
from holdfast.core.intake.byte_budget import ByteBudgetConfig
from holdfast.core.intake.shortages import Shortages
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.types import nanos
from holdfast.engines import Continuation, dialect
from holdfast.engines.canary_protocol import path_of
from holdfast.gateway.api.authentication import RunnerDirectory, TenantDirectory
from holdfast.gateway.api.prompts import BLOCK_ENDS
from holdfast.gateway.api.routes import Api
from holdfast.gateway.api.virtual_models import VirtualModels
from holdfast.gateway.http.hot_path import FAST, HotPath
from holdfast.gateway.http.loop_turn import LoopTurn
from holdfast.gateway.http.sse import EventSplitter
from holdfast.gateway.http.upstream import Upstream
from holdfast.gateway.http.upstream_address import Endpoint
from holdfast.gateway.request.targets import Target


@dataclass(slots=True, frozen=True, eq=False)
class Settings:
    """What requests read of the fleet file, immutable.

    Replaced as a whole when the file changes.
    """

    flow: FlowConfig
    http: HttpConfig
    limits: BodyConfig
    stream: StreamConfig
    upstream: UpstreamConfig
    tenants: TenantDirectory
    budget: ByteBudgetConfig
    virtual: VirtualModels
    public_models: dict[str, bool]  # names clients may use, in the file's order: virtual ones?
    prefix_blocks: int  # 0: no policy reads prefixes, none are hashed
    request_ns: dict[str, int]  # by model: how long a whole request may take
    chat_continued: frozenset[str]  # models whose engine can go on with another's chat answer
    prompt_continued: frozenset[str]  # the same for completions
    canary_paths: dict[str, str]  # by model: the engine's path that its canaries ask
    comparison: dict[str, ComparingConfig] = field(default_factory=dict)  # models that opted in
    trace_share: float = 0.0  # of requests, that are told as traces
    trace_follow: bool = False  # a caller's own mark decides instead, where it sends one
    event_splitter: type[EventSplitter] = EventSplitter

    def continues(self, api: Api, model: str) -> bool:
        """Whether a broken stream of this model and API can be continued on another replica.

        Decided by the model's engine; only chat and completions can be.
        """
        if api is Api.CHAT:
            return model in self.chat_continued
        return api is Api.COMPLETIONS and model in self.prompt_continued


def settings_of(file: FleetFile, hot_path: HotPath = FAST, runner_secret: bytes = b"") -> Settings:
    """Build the settings of a fleet file; opens no connections.

    ``runner_secret``: the secret of the batch runner, empty if there is none. Raises
    ``ConfigError`` for a routing hook of a virtual model that cannot be imported.
    """
    names = [model.name for model in file.models]
    virtual = VirtualModels(file.virtual_models, names)
    public = dict.fromkeys(names, False)
    public.update((section.name, True) for section in file.virtual_models)
    reads = any(_reads_prefixes(model) for model in file.models)
    gateway = file.gateway
    dialects = {model.name: dialect(model.engine) for model in file.models}
    chat = (n for n, d in dialects.items() if d.chat_continuation is not Continuation.NONE)
    prompt = (name for name, known in dialects.items() if known.prompt_continuation)
    return Settings(
        flow=file.flow_config(),
        http=gateway.http,
        limits=gateway.limits,
        stream=gateway.stream,
        upstream=gateway.upstream,
        tenants=_directory(file, runner_secret),
        budget=gateway.budget,
        virtual=virtual,
        public_models=public,
        prefix_blocks=len(BLOCK_ENDS) if reads else 0,
        request_ns={m.name: nanos(m.deadlines.request_s) for m in file.models},
        chat_continued=frozenset(chat),
        prompt_continued=frozenset(prompt),
        canary_paths={m.name: path_of(dialects[m.name], m.canary) for m in file.models},
        comparison={m.name: m.comparison for m in file.models if m.comparison is not None},
        trace_share=file.exporters.trace_share,
        trace_follow=file.exporters.trace_follow,
        event_splitter=hot_path.event_splitter,
    )


NO_DETOURS: Final[Mapping[str, str]] = {}


def _directory(file: FleetFile, runner_secret: bytes) -> TenantDirectory:
    if runner_secret:
        return RunnerDirectory(file.tenants, runner_secret)
    return TenantDirectory(file.tenants)


def _reads_prefixes(model: ModelSection) -> bool:
    """Whether its policy, or one nested in its options, looks at prompts' beginnings."""
    return "prefix_affinity" in f"{model.routing} {model.routing_options}"


def targets_of(
    file: FleetFile,
    known: dict[str, Target],
    loop: asyncio.AbstractEventLoop,
    now_ns: Callable[[], int],
    detours: Mapping[str, str] = NO_DETOURS,
    turn: LoopTurn | None = None,
    hot_path: HotPath = FAST,
    shortages: Shortages | None = None,
) -> dict[str, Target]:
    """Build the call target of each replica in the file, by replica id.

    A replica whose address, upstream config and TLS context did not change keeps the connection
    pool it has in ``known``; pools of all others in ``known`` are closed. ``detours``: other URLs
    for some replicas, called without the engine's credential. ``turn``: groups the writes of all
    connections; ``shortages``: counts failures for lack of own resources.
    """
    targets: dict[str, Target] = {}
    for deployed in file.replicas():
        replica = deployed.replica
        detour = detours.get(replica.id)
        endpoint = Endpoint(deployed.url if detour is None else detour)
        context = deployed.context() if detour is None else None
        how = file.gateway.upstream
        before = known.get(replica.id)
        headers = _credential(deployed, before, endpoint) if detour is None else b""
        same = before is not None and before.endpoint == endpoint and before.upstream.config == how
        if before is not None and same and before.upstream.trusted is context:
            upstream = before.upstream
        else:
            upstream = Upstream(
                endpoint,
                how,
                loop,
                ssl_context=context,
                turn=turn,
                hot_path=hot_path,
                now_ns=now_ns,
                shortages=shortages,
            )
        targets[replica.id] = Target(
            replica.id,
            replica.model,
            deployed.served_as,
            dialect(deployed.engine),
            endpoint,
            upstream,
            headers,
            b"x-holdfast-replica: %b\r\n" % replica.id.encode(),
            replica.host,
        )
    for replica_id, target in known.items():
        if replica_id not in targets or targets[replica_id].upstream is not target.upstream:
            target.upstream.close()
    return targets


def _credential(deployed: Deployed, before: Target | None, endpoint: Endpoint) -> bytes:
    """The header line that an engine with a token of its own asks for.

    A file without a token, such as one that is being written, leaves the token that the engine at
    this address was sent before.
    """
    token = deployed.token(os.environ)
    if token:
        return b"authorization: Bearer %b\r\n" % token.encode()
    kept = deployed.api_key_file is not None and before is not None and before.endpoint == endpoint
    return before.headers if kept and before is not None else b""


__all__ = ["Settings", "settings_of", "targets_of"]
