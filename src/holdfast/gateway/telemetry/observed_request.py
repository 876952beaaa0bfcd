"""Interfaces of what telemetry reads of a request, its attempts and their replicas.

``gateway.request`` implements them. So telemetry imports nothing of that package, and what a
counter may read is listed in one place. Four members of a request belong to the observer, which
sets them: ``trace``, ``first_at``, ``died_at`` and ``spent``.
"""

from typing import Protocol

from holdfast.core.types import Request
from holdfast.engines import Dialect
from holdfast.gateway.api.authentication import Tenant
from holdfast.gateway.api.bodies import ParsedRequest
from holdfast.gateway.api.routes import Route
from holdfast.gateway.http.interfaces import Exchange
from holdfast.gateway.http.upstream_address import Endpoint
from holdfast.gateway.telemetry.trace import Trace


class ObservedRequest(Protocol):
    """A client's request, as telemetry sees it; implemented by ``ProxiedRequest``.

    Only ``trace``, ``first_at``, ``died_at`` and ``spent`` are set by telemetry.
    """

    trace: Trace | None  # None: it is not traced
    first_at: int  # when the client was shown the beginning of its answer; 0: not yet
    died_at: int  # when a connection last died under it
    spent: tuple[str, int, int]  # model and tokens of its last answer, for virtual names

    @property
    def request_id(self) -> bytes:
        """The id that the client gets and that ``holdfast explain`` takes."""

    @property
    def request(self) -> Request:
        """The request in the form that the flow uses."""

    @property
    def ask(self) -> ParsedRequest:
        """The parsed body: model, limits and options that the client asked for."""

    @property
    def tenant(self) -> Tenant:
        """The tenant whose key the request carries."""

    @property
    def route(self) -> Route:
        """The API route that is called."""

    @property
    def exchange(self) -> Exchange:
        """The HTTP exchange with the client, for its headers."""

    @property
    def via(self) -> str:
        """The virtual model name that was asked for, or ``DIRECT`` for a real model."""

    @property
    def escalated(self) -> bool:
        """Whether a second, stronger model was asked."""

    @property
    def said_tokens(self) -> int:
        """How many tokens the client got from attempts that ended early."""


class ObservedTarget(Protocol):
    """The replica that an attempt was sent to."""

    @property
    def replica_id(self) -> str:
        """The replica's id in the fleet."""

    @property
    def host(self) -> str:
        """The machine that the replica runs on; empty: unknown."""

    @property
    def model(self) -> str:
        """The public name of the model that the replica serves."""

    @property
    def dialect(self) -> Dialect:
        """The dialect of the replica's engine."""

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint at which the replica was called."""


class ObservedAttempt(Protocol):
    """One attempt on one replica, as telemetry sees it; times in monotonic ns, 0: not yet."""

    @property
    def proxied(self) -> ObservedRequest:
        """The request that the attempt belongs to."""

    @property
    def target(self) -> ObservedTarget:
        """The replica that the attempt was sent to."""

    @property
    def number(self) -> int:
        """The number of the attempt within its request, from 0."""

    @property
    def started(self) -> int:
        """When the attempt was sent."""

    @property
    def first(self) -> int:
        """When the first content arrived."""

    @property
    def last(self) -> int:
        """When the last byte arrived, or the attempt's time of silence last began anew."""

    @property
    def begun(self) -> bool:
        """Whether content has arrived and the flow knows; held chunks do not count."""

    @property
    def continues(self) -> bool:
        """Whether the attempt continues the answer of another attempt that broke off."""

    def prompt_tokens(self) -> int:
        """Return the prompt's tokens: the engine's count if it came, else an estimate."""

    def chunks(self) -> int:
        """Return how many chunks with content arrived; 0 in attempts that do not count them."""


__all__ = ["ObservedAttempt", "ObservedRequest", "ObservedTarget"]
