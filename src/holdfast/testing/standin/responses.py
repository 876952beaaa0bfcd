"""OpenAI's Responses API for a stand-in, reduced to one message, whole or streamed.

Every event carries a number, so nothing can be rendered ahead but the marks around it. This is not
the path that is measured.
"""

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


def plan_response(asked: Respond, options: Options, mood: AnswerStyle) -> AnswerPlan:
    """Compute the answer: the same words as for a chat with these messages."""
    messages = [ChatMessage("system", asked.instructions)] if asked.instructions else []
    if isinstance(asked.input, str):
        messages.append(ChatMessage("user", asked.input))
    else:
        for item in asked.input or ():
            if not isinstance(item, dict):
                raise RequestRefused(
                    400, "an item of input is no object", "BadRequestError", "input"
                )
            messages.append(ChatMessage(str(item.get("role", "")), item.get("content")))
    chat = Generate(asked.model, messages, max_tokens=asked.max_output_tokens)
    return plan_chat(chat, options, mood)


class ResponseObject:
    """Builds one response object in all its stages."""

    __slots__ = ("_asked", "_created", "_id", "_item", "_number", "_plan")

    def __init__(self, asked: Respond, plan: AnswerPlan) -> None:
        self._asked = asked
        self._plan = plan
        self._id = new_id("resp").decode()
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
        text = self._text()
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

    def _text(self) -> str:
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
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "model": self._asked.model,
            "status": ended if done else "in_progress",
            "incomplete_details": {"reason": "max_output_tokens"} if cut and done else None,
            "output": [self._message(self._text())] if done else [],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
            "usage": counted if done else None,
        }


__all__ = ["Respond", "ResponseObject", "plan_response", "read_respond"]
