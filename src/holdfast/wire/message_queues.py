"""Opens the queues of consumers, and the places where their answers go, as a fleet file names them.

The clients of queues are extras: they are imported here, and only for the kinds that are named.
"""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.config.batch.consumers import (
    ConsumerSection,
    FolderOutboxSection,
    InboxSection,
    OutboxSection,
    RedisInboxSection,
    RedisOutboxSection,
    S3OutboxSection,
    SqsInboxSection,
)
from holdfast.config.files import read_secret
from holdfast.core.types import ConfigError
from holdfast.queue_port import QueueUnsupportedError
from holdfast.queue_port.messages import Inbox, Outbox


def open_boxes(
    section: ConsumerSection, environ: Mapping[str, str] = os.environ
) -> tuple[Inbox, Outbox]:
    """Open the queue and the place for replies; raises ``ConfigError`` where a client is missing.

    Nothing is connected before the first call: a server that is away is an error of that call.
    """
    where = f"consumers: {section.called}"
    return _inbox(where, section.inbox, environ), _outbox(where, section.reply, environ)


def check_boxes(section: ConsumerSection, environ: Mapping[str, str] = os.environ) -> None:
    """Raise ``ConfigError`` where a client is not installed or a URL is missing; opens nothing."""
    for member, box in (("from", section.inbox), ("reply", section.reply)):
        where = f"consumers: {section.called}: {member}"
        if isinstance(box, RedisInboxSection | RedisOutboxSection):
            _redis(where, box.url_env, box.url_file, environ)
        elif not isinstance(box, FolderOutboxSection):
            _need_boto3(where, box.kind)


def _inbox(where: str, section: InboxSection, environ: Mapping[str, str]) -> Inbox:
    if isinstance(section, SqsInboxSection):
        from holdfast.storage.message_queues.sqs_boxes import SqsInbox  # noqa: PLC0415 as below

        return SqsInbox(_aws(f"{where}: from", "sqs", section), section.queue)
    assert isinstance(section, RedisInboxSection)
    url = _redis(f"{where}: from", section.url_env, section.url_file, environ)
    from holdfast.storage.message_queues.redis_boxes import RedisInbox  # noqa: PLC0415 an extra

    return RedisInbox(url, stream=section.stream, list_key=section.list_key, group=section.group)


def _outbox(where: str, section: OutboxSection, environ: Mapping[str, str]) -> Outbox:
    if isinstance(section, RedisOutboxSection):
        url = _redis(f"{where}: reply", section.url_env, section.url_file, environ)
        from holdfast.storage.message_queues.redis_boxes import RedisOutbox  # noqa: PLC0415

        return RedisOutbox(
            url,
            stream=section.stream,
            list_key=section.list_key,
            length_max=section.length_max,
        )
    from holdfast.storage.message_queues.object_outboxes import (  # noqa: PLC0415 an extra
        FolderOutbox,
        S3Outbox,
    )

    if isinstance(section, FolderOutboxSection):
        return FolderOutbox(section.path)
    if isinstance(section, S3OutboxSection):
        client = _aws(f"{where}: reply", "s3", section)
        return S3Outbox(client, section.bucket, section.prefix)
    from holdfast.storage.message_queues.sqs_boxes import SqsOutbox  # noqa: PLC0415 as above

    return SqsOutbox(_aws(f"{where}: reply", "sqs", section), section.queue)


def _aws(where: str, service: str, section: Any) -> Any:
    _need_boto3(where, service)
    from holdfast.storage.queues.sqs_calls import aws_client  # noqa: PLC0415 an extra

    try:
        return aws_client(service, section.region, section.profile, section.endpoint_url)
    except (QueueUnsupportedError, ValueError) as error:
        fix = "name region and profile, or set AWS_REGION and AWS_PROFILE"
        raise ConfigError(where, f"cannot be opened: {error}", fix) from None


def _need_boto3(where: str, service: str) -> None:
    if find_spec("boto3") is None:
        problem = f"is {service}, and its client boto3 is not installed"
        raise ConfigError(f"{where}.kind", problem, "pip install 'holdfast[aws]'")


def _redis(
    where: str, url_env: str | None, url_file: Path | None, environ: Mapping[str, str]
) -> str:
    if find_spec("redis") is None:
        problem = "is redis, and its client redis is not installed"
        raise ConfigError(f"{where}.kind", problem, "pip install 'holdfast[redis]'")
    if url_file is not None:
        try:
            return read_secret(url_file).strip()
        except ConfigError as error:
            raise ConfigError(f"{where}.url_file", error.problem, error.fix) from None
    url = environ.get(url_env or "", "").strip()
    if not url:
        fix = f"set {url_env}, or use url_file"
        raise ConfigError(f"{where}.url_env", f"names {url_env}, which is not set", fix)
    return url


__all__ = ["check_boxes", "open_boxes"]
