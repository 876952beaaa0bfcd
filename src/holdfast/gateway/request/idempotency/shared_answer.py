"""One answer that several callers read: each at its own pace, from its beginning.

    ProxiedRequest ──writes──► RecordedAnswer ─┬─► KeyedCaller ──► its client's exchange
    (one execution)                            └─► KeyedCaller ──► …
    another gateway ──store──► FollowedAnswer ───► KeyedCaller ──► …

A recorded answer takes the place of the client's exchange in a request with an idempotency key, so
that the request neither knows how many clients read its answer nor ends with the first of them.

No caller sees the end of an answer before the store has it (``sealed``): else a client could hold a
complete answer that another execution contradicts after a crash. What ends a stream for its reader
(``[DONE]``, the event of a completed response) is held back until then; all before it goes on at
once. The answer of a failed execution is no terminal answer and is shown at once.
"""

from typing import Final, Protocol

from holdfast.core.intake.byte_budget import ByteAccount, HeldBody
from holdfast.core.request.idempotency.key_record import KeyName, KeyRecord
from holdfast.gateway.api import errors
from holdfast.gateway.api.errors import ApiError
from holdfast.gateway.http.interfaces import BodySink, Exchange, Listener
from holdfast.gateway.request.proxied_request import ProxiedRequest

REPLAYED: Final = b"idempotent-replayed: true\r\n"
_EVENTS: Final = b"content-type: text/event-stream"
_JSON: Final = b"content-type: application/json\r\n"
_LAST: Final = (b"data: [DONE]", b"event: response.completed")
_COMMENT: Final = b": the first request with this key is under way\n\n"
_STALE: Final = b"x-ratelimit-"  # header lines of the moment; a repetition costs no quota


class CallerHome(Protocol):
    """Is told of callers and executions; implemented by the gateway's ``KeyedRequests``."""

    def left(self, caller: "KeyedCaller") -> None:
        """Forget a caller whose client closed its connection; its execution goes on."""

    def done(self, caller: "KeyedCaller") -> None:
        """Forget a caller that gets the end of its answer, or an error.

        Called before the last bytes.
        """

    def refuse(self, caller: "KeyedCaller", error: ApiError) -> None:
        """End a caller with an error, and count it; nothing if its client is gone."""

    def ended(self, answer: "RecordedAnswer") -> None:
        """Note that an execution has ended, and have the store record it."""


class AnswerRoom(Protocol):
    """Counts the bytes of all answers that a gateway holds, against one limit."""

    def take(self, answer: "SharedAnswer", size: int) -> bool:
        """Count so many bytes more for an answer; return False, counting none, without room."""

    def give_back(self, answer: "SharedAnswer", size: int | None = None) -> None:
        """Count so many bytes less of an answer, or none of it any more."""


class SharedAnswer:
    """The answer to an idempotency key, as far as it is here, and the callers that read it.

    Callers see pieces up to ``visible``, and the end once it is ``sealed``. Its bytes are counted
    until it is ``unlisted`` and the last of its callers has left.
    """

    def __init__(self, name: KeyName, execution: str, room: AnswerRoom) -> None:
        self.name = name
        self.execution = execution
        self._room = room
        self._listed = True  # further callers may join it
        self.status = 0  # 0: nothing was begun
        self.head = b""  # header lines
        self.streams = False  # it comes piece by piece
        self.pieces: list[bytes] = []
        self.dropped = 0  # pieces before these that nobody needs any more
        self.visible = 0  # pieces that callers may see, those that were dropped included
        self.sealed = False  # all of it may be seen
        self.broken = False  # it ended in the middle, and no event can stand there to say so
        self.size = 0
        self.callers: list[KeyedCaller] = []

    def join(self, caller: "KeyedCaller") -> None:
        """Add a caller, which reads from the beginning and is written at once what is visible."""
        caller.answer = self
        caller.position = 0
        self.callers.append(caller)
        caller.pump()

    def leave(self, caller: "KeyedCaller") -> None:
        """Remove a caller; nothing if it does not read this answer."""
        if caller in self.callers:
            self.callers.remove(caller)
        self._forget()

    def unlist(self) -> None:
        """Note that nobody can join it any more: it goes with the last of its callers."""
        self._listed = False
        self._forget()

    def _forget(self) -> None:
        if not (self._listed or self.callers):
            self.pieces.clear()
            self._room.give_back(self)

    def deliver(self) -> None:
        """Write to every caller the visible pieces that it has not got; slow ones are skipped."""
        for caller in tuple(self.callers):
            caller.pump()

    def seal(self) -> None:
        """Make all pieces and the end visible, and write them to all callers."""
        self.sealed = True
        self.visible = self.dropped + len(self.pieces)
        self.deliver()


