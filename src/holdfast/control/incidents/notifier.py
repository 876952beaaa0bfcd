"""Sends incidents to webhooks, as JSON for programs or as text for Slack and the like.

    incident opened, cause changed, closed, page ─► queue of each hook ─► POST, again, given up

Each hook has its own short queue and its own worker, so that a hook that hangs delays neither the
others nor control. What does not fit is dropped, the oldest first, and counted: the incident itself
is kept by the store. A refusal (4xx) is not retried, since the same body would be refused again.

Hooks are set in the fleet file and nowhere else; redirects are not followed. Their addresses are
often secrets: no log, metric or error holds one. What is sent holds names, numbers and reasons,
never a word of a prompt or of an answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from html import escape
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
import structlog

from holdfast.config.incidents import NotifySection, check_hook
from holdfast.control.detached_call import detached
from holdfast.control.http_client import FetchError, HttpAnswer, request
from holdfast.core.types import ConfigError

QUEUE_MAX: Final = 64  # messages that wait for one hook
BACKOFF_S: Final = 1.0  # before the second attempt; doubles
BACKOFF_MAX_S: Final = 30.0
EVIDENCE_MAX: Final = 5  # pieces in a message; the admin port has all of them
_AGAIN: Final = frozenset({408, 425, 429})  # of 4xx, those that another time may cure

_log = structlog.get_logger("holdfast.control.incidents.notifier")


@dataclass(slots=True, frozen=True)
class HookMessage:
    """One notification: an incident in the admin port's form, what happened, and if it pages."""

    event: str  # opened, changed, closed or page
    incident: Mapping[str, Any]  # as the admin port shows it
    page: bool  # a person is wanted


def as_json(message: HookMessage) -> bytes:
    """The body of a notification for programs: event, text, page, and the incident.

    Timeline and consequences are left out, and only the last 5 pieces of evidence are in it.
    """
    told = {
        "holdfast_notification": 1,
        "event": message.event,
        "page": message.page,
        "text": as_text(message),
        "incident": _short(message.incident),
    }
    return orjson.dumps(told)


def as_slack(message: HookMessage) -> bytes:
    """The JSON body of a notification for a Slack incoming webhook: its text, escaped.

    Between < and > Slack reads commands: a replica's name must not notify a whole channel.
    """
    return orjson.dumps({"text": escape(as_text(message), quote=False)})


def as_text(message: HookMessage) -> str:
    """A notification as text for people: title, cause, evidence, what was done, what to do."""
    one = message.incident
    head = f"[{one['id']}] {message.event}: {one['title']} ({one['class']}, {one['cause']}"
    lines = [f"{head}, confidence {one['confidence']:.2f})"]
    lines += [f"- {each['text']}" for each in one["evidence"][-EVIDENCE_MAX:]]
    if one["consequences"]:
        signs = sorted({each["sign"].replace("_", " ") for each in one["consequences"]})
        lines.append(f"follows from it: {', '.join(signs)}")
    if one["action"]:
        lines.append(f"done: {one['action']}")
    if one["fix"]:
        lines.append(f"to do: {one['fix']}")
    return "\n".join(lines)


def _short(incident: Mapping[str, Any]) -> dict[str, Any]:
    left_out = ("timeline", "consequences", "evidence")
    short = {key: value for key, value in incident.items() if key not in left_out}
    return short | {"evidence": incident["evidence"][-EVIDENCE_MAX:]}


_FORMATS: Final[Mapping[str, Callable[[HookMessage], bytes]]] = {"json": as_json, "slack": as_slack}

Post = Callable[[str, bytes, float], Awaitable[HttpAnswer]]


async def post(url: str, body: bytes, deadline_s: float) -> HttpAnswer:
    """POST a body to a hook and return its answer, whatever its status; one attempt, in a thread.

    Raises ``FetchError`` where no answer came within ``deadline_s``.
    """
    parts = urlsplit(url)
    begin = "" if parts.path else "/"
    query = f"?{parts.query}" if parts.query else ""
    call = partial(request, url, begin + query, deadline_s, body=body)
    try:
        async with asyncio.timeout(deadline_s):  # a name that cannot be resolved has no other bound
            return await detached(call)
    except TimeoutError as error:
        raise FetchError("timeout", f"nothing within {deadline_s:g} s") from error


