"""``/v1/batches``: create, look at, list and cancel batches, each tenant only its own."""

import asyncio
from functools import partial
from typing import Any, Final

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.batch.api_answers import json_answer, number, tenant_of
from holdfast.batch.api_errors import ApiRefusalError, invalid, no_batch
from holdfast.batch.batch_desk import BatchCounts, BatchDesk, NewBatch
from holdfast.batch.creation_keys import CreationKeys, fingerprint_of, gone
from holdfast.batch.files_api import check_expiry
from holdfast.batch.input_lines import ENDPOINTS
from holdfast.core.batch.lifecycle import BatchState
from holdfast.core.intake.web_pages import is_json
from holdfast.storage.batch_records import BatchRecord

WINDOW: Final = "24h"
_BODY_BYTES_MAX: Final = 64 << 10
_METADATA_MAX: Final = 16  # pairs, keys of 64 and values of 512 characters, as OpenAI has it
_SHOWN: Final = {BatchState.EXPIRING.value: BatchState.IN_PROGRESS.value}
_TIMES: Final = (
    ("in_progress_at", BatchState.IN_PROGRESS),
    ("finalizing_at", BatchState.FINALIZING),
    ("completed_at", BatchState.COMPLETED),
    ("failed_at", BatchState.FAILED),
    ("expired_at", BatchState.EXPIRED),
    ("cancelling_at", BatchState.CANCELLING),
    ("cancelled_at", BatchState.CANCELLED),
)


def batch_json(record: BatchRecord, counts: BatchCounts) -> dict[str, Any]:
    """A batch as OpenAI's API shows it."""
    times = record.times or {}
    errors = {"object": "list", "data": list(record.errors)} if record.errors else None
    return {
        "id": record.id,
        "object": "batch",
        "endpoint": record.endpoint,
        "errors": errors,
        "input_file_id": record.input_file_id,
        "completion_window": WINDOW,
        "status": _SHOWN.get(record.state, record.state),
        "output_file_id": record.output_file_id,
        "error_file_id": record.error_file_id,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        **{name: times.get(state.value) for name, state in _TIMES},
        "request_counts": {
            "total": counts.total,
            "completed": counts.completed,
            "failed": counts.failed,
        },
        "metadata": record.metadata,
    }


class BatchesApi:
    """The handlers of ``/v1/batches``."""

    def __init__(self, desk: BatchDesk) -> None:
        self._desk = desk
        self._keys = CreationKeys(desk.records)

    def routes(self) -> list[Route]:
        """The routes of all handlers."""
        return [
            Route("/v1/batches", self.create, methods=["POST"]),
            Route("/v1/batches", self.list, methods=["GET"]),
            Route("/v1/batches/{batch_id}", self.retrieve, methods=["GET"]),
            Route("/v1/batches/{batch_id}/cancel", self.cancel, methods=["POST"]),
        ]

    async def create(self, request: Request) -> Response:
        """Accept a batch; its lines are checked afterwards, and its state tells the result."""
        tenant = tenant_of(request)
        if not is_json(request.headers.get("content-type", "")):
            message = "Send the body as JSON, with content-type: application/json."
            raise ApiRefusalError(415, "unsupported_media_type", message)
        name = self._keys.name_of(request)
        body = await _body(request)
        new = read_new_batch(body)
        asked = fingerprint_of(orjson.dumps(orjson.loads(body), option=orjson.OPT_SORT_KEYS))
        async with self._keys.turn(tenant, name):
            made = await self._keys.made(tenant, name, asked)
            if not made:
                make_key = partial(self._keys.new, tenant, name, asked)
                record = await self._desk.create(tenant, new, make_key)
                return json_answer(await self._shown(record))
        found = await asyncio.to_thread(self._desk.records.batch, tenant, made)
        if found is None:
            raise gone()
        return json_answer(await self._shown(found))

    async def retrieve(self, request: Request) -> Response:
        """Answer with one batch as it is now."""
        return json_answer(await self._shown(await self._own(request)))

    async def list(self, request: Request) -> Response:
        """Answer with the batches of the tenant, newest first."""
        tenant, query = tenant_of(request), request.query_params
        limit = number(query.get("limit"), "limit", 20, 100)
        found = await asyncio.to_thread(
            self._desk.records.batches, tenant, limit + 1, query.get("after")
        )
        shown = [await self._shown(record) for record in found[:limit]]
        return json_answer(
            {
                "object": "list",
                "data": shown,
                "first_id": shown[0]["id"] if shown else None,
                "last_id": shown[-1]["id"] if shown else None,
                "has_more": len(found) > limit,
            }
        )

    async def cancel(self, request: Request) -> Response:
        """Begin to cancel a batch; what is done by then is in its output file."""
        record = await self._own(request)
        cancelled = await self._desk.cancel(record.tenant, record.id)
        return json_answer(await self._shown(cancelled))

    async def _own(self, request: Request) -> BatchRecord:
        batch_id = request.path_params["batch_id"]
        record = await asyncio.to_thread(self._desk.records.batch, tenant_of(request), batch_id)
        if record is None:
            raise no_batch(batch_id)
        return record

    async def _shown(self, record: BatchRecord) -> dict[str, Any]:
        return batch_json(record, await self._desk.counts(record))


async def _body(request: Request) -> bytes:
    body = b""
    async for data in request.stream():
        body += data
        if len(body) > _BODY_BYTES_MAX:
            raise ApiRefusalError(
                413, "request_too_large", "The body is larger than any batch needs."
            )
    return body


def read_new_batch(body: bytes) -> NewBatch:
    """Read and check the body that creates a batch; ``ApiRefusalError`` names what is wrong."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid("The body is not valid JSON.", None, "invalid_json") from error
    if not isinstance(said, dict):
        raise invalid("The body must be a JSON object.", None, "invalid_json")
    for name in ("input_file_id", "endpoint", "completion_window"):
        if not isinstance(said.get(name), str):
            raise invalid(f"Send '{name}' as a text.", name, "missing_required_parameter")
    if said["endpoint"] not in ENDPOINTS:
        raise invalid(f"Use one of {', '.join(ENDPOINTS)}.", "endpoint")
    if said["completion_window"] != WINDOW:
        raise invalid(f"Use '{WINDOW}'.", "completion_window")
    keep_s = None
    after = said.get("output_expires_after")
    if after is not None:
        if not isinstance(after, dict) or after.get("anchor") != "created_at":
            message = 'Use {"anchor": "created_at", "seconds": N}.'
            raise invalid(message, "output_expires_after")
        keep_s = check_expiry(after.get("seconds"), "output_expires_after.seconds")
    return NewBatch(
        said["endpoint"], said["input_file_id"], _metadata(said.get("metadata")), keep_s
    )


def _metadata(given: Any) -> dict[str, str] | None:
    if given is None:
        return None
    well = isinstance(given, dict) and len(given) <= _METADATA_MAX
    pairs = given.items() if well else ()
    well = well and all(
        isinstance(value, str) and len(key) <= 64 and len(value) <= 512 for key, value in pairs
    )
    if not well:
        message = f"Use up to {_METADATA_MAX} pairs of texts, keys to 64, values to 512 characters."
        raise invalid(message, "metadata")
    return {str(key): str(value) for key, value in pairs}


__all__ = ["BatchesApi", "batch_json", "read_new_batch"]
