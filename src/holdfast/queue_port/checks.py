"""The rules that all adapters of durable queues share: what is refused, how long a pause is."""

import math
from collections.abc import Sequence

from holdfast.queue_port.errors import ItemRefusedError
from holdfast.queue_port.values import (
    CALL_BYTES_MAX,
    CALL_ITEMS_MAX,
    NAME_CHARACTERS_MAX,
    PAUSE_S,
    PAUSE_S_MAX,
    PAYLOAD_BYTES_MAX,
    VISIBILITY_S_MIN,
    EndedItem,
    ItemState,
    NewItem,
    QueueTraits,
    Settlement,
)


def check_name(field: str, name: str, *, empty: bool = False) -> None:
    """Refuse a name that some store could not keep."""
    if not name and not empty:
        raise ItemRefusedError(f"{field} is empty; give it a name")
    if len(name) > NAME_CHARACTERS_MAX:
        fix = f"use at most {NAME_CHARACTERS_MAX}"
        raise ItemRefusedError(f"{field} has {len(name)} characters; {fix}")
    if not name.isprintable():  # control characters, and surrogates that UTF-8 cannot hold
        raise ItemRefusedError(f"{field} has characters that cannot be printed; leave them out")


def check_items(items: Sequence[NewItem], payload_bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
    """Refuse items of which one cannot be kept, with its place in the list."""
    _check_call("items", len(items), sum(len(item.payload) for item in items))
    for index, item in enumerate(items):
        where = f"items[{index}]"
        check_name(f"{where}.id", item.id)
        check_name(f"{where}.group", item.group, empty=True)
        check_name(f"{where}.tenant", item.tenant, empty=True)
        check_bytes(f"{where}.payload", item.payload, payload_bytes_max)
        if not 1 <= item.max_receives <= 1_000:
            raise ItemRefusedError(f"{where}.max_receives is {item.max_receives}; use 1 to 1000")
        if not -1_000 <= item.priority <= 1_000:
            raise ItemRefusedError(f"{where}.priority is {item.priority}; use -1000 to 1000")
        if item.deadline is not None and not math.isfinite(item.deadline):
            raise ItemRefusedError(f"{where}.deadline is {item.deadline}; use a time or None")
        check_seconds(f"{where}.delay_s", item.delay_s, 0.0)


def _check_call(field: str, count: int, size: int) -> None:
    if count > CALL_ITEMS_MAX or size > CALL_BYTES_MAX:
        fix = f"use at most {CALL_ITEMS_MAX} of {CALL_BYTES_MAX} bytes together in one call"
        raise ItemRefusedError(f"{field} has {count} entries of {size} bytes; {fix}")


def check_bytes(field: str, data: bytes, bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
    """Refuse what is too large for a queue."""
    if len(data) > bytes_max:
        fix = f"use at most {bytes_max}, and keep larger ones in a file that the payload names"
        raise ItemRefusedError(f"{field} has {len(data)} bytes; {fix}")


def check_seconds(field: str, value: float, least: float) -> None:
    """Refuse a duration that is none."""
    if not (math.isfinite(value) and value >= least):
        raise ItemRefusedError(f"{field} is {value}; use {least:g} or more seconds")


def check_lease(queue: str, count: int, visibility_s: float, traits: QueueTraits) -> None:
    """Refuse what cannot be leased."""
    check_name("queue", queue)
    if count < 1:
        raise ItemRefusedError(f"count is {count}; use 1 to {traits.lease_items_max}")
    check_seconds("visibility_s", visibility_s, VISIBILITY_S_MIN)
    if visibility_s > traits.visibility_s_max:
        fix = f"use at most {traits.visibility_s_max:g} and extend the lease"
        raise ItemRefusedError(f"visibility_s is {visibility_s}; {fix}")


def check_settlements(settlements: Sequence[Settlement], bytes_max: int) -> None:
    """Refuse settlements that are no end, or whose result is too large."""
    _check_call("settlements", len(settlements), sum(len(one.result) for one in settlements))
    for index, settlement in enumerate(settlements):
        if settlement.state not in {ItemState.DONE, ItemState.FAILED}:
            problem = f"settlements[{index}].state is {settlement.state.value}"
            raise ItemRefusedError(f"{problem}; use done or failed")
        check_bytes(f"settlements[{index}].result", settlement.result, bytes_max)


def check_ended(ended: Sequence[EndedItem], bytes_max: int) -> None:
    """Refuse records of items that have not ended, or that cannot be kept."""
    _check_call("ended", len(ended), sum(len(one.result) + len(one.payload) for one in ended))
    for index, one in enumerate(ended):
        check_name(f"ended[{index}].id", one.id)
        check_name(f"ended[{index}].group", one.group, empty=True)
        check_name(f"ended[{index}].tenant", one.tenant, empty=True)
        check_name(f"ended[{index}].owner", one.owner, empty=True)
        check_bytes(f"ended[{index}].result", one.result, bytes_max)
        check_bytes(f"ended[{index}].payload", one.payload, bytes_max)
        if not one.state.terminal:
            problem = f"ended[{index}].state is {one.state.value}"
            raise ItemRefusedError(f"{problem}; use done, failed, dead or cancelled")


def pause_s(receives: int) -> float:
    """How long an item that failed waits for its next receive."""
    return float(min(PAUSE_S * 2.0 ** min(max(receives - 1, 0), 16), PAUSE_S_MAX))


__all__ = [
    "check_bytes",
    "check_ended",
    "check_items",
    "check_lease",
    "check_name",
    "check_seconds",
    "check_settlements",
    "pause_s",
]
