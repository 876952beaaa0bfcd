"""A replica as a gateway calls it: address, dialect, the engine's model name, credentials."""

from dataclasses import dataclass

from holdfast.engines import Dialect
from holdfast.gateway.http.upstream import Upstream
from holdfast.gateway.http.upstream_address import Endpoint


@dataclass(slots=True, frozen=True, eq=False)
class Target:
    """One replica as this gateway calls it: address, engine dialect, model names, connection pool.

    Immutable; built anew with each config by ``targets_of``.
    """

    replica_id: str
    model: str  # the public name of what it serves
    served_as: str  # the engine's own name for it
    dialect: Dialect
    endpoint: Endpoint
    upstream: Upstream
    headers: bytes  # lines that every call to it carries: credentials, if any
    label: bytes  # the response header that names it
    host: str = ""  # the machine that it runs on, where that is known


__all__ = ["Target"]
