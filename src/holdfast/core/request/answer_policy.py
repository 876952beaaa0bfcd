"""Judges what replicas answered to one request: is it the answer, or is another replica asked.

The gateway reads the bytes and reports what it found in them; the simulator has modelled answers.
Both ask here what follows. Every function is pure and takes plain values, so that neither has to
build anything for the question.

Two rules appear in several forms. An answer that looks broken is rejected once: what a second
replica of the same model says alike is what the model says, however odd it looks. And an error is
the client's only if the client could have caused it.
"""

from collections.abc import Callable, Collection
from enum import Enum, auto
from typing import Final

from holdfast.core.failure import Kind, kind_of_status
from holdfast.core.request.deadlines import stuck

# Ours, not the client's: the gateway chose the path, the credentials and the model's name.
OUR_STATUSES: Final = frozenset({401, 403, 404, 405})
# Of a path that an engine does not have; 501 is also that of a task that it was not started for.
NOT_SERVED_STATUSES: Final = frozenset({404, 405, 501})

_TOOLS_CALLED: Final = frozenset({"tool_calls", "function_call"})  # an answer without text


class Opening(Enum):
    """Whether the held-back beginning of an answer is shown, held longer, or rejected.

    ``ALIKE`` is shown, too: it repeats one token, and so did a replica that was rejected for it.
    """

    SHOW = auto()
    HOLD = auto()
    REJECT = auto()
    ALIKE = auto()


def kind_of_error_status(
    status: int, *, retry_after: bool, says_busy: bool, serves_path: bool = True
) -> Kind:
    """Return the ``Kind`` of failure that an HTTP status other than success is; never ``None``.

    Redirects are malformed, and 401, 403, 404 and 405 count as server errors, since the gateway
    chose path and credentials. ``says_busy``: the engine's dialect knows this answer as no room at
    present. Unless ``serves_path``, 404, 405 and 501 say that the engine does not have the path.
    """
    if status < 400:
        return Kind.MALFORMED  # redirects are not followed
    if status in NOT_SERVED_STATUSES and not serves_path:
        return Kind.NOT_SERVED
    kind = kind_of_status(status, retry_after=retry_after)
    if kind is Kind.BAD_REQUEST and status in OUR_STATUSES:
        return Kind.SERVER_ERROR
    if kind is Kind.SERVER_ERROR and says_busy:
        return Kind.OVERLOADED
    return Kind.SERVER_ERROR if kind is None else kind


def judge_opening(
    tokens: int, tokens_held_max: int, *, suspicious: bool, complete: bool, rejected_before: bool
) -> Opening:
    """Return the ``Opening``: whether the beginning of an answer is shown, held on, or rejected.

    Only one that is ``suspicious`` (one token over and over) is held, until it is ``complete``, and
    rejected from ``tokens_held_max`` tokens on, unless one was ``rejected_before``: in an earlier
    attempt of the request. For an answer in one piece, all of it is its beginning.
    """
    if not suspicious:
        return Opening.SHOW
    if tokens < tokens_held_max:
        return Opening.SHOW if complete else Opening.HOLD
    return Opening.ALIKE if rejected_before else Opening.REJECT


def empty_is_asked_for(
    finish_reason: str | None, tokens: int | None, *, stops: bool, max_tokens: int, shaped: bool
) -> bool:
    """Whether the request itself explains an answer without content: no replica is at fault.

    ``tokens`` is the engine's count: one that counts none has met no stop string. ``shaped``: the
    request bends which tokens come (a bias, allowed tokens, guided decoding), so that the first of
    them may be the end. A single token may be the end, too.
    """
    if shaped or max_tokens == 1:
        return True
    return stops and finish_reason == "stop" and tokens != 0


def end_is_believed(tokens: int | None, *, doubted_before: bool) -> bool:
    """Whether an answer that is continued may end without another word.

    All may have been said when it broke off: then only the end was missing. But a replica that says
    nothing at all ends everything so. One that counts a token has read the text and chose to end;
    one that counts none has not, and a second replica must say the same (``doubted_before``: a
    first one did). An engine that does not count is believed.
    """
    return tokens is None or tokens > 0 or doubted_before


def failed_check(
    checks: Collection[str],
    *,
    finish_reason: str | None,
    text: str | bytes,
    json_expected: bool,
    is_json: Callable[[str | bytes], bool],
) -> str | None:
    """Return the name of the first check of a virtual model that an answer fails; ``None``: passes.

    Knows ``length``, ``empty`` and ``json`` (an object or a list, and only where the client asked
    for JSON). Answers that call tools are checked for length only.
    """
    if "length" in checks and finish_reason == "length":
        return "length"
    if finish_reason in _TOOLS_CALLED:
        return None
    if "empty" in checks and not text.strip():
        return "empty"
    if "json" in checks and json_expected and not is_json(text):
        return "json"
    return None


def may_escalate(stronger_model: str | None, *, shown: bool) -> bool:
    """Whether a failed check may send the request to a stronger model.

    True if there is one and nothing of the answer was shown.
    """
    return stronger_model is not None and not shown


def kind_when_stalled(
    waited: int, prompt_tokens: int, *, streams: bool, begun: bool, paused: bool
) -> Kind | None:
    """Return the timeout an attempt has failed with on a stalled replica; ``None``: it stays.

    For attempts of an answer of which the client has seen something; the others are moved by the
    flow. Answers that do not stream stay, and so does a stream whose client does not read
    (``paused``).
    """
    if paused or not streams:
        return None
    return stuck(waited, prompt_tokens, begun=begun)


__all__ = [
    "NOT_SERVED_STATUSES",
    "OUR_STATUSES",
    "Opening",
    "empty_is_asked_for",
    "end_is_believed",
    "failed_check",
    "judge_opening",
    "kind_of_error_status",
    "kind_when_stalled",
    "may_escalate",
]
