"""What all handlers of the batch process share: the tenant, JSON answers, numbers of a query."""

from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from holdfast.batch.api_errors import ApiRefusalError, invalid

TENANT_HEADER: Final = "x-holdfast-tenant"  # written by the gateway alone


def tenant_of(request: Request) -> str:
    """The tenant in whose name the gateway passed the request on."""
    tenant = request.headers.get(TENANT_HEADER, "")
    if not tenant:
        raise ApiRefusalError(401, "invalid_api_key", "The request names no tenant.")
    return tenant


def json_answer(value: Any, status: int = 200) -> Response:
    """An answer with a JSON body."""
    return Response(orjson.dumps(value), status, media_type="application/json")


def number(given: str | None, param: str, default: int, most: int) -> int:
    """A number of the query, from 1 to ``most``."""
    if given is None:
        return default
    if not given.isascii() or not given.isdigit() or not 1 <= int(given) <= most:
        raise invalid(f"Use a number from 1 to {most}.", param)
    return int(given)


__all__ = ["TENANT_HEADER", "json_answer", "number", "tenant_of"]
