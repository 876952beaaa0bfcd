"""The pages of the admin port about baselines: what they are, accept them, learn them anew.

An order needs a reason, in the words of whoever gives it: a baseline that was replaced explains why
a drift is no longer told, and nobody remembers that after a month. The reason stands in the audit
trail beside the name of the token, and among the events.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.control.access.guard import json_answer

BODY_BYTES_MAX: Final = 4_096
WHY_MAX: Final = 200  # characters; the audit trail keeps 300 of a whole result


class BaselineAnswers(Protocol):
    """The questions and orders of the admin port about baselines of healthy answers."""

    def baselines_of(self, model: str) -> list[dict[str, Any]]:
        """Each answer baseline of a model, learned or being learned, with its latest answers."""

    def accept_baselines(self, model: str, why: str) -> tuple[bool, str]:
        """Make the latest answers of a model its baselines; whether any was, and a text."""

    def reset_baselines(self, model: str, why: str) -> tuple[bool, str]:
        """Drop the baselines of a model, to be learned anew; whether any was, and a text."""


def baseline_routes(answers: Callable[[], BaselineAnswers]) -> list[Route]:
    """The routes below ``/models/MODEL/baseline``: show, accept and reset.

    Accept and reset need a JSON body with ``why``; ``answers`` is called for each request.
    """

    async def show(request: Request) -> Response:
        found = answers().baselines_of(request.path_params["model"])
        return json_answer({"baselines": found})

    async def accept(request: Request) -> Response:
        why = await _why(request)
        return _answer(*answers().accept_baselines(request.path_params["model"], why), why)

    async def reset(request: Request) -> Response:
        why = await _why(request)
        return _answer(*answers().reset_baselines(request.path_params["model"], why), why)

    path = "/models/{model:path}/baseline"
    return [
        Route(path, show),
        Route(f"{path}/accept", accept, methods=["POST"]),
        Route(f"{path}/reset", reset, methods=["POST"]),
    ]


def _answer(done: bool, told: str, why: str) -> Response:
    if not done:
        return json_answer({"error": told}, 409)
    return json_answer({"accepted": True, "reason": f"{told}; because: {why}"}, 202)


async def _why(request: Request) -> str:
    """The reason in the body; refused where it is missing, long or no text."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise HTTPException(413, f"the body has more than {BODY_BYTES_MAX} bytes")
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        told = None
    why = told.get("why") if isinstance(told, dict) else None
    if not isinstance(why, str) or not why.strip():
        raise HTTPException(400, 'why is missing: send {"why": "the reason, for the audit trail"}')
    if len(why) > WHY_MAX or not why.isprintable():
        raise HTTPException(400, f"why is one printable line of up to {WHY_MAX} characters")
    return why.strip()


__all__ = ["WHY_MAX", "BaselineAnswers", "baseline_routes"]
