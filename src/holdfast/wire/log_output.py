"""Sets up logging alike in every process: one JSON object a line."""

import logging
import os
import sys
from typing import Final, TextIO

import orjson
import structlog

from holdfast.core.types import require
from holdfast.ui.terminal.untrusted_text import escape_json

LOG_LEVEL_ENV: Final = "HOLDFAST_LOG_LEVEL"
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure_logging(log: TextIO | None = None) -> None:
    """Set up logging: one JSON object a line, to stderr or a file, in every process alike."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(log_level()),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_dumps),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=log or sys.stderr),
        cache_logger_on_first_use=True,
    )


def log_level() -> int:
    """The log level from the environment; messages below it are not logged."""
    name = os.environ.get(LOG_LEVEL_ENV) or "info"
    known = name.lower() in _LEVELS
    require(known, LOG_LEVEL_ENV, f"is {name!r}", f"use one of {', '.join(_LEVELS)}")
    return _LEVELS[name.lower()]


def _dumps(event: object, **_: object) -> str:
    return escape_json(orjson.dumps(event, default=str).decode())


__all__ = ["configure_logging", "log_level"]
