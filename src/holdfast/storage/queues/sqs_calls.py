"""Calls to Amazon SQS: in threads, ten messages at a time, with errors as queues tell them.

Everything of boto3 blocks. What is away, refused or throttled is ``QueueUnavailableError``; a
receipt that SQS does not take any more is an answer, not an error.
"""

import asyncio
import importlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import orjson
import structlog

from holdfast.queue_port import ItemState, QueueError, QueueUnavailableError, QueueUnsupportedError

BATCH: Final = 10  # messages of one call: what SQS takes
VISIBILITY_S_MAX: Final = 43_200.0  # twelve hours, by SQS
THREADS: Final = 4  # calls at one time: lease, heartbeat, ack, one to spare
RECEIVES_LEAST: Final = 3  # below it, AWS gives items up that ours would try again
CONNECT_S: Final = 5.0  # endpoints of a region answer in milliseconds
ANSWER_S: Final = 30.0  # of one attempt; a call that waits for messages takes up to 20
ATTEMPTS: Final = 3
_COUNTS: Final = {
    "ApproximateNumberOfMessages": ItemState.READY,
    "ApproximateNumberOfMessagesDelayed": ItemState.DELAYED,
    "ApproximateNumberOfMessagesNotVisible": ItemState.LEASED,
}
_log = structlog.get_logger("holdfast.queues")


def aws_client(service: str, region: str = "", profile: str = "", endpoint_url: str = "") -> Any:
    """A client of boto3 with its usual ways to credentials; raises where none can be made."""
    try:
        boto3 = importlib.import_module("boto3")
        botocore: Any = importlib.import_module("botocore.config")
        errors: Any = importlib.import_module("botocore.exceptions")
    except ImportError as error:
        needs = f"{service} needs boto3: pip install 'holdfast[aws]'"
        raise QueueUnsupportedError(needs) from error
    config = botocore.Config(
        connect_timeout=CONNECT_S,
        read_timeout=ANSWER_S,
        retries={"mode": "standard", "max_attempts": ATTEMPTS},
    )
    try:
        session = boto3.session.Session(region_name=region or None, profile_name=profile or None)
        return session.client(service, endpoint_url=endpoint_url or None, config=config)
    except errors.BotoCoreError as error:  # no region, no such profile
        raise QueueUnsupportedError(f"{service}: {error}") from error


def sqs_client(region: str = "", profile: str = "", endpoint_url: str = "") -> Any:
    """A client of SQS."""
    return aws_client("sqs", region, profile, endpoint_url)


class AwsThreads:
    """Runs calls of one boto3 client in threads of its own, and translates their errors."""

    def __init__(self, client: Any, service: str = "SQS", threads: int = THREADS) -> None:
        self._client = client
        self._service = service
        self._threads = ThreadPoolExecutor(threads, service.lower())

    async def ask(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The answer of one call by its name in boto3."""
        call: Callable[[], dict[str, Any]] = partial(getattr(self._client, name), **arguments)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except Exception as error:
            raise _translated(self._service, name, error) from error

    async def close(self) -> None:
        """Let go of the threads."""
        await asyncio.to_thread(self._threads.shutdown)


class SqsCalls(AwsThreads):
    """The calls to SQS that queues and inboxes share; a queue is named by its URL."""

    async def show_again(self, url: str, receipt: str, seconds: int) -> bool:
        """Set when a message is shown again; False where its receipt is not the newest."""
        try:
            await self.ask(
                "change_message_visibility",
                QueueUrl=url,
                ReceiptHandle=receipt,
                VisibilityTimeout=min(seconds, int(VISIBILITY_S_MAX)),
            )
        except StaleReceiptError:
            return False
        return True

    async def delete(self, url: str, receipts: Sequence[str]) -> None:
        """Delete messages; one that stays comes again, and is recognised by its record."""
        for start in range(0, len(receipts), BATCH):
            part = receipts[start : start + BATCH]
            entries = [{"Id": str(n), "ReceiptHandle": receipt} for n, receipt in enumerate(part)]
            answer = await self.ask("delete_message_batch", QueueUrl=url, Entries=entries)
            failed = answer.get("Failed") or ()
            if failed:
                _log.info("messages not deleted", queue=url.rpartition("/")[2], count=len(failed))

    async def send(self, url: str, entries: Sequence[dict[str, Any]]) -> None:
        """Send up to ten messages; where this raises, some may have been sent."""
        answer = await self.ask("send_message_batch", QueueUrl=url, Entries=list(entries))
        failed = answer.get("Failed") or ()
        if failed:
            told = failed[0].get("Message") or failed[0].get("Code")
            raise QueueUnavailableError(f"SQS: {len(failed)} of {len(entries)} not sent: {told}")

    async def counts(self, url: str) -> dict[ItemState, int]:
        """Messages by state, as SQS counts them: roughly."""
        answer = await self.ask("get_queue_attributes", QueueUrl=url, AttributeNames=list(_COUNTS))
        told = answer.get("Attributes") or {}
        return {state: int(told.get(name, 0)) for name, state in _COUNTS.items()}

    async def redrive_policy(self, url: str) -> tuple[int, str]:
        """After how many receives AWS gives a message up, and to which queue; (0, ""): never."""
        answer = await self.ask(
            "get_queue_attributes", QueueUrl=url, AttributeNames=["RedrivePolicy"]
        )
        text = (answer.get("Attributes") or {}).get("RedrivePolicy")
        policy = orjson.loads(text) if text else {}
        target = str(policy.get("deadLetterTargetArn") or "")
        return int(policy.get("maxReceiveCount") or 0), target.rpartition(":")[2]


class StaleReceiptError(QueueError):
    """A receipt handle that SQS does not take any more."""


def warn_of_policy(queue: str, receives: int) -> None:
    """Say that AWS gives messages up sooner than three receives allow; 0: it never does."""
    if 0 < receives < RECEIVES_LEAST:
        _log.warning(
            "the redrive policy of this SQS queue gives messages up early",
            queue=queue,
            max_receive_count=receives,
            fix=f"set maxReceiveCount to {RECEIVES_LEAST} or more",
        )


def _translated(service: str, name: str, error: Exception) -> QueueError:
    """An error of boto3 as the port tells it, recognised by its code."""
    answer = getattr(error, "response", None) or {}
    code = str((answer.get("Error") or {}).get("Code", ""))
    stale = ("ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue")
    if name == "change_message_visibility" and code.rpartition(".")[2].startswith(stale):
        return StaleReceiptError(str(error))
    return QueueUnavailableError(f"{service}: {error}")


__all__ = [
    "BATCH",
    "RECEIVES_LEAST",
    "VISIBILITY_S_MAX",
    "AwsThreads",
    "SqsCalls",
    "StaleReceiptError",
    "aws_client",
    "sqs_client",
    "warn_of_policy",
]
