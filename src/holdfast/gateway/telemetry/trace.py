"""One traced request: its id, the ids of its attempts, and the spans of those that are over."""

from random import getrandbits

from holdfast.frames import SpanRow


class Trace:
    """Collects the spans of one traced request."""

    __slots__ = ("_ids", "spans", "trace_id")

    def __init__(self, trace_id: str = "") -> None:
        """``trace_id``: the caller's, as 32 hexadecimal digits; empty: a new one is drawn."""
        self.trace_id = trace_id or f"{getrandbits(128) or 1:032x}"
        self.spans: list[SpanRow] = []
        self._ids: dict[int, str] = {}

    def line(self, attempt: int) -> bytes:
        """The header line that tells an engine of the trace; draws the span id of an attempt."""
        span_id = self._ids[attempt] = f"{getrandbits(64) or 1:016x}"
        return f"traceparent: 00-{self.trace_id}-{span_id}-01\r\n".encode()

    def span_id(self, attempt: int) -> str:
        """The span id of an attempt whose header line was made."""
        return self._ids[attempt]


__all__ = ["Trace"]
