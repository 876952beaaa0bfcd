"""``/v1/files``: upload, list, look at, read and delete files, each tenant only its own."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from hashlib import sha256
from typing import Any, BinaryIO, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from holdfast.batch.api_answers import json_answer, number, tenant_of
from holdfast.batch.api_errors import ApiRefusalError, disk_full, invalid, no_file, quota_full
from holdfast.batch.creation_keys import CreationKeys, fingerprint_of, gone
from holdfast.batch.disk_threads import in_disk_thread
from holdfast.batch.file_store import FileStore, PartialFile
from holdfast.batch.form_stream import FileBegun, FileData, FileEnded, FormField, FormStream
from holdfast.batch.held_bytes import HeldBytes
from holdfast.storage.batch_records import (
    BatchRecords,
    CreationKey,
    FileRecord,
    RecordsFullError,
)

PURPOSES: Final = ("batch",)  # what a client may upload; outputs are ``batch_output``
OUTPUT_PURPOSE: Final = "batch_output"
EXPIRES_MIN_S: Final = 3_600  # as OpenAI bounds it
EXPIRES_MAX_S: Final = 2_592_000
_LIST_MAX: Final = 10_000
_NAME_MAX: Final = 255
_PIECE_BYTES: Final = 256 << 10


def file_json(record: FileRecord) -> dict[str, Any]:
    """A file as OpenAI's API shows it."""
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.bytes,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "filename": record.name,
        "purpose": record.purpose,
        "status": "processed",
        "status_details": None,
    }


class FilesApi:
    """The handlers of ``/v1/files``."""

    def __init__(self, records: BatchRecords, store: FileStore, held: HeldBytes) -> None:
        self._records = records
        self._store = store
        self._held = held
        self._keys = CreationKeys(records)

    def routes(self) -> list[Route]:
        """The routes of all handlers."""
        return [
            Route("/v1/files", self.create, methods=["POST"]),
            Route("/v1/files", self.list, methods=["GET"]),
            Route("/v1/files/{file_id}", self.retrieve, methods=["GET"]),
            Route("/v1/files/{file_id}", self.delete, methods=["DELETE"]),
            Route("/v1/files/{file_id}/content", self.content, methods=["GET"]),
        ]

    async def create(self, request: Request) -> Response:
        """Take an upload: to disk as it comes, accepted when it is synced."""
        tenant = tenant_of(request)
        form = FormStream(request.headers.get("content-type", ""))
        limits = self._store.limits
        count = await asyncio.to_thread(self._records.count_files, tenant)
        if count >= limits.tenant_files_max:
            message = f"You have {count} files, which is the limit; delete some."
            raise ApiRefusalError(429, "files_quota_exceeded", message)
        upload = _Upload(self._keys.name_of(request))
        try:
            async for data in request.stream():
                await self._take(upload, form.feed(data), tenant)
            return await self._accept(upload, form, tenant)
        except ClientDisconnect:
            return Response(status_code=499)
        finally:
            if not upload.kept:
                self._held.give_back(tenant, upload.counted)
            if upload.file is not None:
                await in_disk_thread(upload.file.drop)

    async def _take(self, upload: "_Upload", events: list[Any], tenant: str) -> None:
        limits = self._store.limits
        for event in events:
            if isinstance(event, FormField):
                upload.fields[event.name] = event.value
            elif isinstance(event, FileBegun):
                if event.field != "file":
                    raise invalid("Send the file in the field 'file'.", "file")
                upload.name = event.filename[:_NAME_MAX]
                await in_disk_thread(upload.begin, self._store)
            elif isinstance(event, FileData) and upload.file is not None:
                size = len(event.data)
                if upload.file.bytes + size > limits.file_bytes_max:
                    message = f"A file may have {limits.file_bytes_max} bytes; split it."
                    raise ApiRefusalError(413, "file_too_large", message, "file")
                if not self._held.take(tenant, size):
                    raise quota_full(limits.tenant_bytes_max, "file")
                upload.counted += size
                await in_disk_thread(upload.write, event.data)
            elif isinstance(event, FileEnded):
                upload.complete = True

    async def _accept(self, upload: "_Upload", form: FormStream, tenant: str) -> Response:
        purpose = upload.fields.get("purpose")
        if not form.complete or not upload.complete or upload.file is None:
            raise invalid("The form has no complete file in the field 'file'.", "file")
        if purpose is None:
            raise invalid("Send the field 'purpose'.", "purpose", "missing_required_parameter")
        if purpose not in PURPOSES:
            raise invalid(f"Use one of the purposes {', '.join(PURPOSES)}.", "purpose")
        now = int(time.time())
        keep_s = _expires_after(upload.fields)
        if keep_s is None:
            keep_s = int(self._store.limits.keep_s)
        record = FileRecord(
            upload.file.id, tenant, purpose, upload.name, upload.file.bytes, now, now + keep_s
        )
        asked = upload.fingerprint()
        async with self._keys.turn(tenant, upload.key):
            made = await self._keys.made(tenant, upload.key, asked)
            if not made:
                key = self._keys.new(tenant, upload.key, asked, record.id)
                await in_disk_thread(upload.keep, self._records, record, key)
                return json_answer(file_json(record))
        found = await asyncio.to_thread(self._records.file, tenant, made)
        if found is None:
            raise gone()
        return json_answer(file_json(found))

    async def list(self, request: Request) -> Response:
        """Answer with the files of the tenant."""
        tenant, query = tenant_of(request), request.query_params
        limit = number(query.get("limit"), "limit", 1_000, _LIST_MAX)
        order = query.get("order", "desc")
        if order not in {"asc", "desc"}:
            raise invalid("Use asc or desc.", "order")
        found = await asyncio.to_thread(
            self._records.files,
            tenant,
            limit + 1,
            purpose=query.get("purpose"),
            after=query.get("after"),
            newest_first=order == "desc",
        )
        shown = [file_json(record) for record in found[:limit]]
        return json_answer(
            {
                "object": "list",
                "data": shown,
                "first_id": shown[0]["id"] if shown else None,
                "last_id": shown[-1]["id"] if shown else None,
                "has_more": len(found) > limit,
            }
        )

    async def retrieve(self, request: Request) -> Response:
        """Answer with what is known of a file."""
        return json_answer(file_json(await self._own(request)))

    async def delete(self, request: Request) -> Response:
        """Delete a file; one that a running batch reads is refused."""
        record = await self._own(request)
        running = await asyncio.to_thread(self._in_use, record)
        if running:
            message = f"The file is the input of {running}, which has not ended; cancel it first."
            raise ApiRefusalError(409, "file_in_use", message, "id")
        if await asyncio.to_thread(self._records.drop_file, record.id):
            self._held.give_back(record.tenant, record.bytes)
        await asyncio.to_thread(self._store.delete, record.id)
        return json_answer({"id": record.id, "object": "file", "deleted": True})

    async def content(self, request: Request) -> Response:
        """Answer with the bytes of a file, piece by piece."""
        record = await self._own(request)
        with ExitStack() as opened:
            file = await in_disk_thread(lambda: opened.enter_context(self._store.open(record.id)))
            return _FileContent(file, record.bytes, opened.pop_all())

    async def _own(self, request: Request) -> FileRecord:
        file_id = request.path_params["file_id"]
        record = await asyncio.to_thread(self._records.file, tenant_of(request), file_id)
        if record is None:
            raise no_file(file_id)
        return record

    def _in_use(self, record: FileRecord) -> str | None:
        states = ("validating", "in_progress", "finalizing", "cancelling", "expiring")
        for batch in self._records.batches_in(states):
            if batch.input_file_id == record.id:
                return batch.id
        return None


