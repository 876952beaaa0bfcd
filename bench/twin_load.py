"""An open-loop client that keeps, of every request, the times a gateway's client can see.

Arrivals are Poisson and do not wait for answers. Prompts begin with words of their own, so that no
engine has read their beginning before; lengths of prompts and answers are drawn.
"""

import asyncio
import time
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final

import orjson

WORDS: Final = (
    *("river", "stone", "window", "garden", "letter", "bridge", "winter", "market", "candle"),
    *("forest", "silver", "harbour", "engine", "ladder", "meadow", "copper", "island", "needle"),
)
BEAT_S: Final = 0.02
SILENCE_S: Final = 120.0  # after which a client gives up


@dataclass(slots=True, frozen=True)
class Traffic:
    """What is asked for: how often, and how long prompts and answers are."""

    rate: float  # requests per second
    requests: int
    prompt_words: tuple[int, int]
    output_tokens: tuple[int, int]
    ignores_end: bool = True  # ask for all tokens; some engines refuse what they do not know


@dataclass(slots=True)
class Seen:
    """One request as its client saw it; times are seconds since the block began."""

    arrival_s: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    first_s: float | None = None
    last_s: float | None = None
    replica: str = ""
    request_id: str = ""  # the gateway's, by which it tells the request's story
    status: int = 0
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for a line of a file."""
        return asdict(self)


def drawn(traffic: Traffic, rng: Random) -> list[tuple[float, str, int]]:
    """The block's requests: when, which prompt, and how many tokens are asked for."""
    at, asked = 0.0, []
    for _ in range(traffic.requests):
        at += rng.expovariate(traffic.rate)
        words = rng.randint(*traffic.prompt_words)
        text = " ".join(rng.choice(WORDS) for _ in range(words))
        asked.append((at, text, rng.randint(*traffic.output_tokens)))
    return asked


async def _ask(
    port: int, asked: dict[str, Any], content: str, tokens: int, began: float, seen: Seen
) -> None:
    body = orjson.dumps(
        {
            **asked,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    seen.arrival_s = time.monotonic() - began
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode() + body)
        seen.status = int((await reader.readline()).split()[1])
        while (line := await reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            if name.lower() == "x-holdfast-replica":
                seen.replica = value.strip()
            elif name.lower() == "x-request-id":
                seen.request_id = value.strip()
        if seen.status != 200:
            seen.error = (await reader.read()).decode("utf-8", "replace")[:200]
            return
        chunks = 0
        while line := await reader.readline():
            if not line.startswith(b"data: {"):
                continue
            now = time.monotonic() - began
            chunk = orjson.loads(line[6:])
            if "error" in chunk:
                seen.error = str(chunk["error"])[:200]
                return
            usage = chunk.get("usage")
            if usage:
                seen.prompt_tokens = usage["prompt_tokens"]
                seen.output_tokens = usage["completion_tokens"]
            if any(choice.get("delta", {}).get("content") for choice in chunk["choices"]):
                chunks += 1
                if seen.first_s is None:
                    seen.first_s = now
                seen.last_s = now
        seen.output_tokens = seen.output_tokens or chunks
        seen.prompt_tokens = seen.prompt_tokens or len(content.split())  # it gave no account
    finally:
        writer.close()


async def _feel(late: list[float]) -> None:
    """How late this process is woken, over and over: what the machine does to any timer."""
    while True:
        due = time.monotonic() + BEAT_S
        await asyncio.sleep(BEAT_S)
        late.append(time.monotonic() - due)


async def run_block(
    port: int, model: str, traffic: Traffic, rng: Random
) -> tuple[list[dict[str, Any]], list[float]]:
    """Send a block of requests at their times and wait for all answers.

    Returns the requests, and by how many seconds the client's own timers were late.
    """
    late: list[float] = []
    feeling = asyncio.create_task(_feel(late))
    began = time.monotonic()
    tasks, everyone = [], []
    common = {"model": model} | ({"ignore_eos": True} if traffic.ignores_end else {})
    for at, content, tokens in drawn(traffic, rng):
        await asyncio.sleep(max(0.0, began + at - time.monotonic()))
        seen = Seen(0.0)
        everyone.append(seen)
        asked = asyncio.wait_for(_ask(port, common, content, tokens, began, seen), SILENCE_S)
        tasks.append(asyncio.create_task(asked))
    for task, seen in zip(tasks, everyone, strict=True):
        try:
            await task
        except (OSError, TimeoutError, ValueError, IndexError) as error:
            seen.error = f"{type(error).__name__}: {error}"
    feeling.cancel()
    return [seen.to_dict() for seen in everyone], sorted(late)


__all__ = ["Traffic", "run_block"]
