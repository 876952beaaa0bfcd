"""Calls to AWS: one session, clients made when first needed, and a rate limit per service.

Every request that leaves, retries included, passes one hook of botocore: there it waits for its
turn in the service's bucket, is counted for the part that asked, and is refused once the source
closes. A bucket of our own beside botocore's adaptive mode, because that one slows down only after
AWS has complained, and the quota it eats until then belongs to the whole account.

Everything here blocks and runs in the source's own threads.
"""

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from threading import Event, Lock, local
from typing import Any, Final, TypeVar

from holdfast.core.types import ConfigError
from holdfast.sources.aws.config import AwsConfig, RateConfig
from holdfast.sources.aws.errors import CallError, CallFailure, failure_of

BATCH: Final = 100  # ids in one question; more are refused by ECS
NOTES_MAX: Final = 10  # of one part in one reading
OPERATIONS_KEPT: Final = 200  # different operations remembered; there are under twenty

_Item = TypeVar("_Item")


def require_boto3() -> None:
    """Raise a config error where boto3 is not installed."""
    if find_spec("boto3") is None:
        raise ConfigError(
            "sources", "a source of type aws needs boto3", "pip install 'holdfast[aws]'"
        )


def batches(items: Sequence[_Item], size: int = BATCH) -> Iterator[Sequence[_Item]]:
    """Yield slices of ``items`` with at most ``size`` items each."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


class RateBucket:
    """A token bucket: allows a burst of requests, then a fixed rate per second."""

    def __init__(self, rate: RateConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._lock = Lock()
        self._tokens = float(rate.burst)
        self._at = clock()

    def delay(self) -> float:
        """Take one token; returns the seconds to wait before the request may be sent."""
        with self._lock:
            now = self._clock()
            refilled = self._tokens + (now - self._at) * self._rate.per_s
            self._tokens = min(refilled, float(self._rate.burst)) - 1.0
            self._at = now
            return max(0.0, -self._tokens / self._rate.per_s)


class AwsAccount:
    """Session, clients and rate buckets of one account, shared by all parts of a source."""

    def __init__(self, config: AwsConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._lock = Lock()  # boto3's sessions are not safe for threads, clients are
        self._session: Any = None
        self._made_at: float | None = None
        self._clients: dict[str, Any] = {}
        self._buckets: dict[str, RateBucket] = {}
        self._asking = local()
        self._closed = Event()
        self.operations: dict[str, int] = {}  # "service:Operation" → requests since the start

    def caller(self, service: str) -> "AwsCaller":
        """A caller that asks one service on behalf of one part, in this thread."""
        return AwsCaller(self, service)

    def ask(self, caller: "AwsCaller", name: str, arguments: dict[str, Any]) -> Any:
        """Call one operation and return its answer; raises CallError where it fails."""
        self._asking.caller = caller
        try:
            return getattr(self._client(caller.service), name)(**arguments)
        except Exception as error:
            raise self._failed(caller.service, error) from error

    def pages(self, caller: "AwsCaller", name: str, arguments: dict[str, Any]) -> Iterator[Any]:
        """Call an operation and yield its answers page by page."""
        self._asking.caller = caller
        try:
            yield from self._client(caller.service).get_paginator(name).paginate(**arguments)
        except Exception as error:
            raise self._failed(caller.service, error) from error

    def close(self) -> None:
        """Refuse further requests; requests under way end by their own timeouts."""
        self._closed.set()
        with self._lock:
            clients = list(self._clients.values())
            self._clients.clear()
            self._session = None
        for client in clients:
            client.close()

    def _client(self, service: str) -> Any:
        with self._lock:
            if self._closed.is_set():
                raise CallError("the source is closed")
            client = self._clients.get(service)
            if client is None:
                client = self._clients[service] = self._made(service)
            return client

    def _made(self, service: str) -> Any:
        config = self._config
        try:
            if self._session is None:
                self._made_at = self._clock()
                self._session = _session(config)
            settings = importlib.import_module("botocore.config").Config(
                connect_timeout=config.connect_s,
                read_timeout=config.answer_s,
                retries={"mode": "adaptive", "total_max_attempts": config.attempts},
                max_pool_connections=4,  # parts that ask the same service at once: three
                user_agent="holdfast",  # botocore's own is made anew for every call: a fifth of it
            )
            client = self._session.client(
                service, endpoint_url=config.endpoint_url or None, config=settings
            )
        except Exception as error:
            raise failure_of(service, error) from error
        self._buckets.setdefault(service, RateBucket(config.rate_of(service)))
        client.meta.events.register("before-send", self._before_send)
        return client

    def _before_send(self, **_: Any) -> None:
        """Botocore's hook; what it returns would be taken for the answer."""
        caller: AwsCaller = self._asking.caller
        wait_s = self._buckets[caller.service].delay()
        if self._closed.wait(wait_s):
            raise CallError("the source is closed")
        caller.calls += 1
        with self._lock:
            known = self.operations
            if caller.operation in known or len(known) < OPERATIONS_KEPT:
                known[caller.operation] = known.get(caller.operation, 0) + 1

    def _failed(self, service: str, error: Exception) -> CallError:
        failed = failure_of(service, error)
        if failed.why is CallFailure.CREDENTIALS:
            self._start_anew()
        return failed

    def _start_anew(self) -> None:
        """Look for credentials again at the next refresh: somebody may have logged in."""
        with self._lock:
            made_at = self._made_at
            if made_at is None or self._clock() - made_at < self._config.session_s:
                return
            self._session = None
            clients = list(self._clients.values())
            self._clients.clear()
        for client in clients:  # those in use in other threads go on with what they have
            client.close()