class RecordedAnswer(SharedAnswer):
    """The answer of an execution here, in place of the exchange of its ``ProxiedRequest``.

    Records what the request writes and lets any number of callers read it. Beyond the byte limits
    it is not kept: pieces that all callers have read are dropped.
    """

    def __init__(
        self,
        name: KeyName,
        execution: str,
        home: CallerHome,
        room: AnswerRoom,
        asked: Exchange,
        bytes_max: int,
    ) -> None:
        super().__init__(name, execution, room)
        self._home = home
        self._bytes_max = bytes_max
        self._paused = False
        self.method = asked.method
        self.path = asked.path
        self.query = asked.query
        self.headers = asked.headers
        self.body = b""  # it was read before
        self.body_max = asked.body_max
        self.held: HeldBody | None = None  # counts the body, once its client has left
        self.listener: Listener | None = None
        self.account: ByteAccount | None = None
        self.sink: BodySink | None = None
        self.started = False
        self.ended = False
        self.whole = False  # it ended as it should
        self.kept = True  # all of it is here
        self.wanted = False  # another gateway waits for it
        self.committed = False  # the store knows how it ended
        self.published = 0  # pieces that the store has
        self.publishing = False  # some are on their way there
        self.alone_since = 0  # when the last caller left (ns)
        self.ended_at = 0  # ns
        self.asked_at = 0  # when the store was last told of the end (ns)

    # --- what the request does with its exchange -------------------------------------------------

    def pause_body(self) -> None:
        """Do nothing: the body is complete."""

    def resume_body(self) -> None:
        """Do nothing: the body is complete."""

    def pass_body_on(self) -> HeldBody:
        """Return what counts the body; this answer counts it no more."""
        held, self.held = self.held, None
        return held or HeldBody(None, 0)

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """Record a whole answer and its end; callers see it when it is sealed."""
        self._begin(status, headers)
        self._add(body)
        self._end(whole=True)

    def start(self, status: int, headers: bytes) -> None:
        """Record the head of a streamed answer, and send it to the callers."""
        self._begin(status, headers)
        self.streams = True
        self.deliver()

    def write(self, payload: bytes) -> None:
        """Record one piece and show it to the callers; nothing after the end.

        A comment (first byte ``:``) is passed on and not recorded. The event that ends a stream is
        recorded but shown only when the answer is sealed.
        """
        if not payload or self.ended:
            return
        if payload.startswith(b":"):
            for caller in tuple(self.callers):
                caller.comment(payload)
            return
        self._add(payload)
        before_last = len(self.pieces) + self.dropped - 1
        if payload.startswith(_LAST) or self.visible < before_last:
            return  # shown with the end
        self.visible = before_last + 1
        self.deliver()
        self._bound()

    def end(self) -> None:
        """Record that a streamed answer is complete; callers see its end when it is sealed."""
        self._end(whole=True)

    def fail(self, payload: bytes) -> None:
        """Record the error event that ends a streamed answer; the execution counts as failed."""
        self._add(payload)
        self._end(whole=False)

    def abort(self) -> None:
        """Record that the answer broke off where no event can say so.

        Callers' connections are closed.
        """
        self.broken = True
        self._end(whole=False)

    def _begin(self, status: int, headers: bytes) -> None:
        assert not self.started, "one execution has one answer"
        self.started = True
        self.status, self.head = status, headers

    def _add(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.size += len(piece)
        if self.kept:
            self.kept = self.size <= self._bytes_max and self._room.take(self, len(piece))

    def _end(self, *, whole: bool) -> None:
        if self.ended:
            return
        if not self.pieces and not self.dropped:
            self.pieces.append(b"")
        self.ended, self.whole = True, whole
        self.listener = None
        self.headers = {}
        self._home.ended(self)

    def break_off(self, *, left: bool) -> None:
        """End the execution without an answer; its callers are not told.

        ``left``: because its clients left, so that their tenant pays for what was made of it.
        """
        listener, self.listener = self.listener, None
        self.ended = True
        if isinstance(listener, ProxiedRequest):
            listener.on_client_gone(by_itself=left)

    # --- an answer that is not kept --------------------------------------------------------------

    def forgo(self) -> None:
        """Keep it for nobody who comes later, and drop what all callers have read."""
        self.kept = False
        self._bound()

    def _bound(self) -> None:
        """Drop what all callers have read of an answer that is not kept; wait for slow ones."""
        if self.kept:
            return
        whole = self.dropped + len(self.pieces)
        unread = whole if self.ended else self.visible
        read = min((caller.position for caller in self.callers), default=unread)
        if read > self.dropped:
            over = self.pieces[: read - self.dropped]
            del self.pieces[: len(over)]
            self.dropped = read
            self._room.give_back(self, sum(map(len, over)))
        self.pace()

    def pace(self) -> None:
        """Pause or resume the request's replicas, for an answer too large to be kept.

        Paused while any caller reads too slowly. An answer that is kept is never paused.
        """
        slow = not self.kept and any(caller.slow for caller in self.callers)
        if self.listener is None or slow == self._paused:
            return
        self._paused = slow
        if slow:
            self.listener.on_client_slow()
        else:
            self.listener.on_client_ready()


class KeyedCaller:
    """One client that sent an idempotency key: writes the shared answer to its exchange.

    It listens to the exchange in place of its ``ProxiedRequest``.
    """

    __slots__ = (
        "answer",
        "claim",
        "exchange",
        "executed",
        "executes",
        "fingerprint",
        "gone",
        "held",
        "home",
        "name",
        "position",
        "proxied",
        "seen",
        "slow",
        "spoken_at",
        "until",
    )

    def __init__(
        self, home: CallerHome, proxied: ProxiedRequest, name: KeyName, fingerprint: str
    ) -> None:
        self.home = home
        self.proxied = proxied
        self.exchange = proxied.exchange
        self.exchange.listener = self
        self.name = name
        self.fingerprint = fingerprint
        self.held: HeldBody | None = None  # counts its body, until its execution does
        self.claim = ""  # the execution that the store is asked for
        self.answer: SharedAnswer | None = None
        self.position = 0  # pieces that were written to it
        self.executes = False  # its own request is the one that is executed
        self.executed = False  # it was: a request can be executed once
        self.gone = False  # answered, or its client left
        self.slow = False
        self.until = 0  # when it stops waiting (ns)
        self.seen = -1  # its position when it was last looked at
        self.spoken_at = 0  # when something was last written to it, as far as was looked (ns)

    # --- its client ------------------------------------------------------------------------------

    def on_client_gone(self) -> None:
        """Stop reading the answer; the execution goes on for other callers, and for a retry."""
        self.gone = True
        self.home.left(self)

    def on_client_slow(self) -> None:
        """Write nothing until the client reads.

        The replica is paused only if the answer is not kept.
        """
        self.slow = True
        if isinstance(self.answer, RecordedAnswer):
            self.answer.pace()

    def on_client_ready(self) -> None:
        """Write what came meanwhile, and go on."""
        self.slow = False
        self.pump()
        if isinstance(self.answer, RecordedAnswer):
            self.answer.pace()

    # --- its answer ------------------------------------------------------------------------------

    @property
    def reads(self) -> bool:
        """Whether the client waits for its answer and reads what is written to it."""
        return not (self.gone or self.slow)

    @property
    def shown(self) -> bool:
        """Whether a piece of an answer was written to the client.

        Heads and comments do not count.
        """
        return self.position > 0

    def pump(self) -> None:
        """Write the visible part of the answer that the client has not got.

        End the exchange if sealed. An answer that is not a stream is written only as a whole, once
        sealed. Nothing if the client is slow or gone.
        """
        answer, exchange = self.answer, self.exchange
        if not self.reads or answer is None or not answer.status:
            return
        if not answer.streams:
            if answer.sealed:
                self._respond(answer)
            return
        if not exchange.started:
            exchange.start(answer.status, self._head(answer))
        while self.position < answer.visible and self.reads:
            piece = answer.pieces[self.position - answer.dropped]
            self.position += 1
            exchange.write(piece)
        if answer.sealed and self.position == answer.visible and not self.gone:
            self._part()
            if answer.broken:
                exchange.abort()
            else:
                exchange.end()

    def _respond(self, answer: SharedAnswer) -> None:
        exchange, body = self.exchange, answer.pieces[0]
        self._part()
        if not exchange.started:
            exchange.respond(answer.status, self._head(answer), body)
        elif answer.broken:
            exchange.abort()
        else:  # a comment was sent meanwhile: the rest can only be an event
            exchange.fail(b"data: %b\n\n" % body)

    def comment(self, payload: bytes = _COMMENT) -> None:
        """Send a comment line to a client that asked for a stream, so that it keeps waiting.

        Begins a 200 response if none was begun. Nothing for clients that are gone, slow or not
        streaming.
        """
        if self.gone or self.slow or not self.proxied.ask.stream:
            return
        if not self.exchange.started:
            self.exchange.start(200, _EVENTS + b"\r\ncache-control: no-cache\r\n" + REPLAYED)
        self.exchange.write(payload)

    def refuse(self, error: ApiError) -> None:
        """End this caller with an error; not counted here.

        Sent as a status, as an event where a stream has begun, or by closing the connection where
        neither fits. Nothing if the client is gone.
        """
        if self.gone:
            return
        exchange, request_id = self.exchange, self.proxied.request_id
        streams = self.proxied.ask.stream
        self._part()
        if not exchange.started:
            head = _JSON + b"x-request-id: %b\r\n" % request_id + errors.error_headers(error)
            exchange.respond(error.status, head, errors.error_body(error, request_id.decode()))
        elif streams:
            exchange.fail(errors.error_event(error, request_id.decode()))
        else:
            exchange.abort()

    def _part(self) -> None:
        """Be over, before the last bytes are written: they may begin the client's next request."""
        self.gone = True
        self.exchange.listener = None
        self.home.done(self)

    def _head(self, answer: SharedAnswer) -> bytes:
        if self.executes:
            return answer.head
        lines = answer.head.split(b"\r\n")
        kept = b"".join(b"%b\r\n" % line for line in lines if line and not line.startswith(_STALE))
        return kept + REPLAYED


class FollowedAnswer(SharedAnswer):
    """The answer of another gateway's execution, as far as it was read from the store."""

    def __init__(self, name: KeyName, execution: str, room: AnswerRoom) -> None:
        super().__init__(name, execution, room)
        self.taking_over = False

    @property
    def fresh(self) -> KeyedCaller | None:
        """A caller that has seen nothing, so that its request can still be executed."""
        return next((c for c in self.callers if not (c.shown or c.executed)), None)

    def take(self, record: KeyRecord, pieces: tuple[bytes, ...]) -> bool:
        """Take the head and append further pieces from the store, if there is room for them.

        New pieces go to the callers at once. Return False, taking nothing, without room.
        """
        if pieces and not self._room.take(self, sum(map(len, pieces))):
            return False
        self.status = record.status
        self.head = record.head.encode("latin-1")
        self.streams = record.streams
        self.pieces += pieces
        self.visible = len(self.pieces)
        if pieces:
            self.deliver()
        return True


__all__ = [
    "REPLAYED",
    "CallerHome",
    "FollowedAnswer",
    "KeyedCaller",
    "RecordedAnswer",
    "SharedAnswer",
]
