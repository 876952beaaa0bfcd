"""Asks a second replica, in the background, a question that was just answered, and compares.

The policy is the core's (``core.health.answers.answer_comparison``): which answers, which replicas,
how many at once, and when two answers agree. This module sends and reads the bytes. The second
question bypasses the flow: no client waits for it, no tenant pays for it, no breaker counts it, and
a question without an answer is no evidence against a replica. Only whether two replicas agreed
leaves this module; both texts are dropped after the comparison.
"""

from collections import deque
from collections.abc import Callable, Mapping
from random import Random
from typing import Final, Protocol

import msgspec
from msgspec import Raw

from holdfast.core.failure import Kind
from holdfast.core.health.answers.answer_comparison import (
    AnswerComparison,
    ComparingConfig,
    same_answer,
)
from holdfast.core.messages import Finish
from holdfast.core.plan.cost import Use
from holdfast.core.request.flow import Flow
from holdfast.core.types import SECOND
from holdfast.engines import Continuation
from holdfast.gateway.api.answers import Answer, AnswerKind, MalformedAnswerError, read_answer
from holdfast.gateway.api.authentication import Tenant
from holdfast.gateway.api.bodies import ParsedRequest
from holdfast.gateway.api.chunks import StreamApi
from holdfast.gateway.api.continuation import can_continue
from holdfast.gateway.api.routes import Api, Route
from holdfast.gateway.http.interfaces import Call
from holdfast.gateway.request.flow_port import FlowPort
from holdfast.gateway.request.targets import Target
from holdfast.gateway.telemetry.counters import Counters

RESULTS_MAX: Final = 64  # kept for control, which takes them every tenth of a second
_WAIT: Final = 120 * SECOND  # for a second answer; what is not there by then is of no use
_FRAME_BYTES: Final = 65_536  # of an answer around its text
_ENDS: Final = frozenset({"stop", "length"})  # the others depend on more than the request
_APIS: Final = {Api.CHAT: StreamApi.CHAT, Api.COMPLETIONS: StreamApi.COMPLETIONS}
_STATEFUL: Final = ("store", "tools", "functions")
_OFF: Final = frozenset({b"null", b"false", b"[]"})
_BYTES_PER_TOKEN: Final = 2  # at least, of ordinary text: a second answer may grow to twice as long
_JSON: Final = b"content-type: application/json\r\n"


class _Message(msgspec.Struct, gc=False):
    content: str | None = None  # parts of several kinds do not decode


_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_messages: Final = msgspec.json.Decoder(list[_Message]).decode
_encode: Final = msgspec.json.Encoder().encode


class AnsweredRequest(Protocol):
    """A request whose answer is complete, as comparisons see it.

    Implemented by ``ProxiedRequest``.
    """

    @property
    def ask(self) -> ParsedRequest:
        """The parsed body: what the client asked for."""

    @property
    def flow(self) -> Flow | None:
        """The flow in which the request ran; None if it never entered one."""

    @property
    def route(self) -> Route:
        """The API route that was called."""

    @property
    def tenant(self) -> Tenant:
        """The tenant that asked."""

    def said(self) -> tuple[str, str | None]:
        """Return the whole text of the answer (empty if not kept) and its finish reason."""


class Comparisons:
    """Sends some answered requests to a second replica too, and compares the two texts.

    In the background, for models that opted in: no client, quota or breaker notices. Keeps only
    (replica, second replica, agreed), the last 64, until ``take``.
    """

    __slots__ = (
        "_counters",
        "_port",
        "_results",
        "_running",
        "_soon",
        "_streams",
        "_targets",
        "models",
    )

    def __init__(
        self,
        port: FlowPort,
        targets: Mapping[str, Target],
        counters: Counters,
        streams: Callable[[str], Random],
        soon: Callable[..., object],
    ) -> None:
        self._port = port
        self._targets = targets
        self._counters = counters
        self._streams = streams
        self._soon = soon
        self._running: dict[_Second, None] = {}  # the eldest first
        self._results: deque[tuple[str, str, bool]] = deque(maxlen=RESULTS_MAX)
        self.models: dict[str, AnswerComparison] = {}  # those that opted in

    def configure(self, configs: Mapping[str, ComparingConfig]) -> None:
        """Apply the config by model.

        Models not in it are compared no more, unchanged ones keep their state.
        """
        known, self.models = self.models, {}
        for model, config in configs.items():
            same = known.get(model)
            if same is None or same.config != config:
                same = AnswerComparison(config, self._streams(f"comparison/{model}"))
            self.models[model] = same

    def keeps(self, ask: ParsedRequest, model: str) -> bool:
        """Whether a stream's text must be kept because its answer may be compared.

        So for deterministic (greedy) chat and completions requests to a model that opted in.
        """
        return ask.greedy and model in self.models and ask.api in _APIS

    def consider(self, proxied: AnsweredRequest, finish: Finish) -> None:
        """Decide whether to compare a complete answer; if so, ask a second replica soon.

        Skipped if the request is not greedy, the answer was continued, it is not the replica's
        turn, the model is busy, or no other replica of the same revision has room.
        """
        ask, model = proxied.ask, finish.model
        comparing = self.models.get(model)
        if comparing is None or not ask.greedy or finish.continued or ask.api not in _APIS:
            return
        lane = None if proxied.flow is None else proxied.flow.lanes.get(model)
        if lane is not None and comparing.wants(
            finish.replica_id, lane.saturation(), len(lane.queue), self._port.now_ns()
        ):
            peers = tuple(lane.pool.candidates.values())
            peer = comparing.peer(peers, finish.replica_id, proxied.tenant.region_names)
            if peer is not None:
                comparing.begin()
                second = _Second(self, comparing, model, finish.replica_id, peer)
                self._soon(second.ask, proxied)

    def sweep(self, now: int) -> None:
        """Cancel second requests that were not answered within 120 s; each counts as unanswered."""
        while self._running:
            second = next(iter(self._running))
            if second.due > now:
                return
            second.give_up()

    def take(self) -> list[tuple[str, str, bool]]:
        """Return and clear the results, as (replica id, second replica id, agreed)."""
        results = list(self._results)
        self._results.clear()
        return results

    def call(self, second: "_Second", proxied: AnsweredRequest, text: str) -> Call | None:
        """Send the request to the second replica, not streamed, and return the call.

        None, with nothing sent, if that replica is unknown or the request cannot be repeated
        (tools, several choices, stored state, more than text).
        """
        ask = proxied.ask
        target = self._targets.get(second.peer)
        body = None if target is None else _asked_again(ask, target.served_as, len(text))
        if target is None or body is None:
            return None
        second.due = self._port.now_ns() + _WAIT
        self._running[second] = None
        path = proxied.route.upstream
        return target.upstream.call(second, b"POST", path, _JSON + target.headers, body)

    def spent(self, model: str, answer: Answer) -> None:
        """Count a second answer's tokens in the ledger as Holdfast's own use.

        The tenant pays nothing.
        """
        read, said = answer.prompt_tokens or 0, answer.completion_tokens or 0
        self._counters.ledger.ours(model, Use.COMPARISON, read, said)

    def ended(self, second: "_Second", agreed: bool | None) -> None:
        """Store and count the result of a comparison.

        ``agreed`` None: there was no usable answer; it is counted, but no result is stored.
        """
        self._running.pop(second, None)
        second.comparing.end(second.replica, second.peer, agreed, self._port.now_ns())
        result = "unanswered"
        if agreed is not None:
            result = "agreed" if agreed else "disagreed"
            self._results.append((second.replica, second.peer, agreed))
        self._counters.compared(second.model, result)


