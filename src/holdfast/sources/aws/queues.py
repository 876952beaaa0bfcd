"""Reads SQS queues: how many messages wait, are being worked on, and were given up.

There is no call that counts several queues, so each is asked by itself; beyond so many of them
their counts come from metrics instead, a minute late, and only redrive policies are read here, some
at a time. Dead letters are found through the redrive policy, never by a name: one such queue may
serve several others and be called anything.
"""

import json
import os.path
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.sources.aws.calls import AwsCaller
from holdfast.sources.aws.config import AwsConfig
from holdfast.sources.aws.errors import CallError, CallFailure

_COUNTS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
_ATTRIBUTES: Final = [*_COUNTS, "RedrivePolicy"]
_ONE_QUEUE: Final = {CallFailure.DENIED, CallFailure.MISSING}  # what may concern a single queue


@dataclass(slots=True, frozen=True)
class QueueCounts:
    """Message counts of one queue; None where they have to come from metrics."""

    name: str
    visible: int | None = None
    in_flight: int | None = None
    delayed: int | None = None
    dead_letter_queue: str = ""
    dead_letters_of: str = ""  # region and account, where they differ from this queue's own


@dataclass(slots=True, frozen=True)
class QueueTable:
    """All queues that were read, dead-letter queues among them."""

    counted: dict[str, QueueCounts]
    models: dict[str, str]  # by queue, for those that serve a model
    by_metrics: bool = False  # there are too many to ask each for its counts

    def depth(self, name: str) -> int | None:
        """Number of messages of a queue in any state; None if unknown."""
        queue = self.counted.get(name)
        if queue is None or queue.visible is None:
            return None
        return queue.visible + (queue.in_flight or 0) + (queue.delayed or 0)


