"""A message of SQS as an item of a queue, and back: its body as text, the rest as attributes."""

import base64
import math
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from holdfast.queue_port import MAX_RECEIVES, Lease, LeasedItem, NewItem

_TEXT: Final = "text"
_BASE64: Final = "base64"


def message_entry(number: str, item: NewItem, *, fifo: bool) -> dict[str, Any]:
    """An item as one entry of a call that sends messages."""
    body, coding = _body(item.payload)
    told = {"id": item.id, "group": item.group, "tenant": item.tenant, "coding": coding}
    told["max-receives"] = str(item.max_receives)
    entry: dict[str, Any] = {
        "Id": number,
        "MessageBody": body,
        "MessageAttributes": {
            f"holdfast-{name}": {"DataType": "String", "StringValue": value}
            for name, value in told.items()
            if value
        },
    }
    if fifo:
        entry["MessageDeduplicationId"] = sha256(item.id.encode()).hexdigest()
        entry["MessageGroupId"] = sha256((item.group or item.id).encode()).hexdigest()
    elif item.delay_s > 0:
        entry["DelaySeconds"] = math.ceil(item.delay_s)
    return entry


def _body(payload: bytes) -> tuple[str, str]:
    """A payload as SQS takes it: text of printable characters, or base64."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = ""
    if text and text.replace("\n", " ").replace("\t", " ").isprintable():
        return text, _TEXT
    return base64.b64encode(payload).decode() or "=", _BASE64


def received_item(queue: str, message: Mapping[str, Any]) -> LeasedItem:
    """A message as an item; one that others sent has the id that SQS gave it."""
    told = {
        name.removeprefix("holdfast-"): value.get("StringValue", "")
        for name, value in (message.get("MessageAttributes") or {}).items()
        if name.startswith("holdfast-")
    }
    body = str(message["Body"])
    encoded = told.get("coding") == _BASE64
    payload = base64.b64decode(body.strip("=") and body) if encoded else body.encode()
    most = told.get("max-receives", "")
    return LeasedItem(
        lease=Lease(queue, told.get("id") or message["MessageId"], message["ReceiptHandle"]),
        payload=payload,
        group=told.get("group", ""),
        tenant=told.get("tenant", ""),
        priority=0,
        deadline=None,
        receives=int((message.get("Attributes") or {}).get("ApproximateReceiveCount", 1)),
        max_receives=int(most) if most.isdecimal() else MAX_RECEIVES,
    )


__all__ = ["message_entry", "received_item"]
