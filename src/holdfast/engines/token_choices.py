"""Asks an engine which other tokens were likely in an answer, and reads what it tells.

    the canary's question, in one piece, with log probabilities ─► ask_choices ─► CanaryRequest
    200 and a body ─► read_choices ─► the tokens, each with the likeliest in its place
    anything else  ─► no tokens: not every engine can tell, and none has to

It is asked a few times in a revision's life, beside the canaries: those go the way that users'
requests go, where nobody asks for log probabilities.
"""

from dataclasses import replace
from typing import Any, Final

import orjson

from holdfast.core.canary import CanaryConfig, Shape, TokenChoice
from holdfast.engines.canary_protocol import CanaryRequest, ask
from holdfast.engines.dialect import Dialect

_LIKELIEST: Final = 5  # in each place; more than some engines give is refused as a bad request
_TOKENS_MAX: Final = 4_096  # of an answer: what a canary may ask for
_WORDED: Final = (Shape.CHAT, Shape.COMPLETION)


def ask_choices(dialect: Dialect, canary: CanaryConfig, served_as: str) -> CanaryRequest | None:
    """Build the canary's request with log probabilities, in one piece; ``None`` if not of text."""
    asked = ask(dialect, canary, served_as)
    if asked.shape not in _WORDED:
        return None
    body = orjson.loads(asked.body)
    body.pop("stream_options", None)
    body["stream"] = False
    if asked.shape is Shape.CHAT:
        body |= {"logprobs": True, "top_logprobs": _LIKELIEST}
    else:
        body["logprobs"] = _LIKELIEST
    headers = (("content-type", "application/json"), ("accept", "application/json"))
    return replace(asked, body=orjson.dumps(body), headers=headers, streams=False)


def read_choices(status: int, body: bytes) -> tuple[TokenChoice, ...]:
    """Return the tokens of an answer with the likeliest in their places; none where it has none.

    It reads the form of chats (``content``), and both that completions have: the same, or lists
    side by side.
    """
    if status != 200:
        return ()
    try:
        answer = orjson.loads(body)
    except ValueError:
        return ()
    choices = answer.get("choices") if isinstance(answer, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    told = first.get("logprobs") if isinstance(first, dict) else None
    if not isinstance(told, dict):
        return ()
    content = told.get("content")
    if isinstance(content, list):
        return tuple(_entries(content[:_TOKENS_MAX]))
    return tuple(_side_by_side(told))


def _entries(content: list[Any]) -> list[TokenChoice]:
    """Tokens as objects with ``token``, ``logprob`` and ``top_logprobs``; until one is none."""
    found = []
    for entry in content:
        own = _likelihood(entry)
        if own is None:
            break
        likeliest = entry.get("top_logprobs")
        others = likeliest if isinstance(likeliest, list) else []
        found.append(TokenChoice(*own, tuple(o for o in map(_likelihood, others) if o is not None)))
    return found


def _likelihood(entry: Any) -> tuple[str, float] | None:
    if not isinstance(entry, dict):
        return None
    return _pair(entry.get("token"), entry.get("logprob"))


def _side_by_side(told: dict[str, Any]) -> list[TokenChoice]:
    """Tokens, their log probabilities and tables of the likeliest, each as a list of its own."""
    lists = [told.get(name) for name in ("tokens", "token_logprobs", "top_logprobs")]
    columns = [each[:_TOKENS_MAX] for each in lists if isinstance(each, list)]
    found: list[TokenChoice] = []
    if len(columns) < len(lists):
        return found
    for text, logprob, likeliest in zip(*columns, strict=False):
        own = _pair(text, logprob)
        if own is None:
            break
        others = likeliest.items() if isinstance(likeliest, dict) else ()
        pairs = (_pair(*other) for other in others)
        found.append(TokenChoice(*own, tuple(pair for pair in pairs if pair is not None)))
    return found


def _pair(text: Any, logprob: Any) -> tuple[str, float] | None:
    number = isinstance(logprob, int | float) and not isinstance(logprob, bool)
    return (text, float(logprob)) if isinstance(text, str) and number else None


__all__ = ["ask_choices", "read_choices"]
