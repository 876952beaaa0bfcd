import asyncio
import signal
import sys
import urllib.request
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from holdfast.cli.standin import stand_in
from holdfast.core.types import ConfigError
from holdfast.testing.standin import Options, StandIn

RUN = "from holdfast.cli.standin import stand_in; stand_in()"


async def started(*arguments):
    """A stand-in in a process of its own, and where it listens."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        RUN,
        *("--port", "0", "--side-port", "0", "--ttft-ms", "1", "--tpot-ms", "0", *arguments),
        stdout=asyncio.subprocess.PIPE,
    )
    line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
    return process, line


def descriptors():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def called(url, body):
    with urllib.request.urlopen(urllib.request.Request(url, orjson.dumps(body))) as answer:
        return orjson.loads(answer.read())


def test_a_process_serves_until_it_is_told_to_stop():
    async def main():
        process, line = await started("--model", "a", "--model", "b")
        assert line.startswith("stand-in for a, b at http://127.0.0.1:")
        url = line.split()[5].rstrip(",")
        body = {"model": "b", "prompt": "x"}
        answer = await asyncio.to_thread(called, f"{url}/v1/completions", body)
        assert answer["choices"][0]["finish_reason"] == "stop"
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 30) == 0
        process._transport.close()

    asyncio.run(main())


def test_a_process_dies_of_its_first_request():
    async def main():
        process, line = await started("--fault", "oom")
        url = line.split()[4].rstrip(",")
        body = {"model": "m", "prompt": "x"}
        with pytest.raises(OSError):
            await asyncio.to_thread(called, f"{url}/v1/completions", body)
        assert await asyncio.wait_for(process.wait(), 30) == 137
        process._transport.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--fault", "measles"],
        ["--fault-with", "tokens=3"],
        ["--fault", "cut", "--fault-with", "tokens"],
        ["--fault", "garbage", "--fault-with", "form=poem"],
        ["--port", "70000"],
        ["--like", "other"],
    ],
)
def test_the_command_refuses_what_it_cannot_do(arguments):
    result = CliRunner().invoke(stand_in, arguments)
    assert result.exit_code == 2
    assert "Usage" in result.output


def test_a_port_that_is_taken_is_said_plainly(kit):
    async def main():
        async with kit.live() as standin:
            arguments = ["--port", str(standin.port)]
            return await asyncio.to_thread(CliRunner().invoke, stand_in, arguments)

    result = asyncio.run(main())
    assert result.exit_code == 1
    assert "cannot listen" in result.output


@pytest.mark.parametrize(
    "wrong",
    [
        {"models": ()},
        {"models": ("",)},
        {"ttft_ms": -1.0},
        {"tpot_ms": float("nan")},
        {"tokens": 0},
        {"tokens": 10**9},
        {"slots": -1},
    ],
)
def test_options_that_cannot_work_are_refused(wrong):
    with pytest.raises(ConfigError, match="standin"):
        Options(**wrong)


def test_a_stand_in_can_do_without_a_side_port_and_be_stopped_twice():
    async def main():
        standin = StandIn()
        await standin.stop()
        await standin.start(side_port=None)
        assert standin.side_port == 0
        assert standin.url == f"http://127.0.0.1:{standin.port}"
        await standin.stop()
        await standin.stop()

    asyncio.run(main())


def test_it_can_be_stopped_while_cut_off_and_with_clients_connected(kit):
    async def main():
        before = descriptors()
        async with kit.live() as standin:
            _, writer = await asyncio.open_connection("127.0.0.1", standin.port)
            await kit.until(lambda: standin.stats()["connections"] == 1)
            await kit.ask(standin, "/fault", {"kind": "partition"}, side=True)
        writer.transport.abort()
        await asyncio.sleep(0)
        await kit.until(lambda: descriptors() <= before)

    asyncio.run(main())