class _Upload:
    """What is known of an upload under way."""

    def __init__(self, key: str = "") -> None:
        self.key = key  # the name of its idempotency key; empty: none
        self._digest = sha256()
        self.counted = 0  # bytes in the account of its tenant
        self.kept = False  # it has a record: its bytes stay in the account
        self.fields: dict[str, str] = {}
        self.file: PartialFile | None = None
        self.name = ""
        self.complete = False

    def begin(self, store: FileStore) -> None:
        """Begin the file. Blocks."""
        self.file = store.begin()

    def write(self, data: bytes) -> None:
        """Append bytes of the file. Blocks."""
        if self.key:
            self._digest.update(data)
        if self.file is not None:
            self.file.write(data)

    def keep(self, records: BatchRecords, record: FileRecord, key: CreationKey | None) -> None:
        """Make the file durable, and then its record. Blocks."""
        assert self.file is not None
        self.file.keep()
        try:
            records.add_file(record, key)
        except RecordsFullError as error:
            raise disk_full() from error
        self.kept = True

    def fingerprint(self) -> str:
        """What tells another upload from this one: its form and its bytes."""
        fields = (f"{name}={self.fields[name]}" for name in sorted(self.fields))
        return fingerprint_of(self.name, self._digest.digest(), *fields)


class _FileContent(StreamingResponse):
    """The bytes of a file; closes it when the answer has ended, however that ends."""

    def __init__(self, file: BinaryIO, size: int, opened: ExitStack) -> None:
        super().__init__(
            self._pieces(file),
            media_type="application/octet-stream",
            headers={"content-length": str(size)},
        )
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._opened:
            await super().__call__(scope, receive, send)

    @staticmethod
    async def _pieces(file: BinaryIO) -> AsyncIterator[bytes]:
        while data := await in_disk_thread(file.read, _PIECE_BYTES):
            yield data


def _expires_after(fields: dict[str, str]) -> int | None:
    """Seconds that ``expires_after[anchor]`` and ``expires_after[seconds]`` ask for, if any."""
    anchor, given = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and given is None:
        return None
    if anchor != "created_at":
        raise invalid("Use the anchor created_at.", "expires_after[anchor]")
    return check_expiry(given, "expires_after[seconds]")


def check_expiry(given: Any, param: str) -> int:
    """The seconds after which a file expires, checked."""
    try:
        found = int(given)
    except (TypeError, ValueError):
        found = -1
    if not EXPIRES_MIN_S <= found <= EXPIRES_MAX_S:
        raise invalid(f"Use {EXPIRES_MIN_S} to {EXPIRES_MAX_S} seconds.", param)
    return found


__all__ = ["OUTPUT_PURPOSE", "PURPOSES", "FilesApi", "check_expiry", "file_json"]
