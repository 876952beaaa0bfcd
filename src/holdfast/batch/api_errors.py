"""The errors of the Files and Batches API, in OpenAI's shape.

    ApiRefusalError        status  codes
     ├─ the request   400     invalid_value, invalid_json, invalid_purpose,
     │                        missing_required_parameter
     ├─ unknown       404     file_not_found, batch_not_found: also those of another tenant
     ├─ a conflict    409     file_in_use, batch_finished
     ├─ too large     413     file_too_large
     ├─ not JSON      415     unsupported_media_type
     ├─ a quota       429     files_quota_exceeded, batches_quota_exceeded, rate_limit_exceeded
     └─ no room       507     disk_full: interactive traffic goes on

A message names the member at fault and the fix; it quotes nothing of a file's content.
"""

from typing import Any, Final

INVALID: Final = "invalid_request_error"
_TYPES: Final = {
    429: "rate_limit_error",  # the tenant's own bound, not the fleet's
    503: "overloaded_error",  # as the gateway says it
    507: "insufficient_storage_error",  # the operator's disk: 500 would look like a bug
}


class ApiRefusalError(Exception):
    """A request that is refused: the status and the error object that its caller gets."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s  # None: nobody knows when it would be accepted

    def body(self) -> dict[str, Any]:
        """The error as OpenAI's SDKs read it."""
        kind = _TYPES.get(self.status, INVALID if self.status < 500 else "server_error")
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiRefusalError:
    """A 400: the request can never work as it is."""
    return ApiRefusalError(400, code, message, param)


def no_file(file_id: str) -> ApiRefusalError:
    """The 404 for a file that does not exist or belongs to another tenant: both look alike."""
    return ApiRefusalError(404, "file_not_found", f"No such File object: {file_id[:64]}", "id")


def no_batch(batch_id: str) -> ApiRefusalError:
    """The 404 for a batch that does not exist or belongs to another tenant."""
    return ApiRefusalError(
        404, "batch_not_found", f"No batch found with id '{batch_id[:64]}'.", "id"
    )


def quota_full(bytes_max: int, param: str | None = None) -> ApiRefusalError:
    """The 429 for a tenant whose files and results have no room for more."""
    message = f"Your files and results may have {bytes_max} bytes together; delete some files."
    return ApiRefusalError(429, "files_quota_exceeded", message, param)


def disk_full() -> ApiRefusalError:
    """The 507 for a disk without room: nothing of the upload is kept, other traffic goes on."""
    message = (
        "The disk that keeps files and batches is full. Nothing of this request was kept; try "
        "again when the operator has made room."
    )
    return ApiRefusalError(507, "disk_full", message)


__all__ = [
    "INVALID",
    "ApiRefusalError",
    "disk_full",
    "invalid",
    "no_batch",
    "no_file",
    "quota_full",
]
