"""The API of the batch process believes whoever reaches its socket: so other users must not."""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from holdfast.batch.process import _server

ASK = b"GET / HTTP/1.1\r\nhost: batch\r\nconnection: close\r\n\r\n"
AS_ANOTHER = (
    "import os, socket, sys; os.setuid(12345)\n"
    "own = socket.socket(socket.AF_UNIX); own.connect(sys.argv[1])\n"
    "own.sendall(bytes.fromhex(sys.argv[2])); sys.stdout.write(own.recv(4096).decode())\n"
)


def ask(path):
    with socket.socket(socket.AF_UNIX) as own:
        own.connect(str(path))
        own.sendall(ASK)
        with own.makefile("rb") as answer:
            return answer.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_process_of_another_user_is_not_answered_where_it_can_reach_the_socket():
    asked = []

    def home(_):
        asked.append(1)
        return PlainTextResponse("files")

    async def main():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "s"
            server, listener = _server(Starlette(routes=[Route("/", home)]), path)
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            os.chmod(folder, 0o755)  # noqa: PTH101 no coroutine waits for a disk in a test
            os.chmod(path, 0o777)  # noqa: PTH101
            assert b"files" in await asyncio.to_thread(ask, path)
            command = [sys.executable, "-c", AS_ANOTHER, str(path), ASK.hex()]
            other = await asyncio.to_thread(subprocess.run, command, capture_output=True)
            assert other.stdout == b""
            assert len(asked) == 1
            server.should_exit = True
            await serving
            listener.close()

    asyncio.run(main())
