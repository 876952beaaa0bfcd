"""OpenTelemetry's attribute names for generative models, as far as they are used here.

Written down here because they are still in development: the constants of the Python package are
marked as moved, and a version of it would change what dashboards are built on. Metrics of the same
conventions are named in ``gateway.telemetry.counters``.
"""

from collections.abc import Mapping
from typing import Final

OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
STATUS_CODE: Final = "http.response.status_code"

# Ours, where the conventions have nothing.
REQUEST_ID: Final = "holdfast.request.id"
TENANT: Final = "holdfast.tenant"
REPLICA: Final = "holdfast.replica"
ATTEMPT: Final = "holdfast.attempt"
ATTEMPTS: Final = "holdfast.attempts"
CONTINUED: Final = "holdfast.continued"
CONTINUES: Final = "holdfast.attempt.continues"

PROVIDER: Final = "holdfast"  # of the server's side

_OPERATIONS: Final[Mapping[str, str]] = {
    "chat": "chat",
    "responses": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
}


def operation(api: str) -> str:
    """OpenTelemetry's operation name for an API path; our own name if it has none."""
    return _OPERATIONS.get(api, api)


__all__ = [
    "ATTEMPT",
    "ATTEMPTS",
    "CONTINUED",
    "CONTINUES",
    "ERROR_TYPE",
    "INPUT_TOKENS",
    "OPERATION_NAME",
    "OUTPUT_TOKENS",
    "PROVIDER",
    "PROVIDER_NAME",
    "REPLICA",
    "REQUEST_ID",
    "REQUEST_MODEL",
    "REQUEST_STREAM",
    "RESPONSE_FIRST_CHUNK",
    "RESPONSE_MODEL",
    "SERVER_ADDRESS",
    "SERVER_PORT",
    "STATUS_CODE",
    "TENANT",
    "operation",
]
