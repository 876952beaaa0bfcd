"""OpenAI's Responses API for a stand-in, reduced to one message, whole or streamed.

Every event carries a number, so nothing can be rendered ahead but the marks around it. This is not
the path that is measured.
"""

from collections import OrderedDict
from collections.abc import Iterator
from time import time
from typing import Any, Final

import msgspec
import orjson

from holdfast.testing.standin.connection import framed
from holdfast.testing.standin.frames import Streamed, new_id
from holdfast.testing.standin.generation import (
    AnswerPlan,
    AnswerStyle,
    Generate,
    RequestRefused,
    plan_chat,
)
from holdfast.testing.standin.options import Options
from holdfast.testing.standin.text import ChatMessage


class Respond(msgspec.Struct):
    """The fields of a Responses request that matter here."""

    model: str = ""
    input: str | list[Any] | None = None
    instructions: str | None = None
    stream: bool | None = False
    max_output_tokens: int | None = None
    store: bool | None = True
    previous_response_id: str | None = None


KEPT_MAX: Final = 4_096  # responses that are kept, the eldest goes first; vLLM has no bound
_PATH: Final = b"/v1/responses/"
_READER: Final = msgspec.json.Decoder(Respond)


def read_respond(body: bytes) -> Respond:
    """Parse the body of a Responses request."""
    try:
        asked = _READER.decode(body)
    except msgspec.MsgspecError as error:
        raise RequestRefused(400, "the body is not a valid request", "BadRequestError") from error
    if not asked.input:
        raise RequestRefused(400, "input is missing or empty", "BadRequestError", "input")
    return asked


class KeptResponses:
    """The responses that this process keeps in its memory, as vLLM and SGLang do; nobody else's."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[list[ChatMessage], bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def conversation(self, response_id: str) -> list[ChatMessage]:
        """The turns up to this response; refuses what is not kept here."""
        return self._find(response_id)[0]

    def keep(self, answer: "ResponseObject") -> None:
        """Keep a response with its conversation, if it is to be stored."""
        if answer.asked.store is False:
            return
        if len(self._kept) >= KEPT_MAX:
            self._kept.popitem(last=False)
        turn = ChatMessage("assistant", answer.text())
        self._kept[answer.id] = ([*answer.messages, turn], answer.whole())

    def tell(self, method: bytes, path: bytes) -> bytes:
        """Answer ``GET /v1/responses/{id}`` and ``POST /v1/responses/{id}/cancel``."""
        name = path.removeprefix(_PATH).decode("latin-1")
        if method == b"GET" and "/" not in name:
            return self._find(name)[1]
        if method == b"POST" and name.endswith("/cancel"):
            self._find(name.removesuffix("/cancel"))
            text = "Cannot cancel a synchronous response."
            raise RequestRefused(400, text, "invalid_request_error")
        raise RequestRefused(404, "Not Found", "NotFoundError")

    def _find(self, response_id: str) -> tuple[list[ChatMessage], bytes]:
        kept = self._kept.get(response_id)
        if kept is None:
            text = f"Response with id '{response_id}' not found."
            raise RequestRefused(404, text, "invalid_request_error", "response_id")
        return kept


def is_kept_response(path: bytes) -> bool:
    """Whether a path is that of a response that may be kept."""
    return path.startswith(_PATH)


def conversation_of(asked: Respond, kept: KeptResponses) -> list[ChatMessage]:
    """The messages that a request amounts to, with those of the response that it continues."""
    messages = [ChatMessage("system", asked.instructions)] if asked.instructions else []
    if asked.previous_response_id:
        messages += kept.conversation(asked.previous_response_id)
    if isinstance(asked.input, str):
        messages.append(ChatMessage("user", asked.input))
    else:
        for item in asked.input or ():
            if not isinstance(item, dict):
                raise RequestRefused(
                    400, "an item of input is no object", "BadRequestError", "input"
                )
            messages.append(ChatMessage(str(item.get("role", "")), item.get("content")))
    return messages


def plan_response(
    asked: Respond, messages: list[ChatMessage], options: Options, mood: AnswerStyle
) -> AnswerPlan:
    """Compute the answer: the same words as for a chat with these messages."""
    chat = Generate(asked.model, messages, max_tokens=asked.max_output_tokens)
    return plan_chat(chat, options, mood)


class ResponseObject:
    """Builds one response object in all its stages."""

    __slots__ = ("_created", "_item", "_number", "_plan", "asked", "id", "messages")

    def __init__(self, asked: Respond, messages: list[ChatMessage], plan: AnswerPlan) -> None:
        self.asked = asked
        self.messages = messages
        self._plan = plan
        self.id = new_id("resp").decode()
        self._item = new_id("msg").decode()
        self._created = int(time())
        self._number = 0

    def whole(self) -> bytes:
        """The complete response object as JSON."""
        return orjson.dumps(self._object(done=True))

    def streamed(self) -> Streamed:
        """The response as a stream of events."""
        opening = b"".join(
            [
                self._event("created", response=self._object(done=False)),
                self._event("output_item.added", output_index=0, item=self._message("")),
                self._event("content_part.added", **self._place(), part=self._part("")),
            ]
        )
        pieces = list(self._deltas())
        text = self.text()
        closing = b"".join(
            [
                self._event("output_text.done", **self._place(), text=text),
                self._event("content_part.done", **self._place(), part=self._part(text)),
                self._event("output_item.done", output_index=0, item=self._message(text)),
                self._event("completed", response=self._object(done=True)),
            ]
        )
        degenerate = self._event("output_text.delta", **self._place(), delta="!")
        return Streamed(opening, iter(pieces), closing, degenerate)

    def _deltas(self) -> Iterator[bytes]:
        for token in self._plan.choices[0].tokens:
            yield self._event("output_text.delta", **self._place(), delta=token)

    def _event(self, kind: str, **fields: Any) -> bytes:
        name = f"response.{kind}"
        told = orjson.dumps({"type": name, "sequence_number": self._number, **fields})
        self._number += 1
        return framed(b"event: %b\ndata: %b\n\n" % (name.encode(), told))

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def text(self) -> str:
        """The whole text of the answer."""
        return "".join(self._plan.choices[0].tokens)

    @staticmethod
    def _part(text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": []}

    def _message(self, text: str) -> dict[str, Any]:
        return {
            "id": self._item,
            "type": "message",
            "role": "assistant",
            "status": "completed" if text else "in_progress",
            "content": [self._part(text)] if text else [],
        }

    def _object(self, *, done: bool) -> dict[str, Any]:
        said = len(self._plan.choices[0].tokens)
        prompt = self._plan.prompt_tokens
        counted = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": said,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + said,
        }
        cut = self._plan.choices[0].finish == "length"
        ended = "incomplete" if cut else "completed"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "model": self.asked.model,
            "previous_response_id": self.asked.previous_response_id,
            "status": ended if done else "in_progress",
            "incomplete_details": {"reason": "max_output_tokens"} if cut and done else None,
            "output": [self._message(self.text())] if done else [],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
            "usage": counted if done else None,
        }


__all__ = [
    "KeptResponses",
    "Respond",
    "ResponseObject",
    "conversation_of",
    "is_kept_response",
    "plan_response",
    "read_respond",
]
