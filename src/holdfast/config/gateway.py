"""Config of a gateway's connections: limits, timeouts and buffers, each with its reason.

Frozen values in the manner of the core's configs; the fleet file derives its sections from them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import model_validator

from holdfast.config.addresses import Variable
from holdfast.config.sections import Policy, Section
from holdfast.core.intake.media_urls import ANY_PUBLIC, media_hosts
from holdfast.core.request.idempotency.key_policy import IdempotencyConfig
from holdfast.core.types import ConfigError, require


def _positive(section: str, values: dict[str, float]) -> None:
    for name, value in values.items():
        require(value > 0, f"{section}.{name}", f"is {value}", "use more than 0")


@dataclass(slots=True, frozen=True)
class HttpConfig:
    """Limits and timeouts of client connections."""

    header_bytes_max: int = 32_768  # request line and headers together; more is answered 431
    headers_max: int = 100  # header lines; HAProxy's bound, browsers and SDKs send under 40
    body_bytes_max: int = 32 << 20  # a 200k-token prompt is under 2 MB; images come as base64
    upload_bytes_max: int = (
        208 << 20
    )  # a file for batches, 200 MB and its form; passed on, not held
    header_s: float = 10.0  # from the first byte of a request to the end of its headers
    body_s: float = 60.0  # from there to the end of its body
    body_stall_s: float = 10.0  # no byte of a body for so long: it will not come
    handshake_s: float = 10.0  # a TLS handshake; a phone on a bad network needs three
    handshakes_max: int = 1_000  # unfinished at once, 75 KB each; beyond it, connections wait
    keepalive_s: float = 75.0  # an idle connection is closed; longer than the common balancers' 60
    write_buffer_bytes: int = 65_536  # unsent bytes beyond which a stream is paused upstream
    slow_reader_s: float = 60.0  # paused for so long, a client that does not read is let go
    connections_max: int = 10_000  # per process; beyond it one that stands still goes, else 503
    newcomers_max: int = 4_000  # without a whole request head; the oldest goes. 0: no bound
    newcomers_per_address_max: int = 2_000  # the same, of one address. 0: no bound
    connections_per_address_max: int = 0  # open ones of one address; 0: none, for load balancers
    requests_per_connection_max: int = 1_000_000  # then it is closed; bounds what one may hold

    def __post_init__(self) -> None:
        may_be_none = {
            "newcomers_max",
            "newcomers_per_address_max",
            "connections_per_address_max",
        }
        _positive("http", {n: getattr(self, n) for n in self.__slots__ if n not in may_be_none})
        for name in may_be_none:
            value = getattr(self, name)
            require(value >= 0, f"http.{name}", f"is {value}", "use 1 or more, or 0 for no bound")


@dataclass(slots=True, frozen=True)
class BodyConfig:
    """Limits on the bodies of requests."""

    json_depth_max: int = 64  # tool schemas reach 15; parsers of engines die of thousands
    messages_max: int = 10_000  # longer conversations exceed every context window
    n_max: int = 16  # each is a whole answer in memory; an engine died of n = 10^9
    max_tokens_max: int = 1_000_000  # above every context window there is
    stop_max: int = 16  # stop strings; every one is compared at every token
    logit_bias_max: int = 1_024  # entries
    tools_max: int = 512  # function definitions
    inputs_max: int = 4_096  # texts in one embeddings or rerank request
    top_logprobs_max: int = 64  # OpenAI allows 20
    multipart_fields_max: int = 64  # an audio upload has about six
    media_hosts: tuple[str, ...] = (ANY_PUBLIC,)  # that engines may fetch pictures and files from

    def __post_init__(self) -> None:
        bounds = [name for name in self.__slots__ if name != "media_hosts"]
        _positive("limits", {name: getattr(self, name) for name in bounds})
        try:
            media_hosts(self.media_hosts)
        except ValueError as error:
            fix = "use names, *.name, addresses, networks, or '*' for every public host"
            raise ConfigError("limits.media_hosts", f"has {str(error)[:80]!r}", fix) from error


@dataclass(slots=True, frozen=True)
class StreamConfig:
    """Settings for relaying answers to clients."""

    sign_of_life_s: float = 15.0  # then the 200 goes out with a comment; proxies give up at 60
    memory_bytes_max: int = 1 << 20  # text kept for a continuation; a longer answer has none
    event_bytes_max: int = 1 << 20  # one SSE event; beyond it the stream is malformed
    answer_bytes_max: int = 64 << 20  # a whole answer that is not streamed; beyond it: malformed
    suspect_tokens: int = 16  # an opening run of one token is held so long before it is believed

    def __post_init__(self) -> None:
        _positive("stream", {name: getattr(self, name) for name in self.__slots__})


@dataclass(slots=True, frozen=True)
class UpstreamConfig:
    """Timeouts and limits of connections to replicas."""

    connect_s: float = 1.0  # a LAN answers within milliseconds; then another replica is asked
    idle_s: float = 50.0  # a pooled connection is closed before the usual 60 s of a server
    idle_max: int = 256  # pooled connections per replica
    header_bytes_max: int = 65_536  # of a response; beyond it: malformed

    def __post_init__(self) -> None:
        _positive("upstream", {name: getattr(self, name) for name in self.__slots__})


@dataclass(slots=True, frozen=True)
class DrainingConfig:
    """How a gateway stops: how long it finishes requests."""

    grace_s: float = 1.0  # after SIGTERM: still accepting, readiness 503, so that balancers notice
    deadline_s: float = 30.0  # then what still runs is ended with an error event

    def __post_init__(self) -> None:
        require(self.grace_s >= 0, "draining.grace_s", f"is {self.grace_s}", "use 0 or more")
        fix = f"use more than draining.grace_s, {self.grace_s}"
        held = self.deadline_s > self.grace_s
        require(held, "draining.deadline_s", f"is {self.deadline_s}", fix)


class KeyStoreSection(Section):
    """Where idempotency keys are kept: a file of this host, or a server that all hosts share.

    The URL of a server holds its password, so the file names where to find it and not the URL.
    """

    kind: Literal["sqlite", "postgresql", "redis"] = "sqlite"  # a server where hosts are several
    path: Path | None = None  # of the SQLite file; none: idempotency.db in the state directory
    url_env: Variable | None = None  # the environment variable with the server's URL
    url_file: Path | None = None  # or the file with it; read when a gateway connects

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        given = [name for name in ("url_env", "url_file") if getattr(self, name) is not None]
        if self.kind == "sqlite":
            fix = "remove it, or set kind to postgresql or redis"
            name = given[0] if given else ""
            require(not given, f"idempotency.store.{name}", "is set for sqlite", fix)
            return self
        where = f"is missing for {self.kind}"
        fix = "name the environment variable or the file that holds the server's URL, one of them"
        require(len(given) == 1, "idempotency.store.url_env", where, fix)
        fix = "remove it: the keys are in the server"
        require(self.path is None, "idempotency.store.path", f"is set for {self.kind}", fix)
        return self


class IdempotencySection(Section):
    """Whether gateways honour Idempotency-Key, where they keep keys, and for how long."""

    enabled: bool = False  # it changes what a retry gets, and may keep answers
    store: KeyStoreSection = KeyStoreSection()  # where keys are kept, and answers if at all
    policy: Annotated[IdempotencyConfig, Policy()] = IdempotencyConfig()  # how long, how many


__all__ = [
    "BodyConfig",
    "DrainingConfig",
    "HttpConfig",
    "IdempotencySection",
    "KeyStoreSection",
    "StreamConfig",
    "UpstreamConfig",
]
