"""An admin port that serves the fleets, and what ``top`` makes of it: for tests and for eyes.

``python tests/ui/admin_port.py broken 8765`` serves one of the fleets until it is stopped.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import fleets
import orjson
from textual import events

from holdfast.ui.terminal.top.app import TopApp
from holdfast.ui.terminal.top.link import Link
from holdfast.ui.terminal.top.snapshot_feed import PollIntervals


def text_of(app: Any) -> list[str]:
    """The lines of a Textual application's screen, without colours."""
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip).rstrip() for strip in strips]


class Seen:
    """Somebody in front of a screen."""

    def __init__(self, app: Any, pilot: Any, admin: "AdminPort") -> None:
        self.app, self.pilot, self.admin = app, pilot, admin

    @property
    def lines(self) -> list[str]:
        return text_of(self.app)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def type(self, text: str) -> None:
        """All at once, as if pasted; and Enter."""
        self.app.focused.post_message(events.Paste(text))
        await self.pilot.pause()
        await self.press("enter")

    async def until(self, words: str) -> None:
        """Wait for it to be on the screen."""
        try:
            async with asyncio.timeout(10):
                while words not in self.text:
                    await self.pilot.pause(0.02)
        except TimeoutError:
            raise AssertionError(f"{words!r} never came:\n{self.text}") from None


def looking_at(
    snapshot: Any,
    story: Callable[[Seen], Awaitable[None]],
    *,
    size: tuple[int, int] = (80, 24),
    dark: bool = True,
    pace: PollIntervals | None = None,
) -> None:
    """Let somebody look at a fleet: ``top`` on a screen of that size, against a real port."""

    async def main() -> None:
        admin = AdminPort(snapshot)
        await admin.start()
        app = TopApp(Link(admin.url), dark=dark, first=snapshot, clock=lambda: 0.0, pace=pace)
        try:
            async with app.run_test(size=size) as pilot:
                await pilot.pause()
                await story(Seen(app, pilot, admin))
        finally:
            await admin.stop()

    asyncio.run(main())


class AdminPort:
    """Answers as control's admin port does, as far as ``top`` asks it."""

    def __init__(self, snapshot: Any, token: str = "") -> None:
        self.snapshot = snapshot
        self.token = token
        self.streams = True  # else the stream is refused, as an older control does
        self.asked: list[str] = []
        self.log = b"loading weights\nready\n"
        self.on_asked: Callable[[str], None] = lambda _: None
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._talks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in self._talks.values():
                writer.transport.abort()
            self.change(self.snapshot)  # who waits for news finds that nobody listens
            await asyncio.gather(*self._talks, return_exceptions=True)
            await self._server.wait_closed()
            self._server = None

    def change(self, snapshot: Any) -> None:
        """A new picture, told to all who listen."""
        self.snapshot = snapshot
        self._changed.set()
        self._changed = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks[task] = writer
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first = head.partition("\r\n")[0]
            self.asked.append(first.rpartition(" ")[0])
            await self._answer(first.split()[1], head, writer)
            self.on_asked(self.asked[-1])
        except (OSError, asyncio.IncompleteReadError):
            self.asked.append("gone")
        finally:
            del self._talks[task]
            writer.close()

    async def _answer(self, path: str, head: str, writer: asyncio.StreamWriter) -> None:
        if self.token and f"Authorization: Bearer {self.token}\r\n" not in head:
            _send(writer, 401, {"error": "the admin token is missing or wrong"})
        elif path == "/view":
            _send(writer, 200, self.snapshot)
        elif path == "/view/stream" and self.streams:
            await self._stream(writer)
        elif path.startswith("/incidents/"):
            name = path.rpartition("/")[2]
            known = name in {row.id for row in fleets.broken().incidents}
            told = fleets.incident_page(name) if known else {"error": "no such incident"}
            _send(writer, 200 if known else 404, told)
        elif path.startswith("/explain/req_"):
            _send(writer, 200, fleets.request_story(path.rpartition("/")[2]))
        elif path.startswith("/explain/"):
            told = "no gateway knows this request; only recent ones are kept"
            _send(writer, 404, {"error": told})
        elif "/logs?" in path and "parler" not in path:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n" + self.log)
            await self._until_gone(writer)
        elif head.startswith("POST /replicas/"):
            _send(writer, 202, {"accepted": True, "reason": f"taken on: {path}"})
        else:
            _send(writer, 404, {"error": f"nothing is at {path.partition('?')[0]}"})
        await writer.drain()

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: hello\n\n")
        while not writer.is_closing():
            changed = self._changed
            await changed.wait()
            if writer.is_closing():
                break
            writer.write(b"event: view\ndata: " + orjson.dumps(self.snapshot) + b"\n\n")
            await writer.drain()

    async def _until_gone(self, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            changed = self._changed
            await writer.drain()
            await changed.wait()
            if not writer.is_closing():
                writer.write(self.log)


def _send(writer: asyncio.StreamWriter, status: int, told: Any) -> None:
    body = orjson.dumps(told)
    head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    writer.write(head.encode() + body)


async def _by_hand(name: str, port: int) -> None:
    admin = AdminPort(getattr(fleets, name)())
    admin.port = port
    await admin.start()
    version = 0
    while True:
        await asyncio.sleep(1)
        version += 1
        if name == "big":
            admin.change(fleets.big(version=version))


if __name__ == "__main__":
    asyncio.run(_by_hand(sys.argv[1], int(sys.argv[2])))
