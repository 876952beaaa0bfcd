"""What telemetry reads of a request and of its attempts, as interfaces.

``gateway.request`` implements them. So telemetry imports nothing of it, and what a counter may look
at is written down in one place. Four members of a request belong to the observer, which sets them:
``trace``, ``first_at``, ``died_at`` and ``spent``.
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
    """A client's request, as far as it is counted, traced and recorded."""

    trace: Trace | None  # None: it is not traced
    first_at: int  # when the client was shown the beginning of its answer; 0: not yet
    died_at: int  # when a connection last died under it
    spent: tuple[str, int, int]  # model and tokens of its last answer, for virtual names

    @property
    def request_id(self) -> bytes:
        """The id that the client and ``holdfast explain`` know."""

    @property
    def request(self) -> Request:
        """The request as the flow knows it."""

    @property
    def ask(self) -> ParsedRequest:
        """What the client asked for."""

    @property
    def tenant(self) -> Tenant:
        """Who asks."""

    @property
    def route(self) -> Route:
        """Which API is called."""

    @property
    def exchange(self) -> Exchange:
        """The client's own headers."""

    @property
    def via(self) -> str:
        """The virtual name that was asked for, or ``DIRECT``."""

    @property
    def escalated(self) -> bool:
        """Whether a second, stronger model was asked."""

    @property
    def said_tokens(self) -> int:
        """Tokens that attempts which broke off had shown."""


class ObservedTarget(Protocol):
    """The replica that an attempt was sent to."""

    @property
    def replica_id(self) -> str:
        """Its id in the fleet."""

    @property
    def model(self) -> str:
        """The public name of the model it serves."""

    @property
    def dialect(self) -> Dialect:
        """The engine it runs."""

    @property
    def endpoint(self) -> Endpoint:
        """Where it was called."""


class ObservedAttempt(Protocol):
    """One attempt on one replica; times in nanoseconds, 0: not yet."""

    @property
    def proxied(self) -> ObservedRequest:
        """The request it is for."""

    @property
    def target(self) -> ObservedTarget:
        """The replica it was sent to."""

    @property
    def number(self) -> int:
        """Its number among the attempts of the request, from 0."""

    @property
    def started(self) -> int:
        """When it was sent."""

    @property
    def first(self) -> int:
        """When its first content came."""

    @property
    def last(self) -> int:
        """When its last byte came."""

    @property
    def begun(self) -> bool:
        """Whether content came."""

    @property
    def continues(self) -> bool:
        """Whether it goes on where another attempt broke off."""

    def prompt_tokens(self) -> int:
        """Tokens of its prompt, by the engine's count or by an estimate."""

    def chunks(self) -> int:
        """How many pieces its content came in; 0: not known."""


__all__ = ["ObservedAttempt", "ObservedRequest", "ObservedTarget"]
