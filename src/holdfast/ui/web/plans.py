"""Planning questions on the operators' port, the same that ``holdfast plan`` answers.

    GET /plans               every plan and its fields, from which a page makes its forms
    GET /plans/NAME?FIELD=…  the answer, as JSON with its charts as SVG

They change nothing, so they are questions and not orders. Each is computed in a process of its own.
"""

from collections.abc import Sequence
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.control.access.guard import json_answer
from holdfast.ui.web.rehearsal import RehearsalBusyError, RehearsalError, RehearsalRunner

_MODULE: Final = "holdfast.planner"  # a sibling: it is run, not imported
_VALUES_MAX: Final = 80
_CHARACTERS_MAX: Final = 300


def plan_routes(plans: Sequence[dict[str, Any]], limit_s: float | None = None) -> list[Route]:
    """The routes of planning; ``plans`` describes each plan and its fields."""
    runner = RehearsalRunner(limit_s, module=_MODULE)
    fields = {plan["plan"]: {field["name"] for field in plan["fields"]} for plan in plans}

    async def listed(_: Request) -> Response:
        return _fresh(json_answer({"plans": list(plans)}))

    async def asked(request: Request) -> Response:
        name = request.path_params["plan"]
        if name not in fields:
            told = f"there is no plan {name[:80]!r}; use one of {', '.join(fields)}"
            return _fresh(json_answer({"error": told}, 404))
        given = request.query_params
        if len(given) > _VALUES_MAX or any(
            len(value) > _CHARACTERS_MAX for value in given.values()
        ):
            return _fresh(json_answer({"error": "too much was asked at once"}, 400))
        unknown = [field for field in given if field not in fields[name]]
        if unknown:
            told = f"{unknown[0][:80]} is no value of a {name} plan"
            return _fresh(json_answer({"error": told, "field": unknown[0][:80]}, 400))
        question = orjson.dumps({"plan": name, "values": dict(given)})
        try:
            answer = orjson.loads(await runner.ask(question))
        except RehearsalBusyError:
            response = json_answer({"error": "another plan is being made; try again"}, 503)
            response.headers["retry-after"] = "2"
            return _fresh(response)
        except RehearsalError as error:
            return _fresh(json_answer({"error": str(error)}, 422))
        return _fresh(json_answer(answer, 400 if "error" in answer else 200))

    return [Route("/plans", listed), Route("/plans/{plan}", asked)]


def _fresh(response: Response) -> Response:
    response.headers["cache-control"] = "no-store"
    return response


__all__ = ["plan_routes"]