class Queues:
    """Reads queues; caches names, tags and, if there are many, redrive policies."""

    def __init__(self, config: AwsConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._urls: dict[str, str] = {}
        self._listed_at: float | None = None
        self._known: dict[str, QueueCounts] = {}
        self._read_at: dict[str, float] = {}
        self._tags: dict[str, tuple[str, float]] = {}  # model by tag, and when it was read

    def read(self, caller: AwsCaller) -> QueueTable:
        """Count all queues, or where there are too many, read some of their redrive policies."""
        urls = self._listed(caller)
        many = len(urls) > self._config.queue_metrics_above
        due = sorted(urls, key=lambda name: self._read_at.get(name, 0.0))
        self._count(caller, due[: self._config.queue_details_each] if many else due, urls)
        elsewhere = self._dead_letters_elsewhere(caller, urls)
        if not many:
            self._count(caller, list(elsewhere), elsewhere)
        counted = {name: self._known[name] for name in (*urls, *elsewhere) if name in self._known}
        self._known = dict(counted)
        self._read_at = {name: at for name, at in self._read_at.items() if name in counted}
        if many:
            counted = {name: _uncounted(one) for name, one in counted.items()}
            counted |= {name: QueueCounts(name) for name in urls if name not in counted}
        dead = {one.dead_letter_queue for one in counted.values()}
        serving = [name for name in counted if name not in dead and name in urls]
        return QueueTable(counted, self._models(caller, serving, urls), many)

    def _listed(self, caller: AwsCaller) -> dict[str, str]:
        now = self._clock()
        if self._listed_at is None or now - self._listed_at >= self._config.names_s:
            wanted = self._config.queue_names
            # Character by character is what a prefix of names is.
            shared = os.path.commonprefix(list(wanted))  # noqa: RUF071
            prefix = self._config.queue_prefix or shared
            arguments: dict[str, Any] = {"QueueNamePrefix": prefix} if prefix else {}
            found = caller.items(
                "list_queues", "QueueUrls", PaginationConfig={"PageSize": 1_000}, **arguments
            )
            by_name = {url.rpartition("/")[2]: url for url in found}
            self._urls = {
                name: url for name, url in by_name.items() if not wanted or name in wanted
            }
            for name in sorted(set(wanted) - set(by_name)):
                caller.note(f"sqs: there is no queue {name}")
            self._listed_at = now
        return self._urls

    def _count(self, caller: AwsCaller, names: list[str], urls: dict[str, str]) -> None:
        refused: list[CallError] = []
        for name in names:
            try:
                answer = caller.ask(
                    "get_queue_attributes", QueueUrl=urls[name], AttributeNames=_ATTRIBUTES
                )
            except CallError as failed:
                if failed.why not in _ONE_QUEUE:
                    raise
                refused.append(failed)
                caller.note(f"sqs: {name}: {failed}")
                self._known[name] = QueueCounts(name)  # there, but nobody may count it
                if failed.why is CallFailure.MISSING:
                    del self._known[name]
                    self._listed_at = None  # deleted: list anew the next time
                continue
            self._known[name] = _counted(name, answer.get("Attributes", {}))
            self._read_at[name] = self._clock()
        if refused and len(refused) == len(names) and refused[0].why is CallFailure.DENIED:
            raise refused[0]

    def _dead_letters_elsewhere(self, caller: AwsCaller, urls: dict[str, str]) -> dict[str, str]:
        """Those that the list left out, by another prefix: their addresses follow from ours."""
        found: dict[str, str] = {}
        for name, url in urls.items():
            known = self._known.get(name)
            if known is None or not known.dead_letter_queue or known.dead_letter_queue in urls:
                continue
            folder = url.rpartition("/")[0]
            if known.dead_letters_of.rpartition(":")[2] not in folder:
                caller.note(f"sqs: dead letters of {name} lie in another account")
                continue
            found[known.dead_letter_queue] = f"{folder}/{known.dead_letter_queue}"
        return found

    def _models(self, caller: AwsCaller, names: list[str], urls: dict[str, str]) -> dict[str, str]:
        """By tag, else by the queue's own name. New queues are asked, and one that was long ago."""
        now = self._clock()
        self._tags = {name: self._tags[name] for name in names if name in self._tags}
        stale = [name for name, (_, at) in self._tags.items() if now - at >= self._config.tags_s]
        fresh = [name for name in names if name not in self._tags]
        if len(urls) > self._config.queue_metrics_above:
            fresh = fresh[: self._config.queue_details_each]
        for name in (*fresh, *sorted(stale, key=lambda one: self._tags[one][1])[:1]):
            try:
                tags = caller.ask("list_queue_tags", QueueUrl=urls[name]).get("Tags", {})
            except CallError as failed:
                if failed.why not in _ONE_QUEUE:
                    raise
                caller.note(f"sqs: the model of {name} is taken from its name: {failed}")
                tags = {}
            self._tags[name] = (tags.get(self._config.model_tag, ""), now)
        tagged = {name: model for name, (model, _) in self._tags.items()}
        return {name: tagged.get(name) or self._stem(name) for name in names}

    def _stem(self, name: str) -> str:
        name = name.removesuffix(".fifo")
        for suffix in self._config.queue_suffixes:
            if name.endswith(suffix) and name != suffix:
                return name.removesuffix(suffix)
        return name


def _counted(name: str, attributes: dict[str, str]) -> QueueCounts:
    visible, in_flight, delayed = (
        int(attributes[key]) if key in attributes else None for key in _COUNTS
    )
    try:
        target = str(json.loads(attributes.get("RedrivePolicy", "{}")).get("deadLetterTargetArn"))
    except (ValueError, AttributeError):
        target = ""  # not a policy; then there is no queue to follow it to
    owner, _, dead = target.rpartition(":")
    return QueueCounts(name, visible, in_flight, delayed, dead if owner else "", owner)


def _uncounted(queue: QueueCounts) -> QueueCounts:
    return replace(queue, visible=None, in_flight=None, delayed=None)


__all__ = ["QueueCounts", "QueueTable", "Queues"]