class _Hook:
    """One hook with its queue and the task that delivers from it."""

    def __init__(
        self, section: NotifySection, name: str, environment: Mapping[str, str], post: Post
    ) -> None:
        self.section = section
        self._name = name
        self._environment = environment
        self._post = post
        self._rng = Random(name)
        self._queue: asyncio.Queue[HookMessage] = asyncio.Queue(QUEUE_MAX)
        self.sent = self.failed = self.dropped = 0
        self.worker = asyncio.create_task(self._work())

    def tell(self, message: HookMessage) -> None:
        if self.section.at_least == "page" and not message.page:
            return
        if self._queue.full():
            self._queue.get_nowait()
            self.dropped += 1
        self._queue.put_nowait(message)

    async def _work(self) -> None:
        while True:
            message = await self._queue.get()
            problem = await self._deliver(message)
            if problem:
                self.failed += 1
                told = {"hook": self._name, "incident": message.incident["id"], "reason": problem}
                _log.error("notification not delivered", **told)
            else:
                self.sent += 1

    async def _deliver(self, message: HookMessage) -> str:
        """Send a notification, with retries; returns why it failed, or empty."""
        section = self.section
        named = section.url_env
        url = section.url if named is None else self._environment.get(named)
        if not url:
            return f"the environment variable {named} is not set"
        try:
            check_hook(url)
        except ConfigError:
            return f"the environment variable {named} holds no URL of a hook"
        body = _FORMATS[section.format](message)
        problem = ""
        for attempt in range(section.retries + 1):
            if attempt:
                pause_s = min(BACKOFF_S * 2.0 ** (attempt - 1), BACKOFF_MAX_S)
                await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.0))
            try:
                answer = await self._post(url, body, section.deadline)
            except FetchError as error:
                problem = error.what
            except Exception as error:  # noqa: BLE001 whatever it is, the next message must go out
                problem = type(error).__name__
            else:
                if 200 <= answer.status < 300:
                    return ""
                problem = f"it answers {answer.status}"
                if answer.status < 500 and answer.status not in _AGAIN:
                    break
        return problem


class Notifier:
    """Delivers messages about incidents to each hook that wants them, from one worker per hook.

    Failed deliveries are retried, then logged and counted. A hook's queue is short; when it is full
    the oldest message is dropped and counted.
    """

    def __init__(self, environment: Mapping[str, str], post: Post = post) -> None:
        self._environment = environment
        self._post = post
        self._hooks: list[_Hook] = []
        self._earlier = [0, 0, 0]  # what hooks did that are gone

    def follow(self, sections: Iterable[NotifySection]) -> None:
        """Use these hooks from now on; an unchanged hook keeps its queue and its worker.

        Messages that wait for a removed hook are lost; its counts stay in ``counters``.
        """
        known = list(self._hooks)
        self._hooks = []
        for number, section in enumerate(sections):
            same = next((hook for hook in known if hook.section == section), None)
            if same is None:
                name = f"incidents.notify[{number}]"
                same = _Hook(section, name, self._environment, self._post)
            else:
                known.remove(same)
            self._hooks.append(same)
        for hook in known:
            hook.worker.cancel()
            done = (hook.sent, hook.failed, hook.dropped)
            self._earlier = [
                before + more for before, more in zip(self._earlier, done, strict=True)
            ]

    def tell(self, message: HookMessage) -> None:
        """Queue a notification for every hook that wants it; never blocks.

        Hooks set to pages only get no others.
        """
        for hook in self._hooks:
            hook.tell(message)

    @property
    def pages(self) -> bool:
        """Whether any hook is configured, so that a page could reach somebody."""
        return bool(self._hooks)

    async def close(self) -> None:
        """Cancel all deliveries; messages that still wait are lost."""
        workers = [hook.worker for hook in self._hooks]
        self.follow([])
        await asyncio.gather(*workers, return_exceptions=True)

    def counters(self) -> dict[str, float]:
        """The ``notifications_total`` series by outcome (sent, failed, dropped), of all hooks.

        They count since control began.
        """
        hooks = self._hooks
        sums = (
            sum(hook.sent for hook in hooks),
            sum(hook.failed for hook in hooks),
            sum(hook.dropped for hook in hooks),
        )
        names = ("sent", "failed", "dropped")
        return {
            f'notifications_total{{outcome="{name}"}}': before + now
            for name, before, now in zip(names, self._earlier, sums, strict=True)
        }


__all__ = ["QUEUE_MAX", "HookMessage", "Notifier", "as_json", "as_slack", "as_text", "post"]
