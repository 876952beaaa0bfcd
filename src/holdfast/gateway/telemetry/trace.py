"""The trace of one request: its id, the span ids of its attempts, and their finished spans."""

from random import getrandbits

from holdfast.frames import SpanRow


class Trace:
    """The trace of one request: its trace id, and the finished spans of its attempts."""

    __slots__ = ("_ids", "spans", "trace_id")

    def __init__(self, trace_id: str = "") -> None:
        """``trace_id``: the caller's, as 32 hexadecimal digits; empty: a new one is drawn."""
        self.trace_id = trace_id or f"{getrandbits(128) or 1:032x}"
        self.spans: list[SpanRow] = []
        self._ids: dict[int, str] = {}

    def line(self, attempt: int) -> bytes:
        """Draw an attempt's span id; return the ``traceparent`` header line for its engine."""
        span_id = self._ids[attempt] = f"{getrandbits(64) or 1:016x}"
        return f"traceparent: 00-{self.trace_id}-{span_id}-01\r\n".encode()

    def span_id(self, attempt: int) -> str:
        """Return the span id of an attempt; ``KeyError`` unless ``line`` was called for it."""
        return self._ids[attempt]


__all__ = ["Trace"]