class _Second:
    """One answer that is waited for, and the text it is held against."""

    __slots__ = (
        "_bytes_left",
        "_call",
        "_kind",
        "_owner",
        "_pieces",
        "_text",
        "comparing",
        "due",
        "model",
        "peer",
        "replica",
    )

    def __init__(
        self, owner: Comparisons, comparing: AnswerComparison, model: str, replica: str, peer: str
    ) -> None:
        self._owner = owner
        self.comparing = comparing
        self.model = model
        self.replica = replica
        self.peer = peer
        self.due = 0
        self._call: Call | None = None
        self._kind = AnswerKind.CHAT
        self._text = ""
        self._pieces: list[bytes] | None = []  # None: it is not wanted any more
        self._bytes_left = 4 * comparing.config.text_max + _FRAME_BYTES

    def ask(self, proxied: AnsweredRequest) -> None:
        """Ask, unless the first answer is not of the kind that can be compared."""
        text, reason = proxied.said()
        most = self.comparing.config.text_max
        if text.strip() and reason in _ENDS and len(text.encode()) <= most:
            self._text, self._kind = text, proxied.route.answer
            self._call = self._owner.call(self, proxied, text)
        if self._call is None:
            self.comparing.end(self.replica, self.peer, None, 0)

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:  # noqa: ARG002
        """Whatever is no success says nothing of the answer."""
        if status != 200:
            self.give_up()

    def on_data(self, data: bytes) -> None:
        """Collect it, up to a bound."""
        if self._pieces is not None:
            self._bytes_left -= len(data)
            self._pieces.append(data)
            if self._bytes_left < 0:
                self.give_up()

    def on_end(self) -> None:
        """Hold the two together."""
        if self._pieces is not None:
            self._over(self._agreed(b"".join(self._pieces)))

    def on_failure(self, kind: Kind, detail: str) -> None:  # noqa: ARG002 - it is not judged
        """No answer, no result."""
        if self._pieces is not None:
            self._over(None)

    def give_up(self) -> None:
        """Call it back."""
        if self._call is not None:
            self._call.cancel()
        self._over(None)

    def _agreed(self, body: bytes) -> bool | None:
        try:
            answer = read_answer(body, self._kind)
        except MalformedAnswerError:
            return None
        self._owner.spent(self.model, answer)
        if answer.error or answer.empty or answer.finish_reason not in _ENDS:
            return None
        return same_answer(self._text, answer.text).allowed

    def _over(self, agreed: bool | None) -> None:
        self._pieces = self._call = None
        self._text = ""
        self._owner.ended(self, agreed)


def _asked_again(ask: ParsedRequest, model: str, text_characters: int) -> bytes | None:
    """The question for another replica, in one piece; ``None`` where it is not text alone."""
    if ask.n > 1 or ask.tools:
        return None
    # What another replica could go on with, another replica can be asked: plain text both ways.
    if not can_continue(ask.body, _APIS[ask.api], Continuation.FINAL_MESSAGE):
        return None
    try:
        members = _decode_members(ask.body)
        if ask.api is Api.CHAT:
            _decode_messages(members["messages"])
    except (ValueError, KeyError, RecursionError):
        return None
    if any(bytes(members.get(name, b"null")) not in _OFF for name in _STATEFUL):
        return None
    for name in ("stream", "stream_options"):
        members.pop(name, None)
    members["model"] = Raw(_encode(model))
    if not ask.max_tokens:
        members["max_tokens"] = Raw(b"%d" % (text_characters // _BYTES_PER_TOKEN + 16))
    return _encode(members)


__all__ = ["RESULTS_MAX", "Comparisons"]