def _session(config: AwsConfig) -> Any:
    """A session that reads times quickly: botocore's way takes a quarter of reading 200 tasks."""
    core = importlib.import_module("botocore.session").get_session()
    slowly = importlib.import_module("botocore.utils").parse_timestamp
    factory = core.get_component("response_parser_factory")
    factory.set_parser_defaults(timestamp_parser=partial(moment, slowly=slowly))
    return importlib.import_module("boto3").session.Session(
        region_name=config.region or None,
        profile_name=config.profile or None,
        botocore_session=core,
    )


def moment(told: float | str, slowly: Callable[[Any], datetime]) -> datetime:
    """Parse a time in seconds or ISO format; other formats are left to botocore's parser."""
    if isinstance(told, int | float):
        return datetime.fromtimestamp(told, UTC)
    try:
        found = datetime.fromisoformat(told)
    except ValueError:
        return slowly(told)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


class AwsCaller:
    """Asks one service on behalf of one part, and counts its requests."""

    __slots__ = ("_account", "calls", "notes", "operation", "service")

    def __init__(self, account: AwsAccount, service: str) -> None:
        self._account = account
        self.service = service
        self.operation = ""
        self.calls = 0  # requests that left, retries included
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Add a remark for people about something that does not fail the whole part."""
        if len(self.notes) < NOTES_MAX and text not in self.notes:
            self.notes.append(text)

    def ask(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Call one operation and return its answer."""
        self._name(name)
        answer: dict[str, Any] = self._account.ask(self, name, arguments)
        return answer

    def items(self, name: str, key: str, **arguments: Any) -> Iterator[Any]:
        """Yield the items under ``key`` from all pages of an operation."""
        self._name(name)
        for page in self._account.pages(self, name, arguments):
            yield from page.get(key, ())

    def _name(self, name: str) -> None:
        operation = "".join(word.capitalize() for word in name.split("_"))
        self.operation = f"{self.service}:{operation}"


__all__ = ["BATCH", "AwsAccount", "AwsCaller", "RateBucket", "batches", "moment", "require_boto3"]
