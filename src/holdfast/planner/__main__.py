"""Answers one planning question in a process of its own: JSON in, JSON out.

The admin port asks so, because a plan may take a second and control's loop has none to give away.
Run as ``python -m holdfast.planner`` with ``{"plan": NAME, "values": {…}}`` on standard input.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

import orjson

from holdfast.core.types import ConfigError
from holdfast.planner import PLANS
from holdfast.planner.page import page_of
from holdfast.planner.question import UnderspecifiedError


def answered(question: bytes) -> bytes:
    """The answer to a question as JSON; a bad question has an error and the field it is about."""
    told = orjson.loads(question)
    return orjson.dumps(_answer(told["plan"], told["values"]), default=str)


def _answer(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return page_of(PLANS[name].ask(values))
    except UnderspecifiedError as error:
        missing = [field.name for field in error.fields]
        return {"error": f"missing: {', '.join(missing)}", "missing": missing}
    except ConfigError as error:
        return {"error": str(error), "field": error.field}


if __name__ == "__main__":
    os.nice(19)
    sys.stdout.buffer.write(answered(sys.stdin.buffer.read()))


__all__ = ["answered"]
