"""Config of consumers: queues that others fill with requests, and where the answers go.

    consumers:
      - model: parler-tts
        path: /v1/audio/speech
        from: {kind: sqs, queue: parler-tts-requests, region: eu-west-2}
        reply: {kind: s3, bucket: marigold-answers, prefix: parler-tts/, region: eu-west-2}

No key of a cloud is part of it: boto3 finds them where the platform's own tools do. The URL of a
Redis server may hold its password, so the file names where the URL is.
"""

from pathlib import Path
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from holdfast.config.addresses import Variable
from holdfast.config.sections import Duration, Section
from holdfast.config.sources import Endpoint
from holdfast.config.tenants import ANONYMOUS, Name
from holdfast.core.types import require

CONSUMERS_MAX: Final = 64
ApiPath = Literal[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/moderations",
    "/v1/rerank",
    "/v1/audio/speech",
    "/v1/images/generations",
]
PATHS: Final[tuple[str, ...]] = get_args(ApiPath)
Text = Annotated[str, Field(max_length=512, description="text")]
Required = Annotated[str, Field(min_length=1, max_length=512, description="a name")]


class _Aws(Section):
    """How an account of AWS is reached."""

    kind: str  # the first key of a file: it decides the others
    region: Text = ""  # empty: as the profile or the environment says
    profile: Text = ""  # of ~/.aws/config; empty: what boto3 finds
    endpoint_url: Endpoint = ""  # empty: AWS itself


class _Redis(Section):
    """Where the URL of a Redis or Valkey server is."""

    kind: str
    url_env: Variable = None  # the environment variable with the server's URL
    url_file: Path | None = None  # or the file with it, by its whole path

    @model_validator(mode="after")
    def _one_url(self) -> Self:
        given = [name for name in ("url_env", "url_file") if getattr(self, name) is not None]
        fix = "name the environment variable or the file that holds the server's URL, one of them"
        problem = "is missing" if not given else "is set beside url_file"
        require(len(given) == 1, "url_env", problem, fix)
        return self


class SqsInboxSection(_Aws):
    """A queue of Amazon SQS with requests."""

    kind: Literal["sqs"]
    queue: Required  # its name; of a FIFO queue with .fifo

    @property
    def called(self) -> str:
        """The queue's name, as rows show it."""
        return self.queue


class RedisInboxSection(_Redis):
    """A stream or a list of Redis or Valkey with requests."""

    kind: Literal["redis"]
    stream: Text = ""  # read as a consumer group
    list_key: Text = Field(default="", alias="list")  # filled with LPUSH, read from its other end
    group: Required = "holdfast"  # the consumer group

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        fix = "name the key of a stream (XADD) or of a list (LPUSH), one of them"
        problem = "is set beside list" if self.stream and self.list_key else "is missing"
        require(bool(self.stream) != bool(self.list_key), "stream", problem, fix)
        return self

    @property
    def called(self) -> str:
        """The key of the stream or list, as rows show it."""
        return self.stream or self.list_key


class SqsOutboxSection(_Aws):
    """A queue of Amazon SQS that answers are sent to."""

    kind: Literal["sqs"]
    queue: Required


class S3OutboxSection(_Aws):
    """A bucket that answers are put into, one object for each request."""

    kind: Literal["s3"]
    bucket: Required
    prefix: Text = ""  # of the objects' keys


class RedisOutboxSection(_Redis):
    """A stream or a list of Redis or Valkey that answers are added to."""

    kind: Literal["redis"]
    stream: Text = ""  # XADD with the fields id and body
    list_key: Text = Field(default="", alias="list")  # LPUSH of the answer
    length_max: Annotated[int, Field(ge=1, le=100_000_000, description="entries")] = (
        100_000  # of the stream; older answers fall out, so that nobody reads them fills no memory
    )

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        fix = "name the key of a stream or of a list, one of them"
        problem = "is set beside list" if self.stream and self.list_key else "is missing"
        require(bool(self.stream) != bool(self.list_key), "stream", problem, fix)
        return self


class FolderOutboxSection(Section):
    """A folder of this machine that answers are written into, one file for each request."""

    kind: Literal["folder"]
    path: Path  # by its whole path; made where it is missing

    @model_validator(mode="after")
    def _whole(self) -> Self:
        fix = "write the whole path, such as /var/lib/holdfast/answers"
        require(self.path.is_absolute(), "path", f"is {str(self.path)!r}", fix)
        return self


InboxSection = Annotated[SqsInboxSection | RedisInboxSection, Field(discriminator="kind")]
OutboxSection = Annotated[
    SqsOutboxSection | S3OutboxSection | RedisOutboxSection | FolderOutboxSection,
    Field(discriminator="kind"),
]


class ConsumerSection(Section):
    """One queue of requests for one model, that others fill and this fleet works off."""

    model: Annotated[Name, Field(description="a model of this file")]
    name: Annotated[Name | None, Field(description="a name")] = None  # none: the model's
    inbox: Annotated[InboxSection, Field(alias="from", description="a queue")]
    reply: Annotated[OutboxSection, Field(description="where answers go")]
    path: Annotated[ApiPath, Field(description="a path of the API")] = (
        "/v1/chat/completions"  # of messages that are a body alone
    )
    tenant: Name = ANONYMOUS  # in whose name and with whose quota requests are sent
    priority: Literal["batch", "interactive"] = "batch"  # batch: on spare capacity only
    at_once_max: Annotated[int, Field(ge=1, le=4_096, description="requests")] = (
        256  # held in memory; the pace of its priority may allow fewer
    )
    keep_s: Annotated[Duration, Field(ge=60, le=30 * 86_400, description="seconds")] = (
        3_600.0  # an id is remembered with its answer; a repeated message gets that answer
    )

    @property
    def called(self) -> str:
        """The name of this consumer, in commands and rows."""
        return self.name or self.model


__all__ = [
    "CONSUMERS_MAX",
    "PATHS",
    "ApiPath",
    "ConsumerSection",
    "FolderOutboxSection",
    "InboxSection",
    "OutboxSection",
    "RedisInboxSection",
    "RedisOutboxSection",
    "S3OutboxSection",
    "SqsInboxSection",
    "SqsOutboxSection",
]
