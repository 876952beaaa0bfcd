"""The audit trail of the admin port: one row for each order, accepted or not.

A row says who (the name of a token, never the token), what (method and path), from where, when and
with which result. Rows are kept in the store and outlive control. Those of callers who were not let
in are bounded apart from the others: a stranger who knocks all day must not push out what operators
did.

Reports of agents and of facts that were accepted are evidence and no orders, and come every few
seconds: metrics count them.
"""

import time
from collections.abc import Callable
from typing import Final

import orjson
import structlog

from holdfast.ports import Store, StoredOrder, StoreError

LIMIT_DEFAULT: Final = 100
LIMIT_MAX: Final = 1_000
TEXT_MAX: Final = 300  # characters of a path or a result
NOT_LET_IN: Final = frozenset({401, 403, 421, 429})  # the guard's own refusals
REPORTS: Final = ("/facts", "/agents/")

_log = structlog.get_logger("holdfast.control.access")


class AuditLog:
    """Adds rows about orders to the audit trail in the store, and lists the newest."""

    def __init__(self, store: Store, wall: Callable[[], float] = time.time) -> None:
        self._store = store
        self._wall = wall
        self.rows_total = 0
        self.lost_total = 0  # rows that the store had no room for

    def add(self, who: str, what: str, address: str, status: int, result: str) -> None:
        """Store one audit row: who, what, from where, HTTP status, result. Never raises.

        Long texts are shortened; rows that the store cannot keep are counted.
        """
        row = StoredOrder(
            self._wall(), who, _short(what), address, status, _short(result), status in NOT_LET_IN
        )
        self.rows_total += 1
        try:
            kept = self._store.add_order(row)
        except StoreError as error:
            _log.error("order not kept", reason=str(error))
            kept = False
        self.lost_total += not kept

    def listing(self, limit: int = LIMIT_DEFAULT) -> list[StoredOrder]:
        """The newest rows, at most ``limit``, the newest last."""
        return self._store.orders(limit)

    def metrics(self) -> dict[str, float]:
        """Counters of audit rows added, and of those that could not be stored."""
        return {
            "admin_orders_total": self.rows_total,
            "admin_orders_unrecorded_total": self.lost_total,
        }


def belongs(path: str, status: int) -> bool:
    """Whether a request other than GET gets a row in the audit trail, by its path and status.

    Accepted reports of facts and agents, and simulations (``/whatif``), get none.
    """
    return path != "/whatif" and (status in NOT_LET_IN or not path.startswith(REPORTS))


def result_of(status: int, body: bytes) -> str:
    """The result of an order for the audit trail: the answer's ``reason`` or ``error`` text.

    Without one, ``done`` below status 400, else ``refused``.
    """
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        told = None
    if isinstance(told, dict):
        for name in ("reason", "error"):
            if isinstance(told.get(name), str):
                return str(told[name])
    return "done" if status < 400 else "refused"


def _short(text: str) -> str:
    plain = "".join(sign if sign.isprintable() else "?" for sign in text[: TEXT_MAX + 1])
    return plain if len(plain) <= TEXT_MAX else f"{plain[: TEXT_MAX - 1]}…"


__all__ = ["LIMIT_DEFAULT", "LIMIT_MAX", "AuditLog", "belongs", "result_of"]
