"""``holdfast serve`` as operators and clients meet it: real processes, and nobody loses anything.

The tests share one stage and go over it in the order in which they stand here.
"""

import asyncio
import json
import os
import signal
import urllib.error
from hashlib import sha256

import pytest
import uvloop
from click.testing import CliRunner

from holdfast.cli.explain import explain
from holdfast.testing.standin import expected_text

KEY = "hf-planted-key-7Qx9"
WRONG_KEY = "hf-planted-stranger-2Zk4"
ENGINE_TOKEN = "planted-engine-token-5Vb1"
ADMIN_TOKEN_ENV = "HOLDFAST_ADMIN_TOKEN"
PROMPT = "planted-prompt-8Wm3"
PLANTS = ("planted-", "7Qx9", "2Zk4", "5Vb1", "8Wm3")
AUTH = f"authorization: Bearer {KEY}\r\n"
LONG = 1_500  # tokens, at 2 ms each: longer than everything a gateway does before it ends


@pytest.fixture(scope="module")
def stage(ops, tmp_path_factory):
    """Two stand-ins, two gateway processes, a tenant; a model that needs a token, a virtual one."""
    made = ops.Stage(tmp_path_factory.mktemp("serve"), headers=AUTH)
    url = f"http://127.0.0.1:{made.engine_ports[0]}"
    made.gateway = ", draining: {grace_s: 2}"
    made.extra = (
        f"  - {{name: n, engine: vllm, api_key_env: PLANTED, served_as: m, endpoints: ['{url}'],"
        " queue: {wait_no_replica_s: 2}}\n"  # nobody waits half a minute for its only replica
        f"tenants: [{{name: team, keys: ['sha256:{sha256(KEY.encode()).hexdigest()}']}}]\n"
        "watch: {replace: false}\n"  # a control that is frozen here stays so
        "virtual_models:\n  - {name: v, default: m}\n"
    )
    os.environ["PLANTED"] = ENGINE_TOKEN
    try:
        made.open()
        yield made
    finally:
        del os.environ["PLANTED"]
        made.close()


def status_of(ops, url):
    """Status and text of a page."""
    try:
        return 200, ops.call(url)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def pages(ops, stage):
    """All that operators can read."""
    names = ("metrics", "status", "events", "readyz", "readyz/m")
    return "\n".join(str(ops.call(f"{stage.admin}/{name}")) for name in names)


def lossless(ops, row, at_least=100):
    assert ops.lost(row) == 0, row["harms"]
    assert row["requests"] >= at_least


# --- what can be asked ---------------------------------------------------------------------------


def test_both_ports_say_who_is_ready(ops, stage):
    uvloop.run(stage.whole())
    for base in (stage.admin, f"http://127.0.0.1:{stage.port}"):
        assert status_of(ops, f"{base}/livez") == (200, "alive\n")
        assert status_of(ops, f"{base}/readyz") == (200, "ready\n")
        assert status_of(ops, f"{base}/readyz/m") == (200, "ready\n")
        assert status_of(ops, f"{base}/readyz/none") == (503, "no such model\n")


def test_the_story_of_a_request_can_be_asked_for(ops, stage):
    reply = uvloop.run(ops.ask(stage.port, ops.chat("tell me", stream=True, headers=AUTH)))
    name = reply.headers["x-request-id"]
    runner = CliRunner(env={ADMIN_TOKEN_ENV: None, "COLUMNS": "200"})
    told = runner.invoke(explain, [name, "--admin", stage.admin, "--json"])
    assert told.exit_code == 0, told.output
    story = json.loads(told.stdout)
    assert (story["request_id"], story["asked_for"], story["status"]) == (name, "m", 200)
    assert (story["tenant"], story["streamed"]) == ("team", True)
    assert story["replica"] == reply.headers["x-holdfast-replica"]
    assert story["story"]
    shown = runner.invoke(explain, [name, "--admin", stage.admin])
    assert story["replica"] in shown.stdout
    unknown = runner.invoke(explain, ["req_nobody", "--admin", stage.admin])
    assert unknown.exit_code == 1
    assert "no gateway knows this request" in unknown.output


def test_metrics_count_the_requests_of_all_gateways(ops, stage):
    async def main():
        for number in range(6):
            assert not await ops.harm(stage.port, number, AUTH)
        series = 'holdfast_requests_total{model="m",status="200"}'

        def counted():
            for line in ops.call(f"{stage.admin}/metrics").splitlines():
                if line.startswith(series):
                    return float(line.split()[-1]) >= 6
            return False

        await ops.until(counted, "the requests are counted", 20)

    uvloop.run(main())


# --- what operators do ---------------------------------------------------------------------------


def test_one_gateway_process_is_replaced_and_nobody_notices(ops, stage, small):
    lossless(ops, uvloop.run(ops.play(stage, "a", small)))


def test_with_control_frozen_gateways_serve_and_even_start(ops, stage, small):
    async def main():
        await stage.whole()
        control, before = stage.serve.control(), stage.gateways()
        async with ops.Load(stage, small.rate, small.clients) as load:
            os.kill(control, signal.SIGSTOP)
            try:
                thaw_at = asyncio.get_running_loop().time() + small.freeze_s
                os.kill(before[0], signal.SIGTERM)

                def replaced():
                    now = stage.serve.processes("gateway-process")
                    return before[0] not in now and len(now) == stage.workers

                await ops.until(replaced, "a gateway was replaced without control")
                await asyncio.sleep(max(thaw_at - asyncio.get_running_loop().time(), 0))
            finally:
                os.kill(control, signal.SIGCONT)
            await stage.whole(without=before[0])
        assert "starting from its last state" in stage.serve.said()
        return load.row()

    lossless(ops, uvloop.run(main()))


def test_a_killed_control_is_started_again_and_nobody_notices(ops, stage, small):
    epoch = stage.status()["epoch"]
    lossless(ops, uvloop.run(ops.play(stage, "d", small)), at_least=50)
    assert stage.status()["epoch"] == epoch


def test_a_broken_config_changes_nothing_and_a_good_one_is_followed(ops, stage, small):
    lossless(ops, uvloop.run(ops.play(stage, "e", small)), at_least=50)
    assert "holdfast_config_refused_total" in ops.call(f"{stage.admin}/metrics")


def test_a_changed_file_is_noticed_without_a_signal(ops, stage, kept):
    async def main():
        epoch = stage.status()["epoch"]
        stage.write("  - {name: w, default: m}\n")

        def followed():
            told = stage.status()
            return {told["epoch"], *(one["epoch"] for one in told["gateways"])} == {epoch + 1}

        await ops.until(followed, "the new file is followed", 20)
        request = b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\n" + AUTH.encode() + b"\r\n"
        async with kept(stage.port) as client:
            listed = json.loads((await client.send(request)).body)
        assert [model["id"] for model in listed["data"]] == ["m", "n", "v", "w"]

    uvloop.run(main())


def test_a_successor_takes_over_while_the_first_finishes_what_it_began(ops, stage, small, kept):
    request = ops.chat("long", stream=True, headers=AUTH, max_tokens=LONG, ignore_eos=True)

    async def readiness(prober):
        """Ask the one that leaves until it says so."""
        while (reply := await prober.get("/readyz")).status == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return reply.status, reply.body

    async def main():
        first = stage.serve
        async with kept(stage.port) as reader, kept(stage.port) as prober:
            for client in (reader, prober):  # now the first has accepted them
                assert (await client.get("/readyz")).status == 200
            async with ops.Load(stage, small.rate, small.clients) as load:
                second = stage.start(takeover=True)
                await ops.until(second.may_replace, "the successor is ready")
                streaming = asyncio.ensure_future(reader.send(request))
                await asyncio.sleep(0.1)
                first.process.terminate()
                assert await readiness(prober) == (503, b"draining\n")
                reply = await streaming
                await ops.until(first.ended, "the first has ended")
                await stage.whole()
        assert first.process.returncode == 0
        asked = [{"role": "user", "content": "long"}]
        assert reply.text() == expected_text("m", asked, LONG)
        return load.row()

    lossless(ops, uvloop.run(main()))


# --- what must not be told -----------------------------------------------------------------------


def attempts_to_make_it_talk(ops):
    """Requests whose text somebody could be tempted to repeat."""
    bad = [
        ops.chat(PROMPT, stream=False, headers=f"authorization: Bearer {WRONG_KEY}\r\n"),
        ops.chat(PROMPT, stream=False, headers=f"{AUTH}api-key: {WRONG_KEY}\r\n"),
        ops.chat(PROMPT, stream=False, headers=AUTH, model=f"{PROMPT}-model"),
        ops.chat(PROMPT, stream=False, headers=AUTH, max_tokens=f"{PROMPT}-number"),
        ops.chat(PROMPT, stream=False, headers=AUTH, n=10_000, stop=[PROMPT]),
        ops.chat(PROMPT, stream=True, headers=AUTH, response_format=PROMPT, temperature=PROMPT),
        ops.chat(PROMPT, stream=False, headers=AUTH).replace(b'"model"', b'"model" planted-'),
        ops.chat(PROMPT, stream=False, headers=AUTH)[:-9].replace(b"length: ", b"length: 0"),
        ops.chat(PROMPT, stream=False, headers=AUTH).replace(
            b"/v1/chat/completions", f"/v1/{PROMPT}?api_key={KEY}".encode()
        ),
        ops.chat(PROMPT, stream=False, headers=f"{AUTH}x-{PROMPT}: {PROMPT}\r\nbad {PROMPT}\r\n"),
        f"{PROMPT} / HTTP/1.1\r\nhost: {PROMPT}\r\n\r\n".encode(),
    ]
    good = [
        ops.chat(PROMPT, stream=stream, headers=AUTH, model=model, user=PROMPT)
        for stream in (False, True)
        for model in ("m", "n", "v")
    ]
    return bad, good


def test_prompts_answers_and_keys_are_in_no_log_page_story_or_error(ops, stage):
    bad, good = attempts_to_make_it_talk(ops)
    told = []

    async def send(request, patience_s=ops.PATIENCE_S):
        """Keep what can be read of it; its status, or 0 where the request was never complete."""
        try:
            reply = await ops.ask(stage.port, request, patience_s)
        except TimeoutError:
            return 0
        told.append(str(reply.headers))
        if reply.status != 200:
            told.append(reply.body.decode())
        name = reply.headers.get("x-request-id")
        if name:
            page = f"{stage.admin}/explain/{name}"
            told.append(str((await asyncio.to_thread(status_of, ops, page))[1]))
        return reply.status

    async def main():
        statuses = await asyncio.gather(*(send(request, 1.5) for request in bad))
        assert all(status == 0 or 400 <= status < 500 for status in statuses), statuses
        assert [await send(request) for request in good] == [200] * len(good)
        sick = stage.replicas[0]
        for fault in (
            {"kind": "cut", "tokens": 4},
            {"kind": "error_frame", "tokens": 0},
            {"kind": "status", "code": 400, "instant": True},
            {"kind": "garbage", "form": "bytes"},
        ):
            await asyncio.to_thread(sick.strike, fault)
            assert all(await asyncio.gather(*(send(request) for request in good)))
        await asyncio.to_thread(ops.call, f"{sick.side}/fault", "DELETE")

    uvloop.run(main())
    answer = expected_text("m", [{"role": "user", "content": PROMPT}], ops.TOKENS)
    everything = {
        "replies": "\n".join(told),
        "pages": pages(ops, stage),
        **{serve.log.name: serve.said() for serve in stage.serves},
    }
    assert len(told) > 40
    assert all(len(text) > 500 for text in everything.values())
    for where, text in everything.items():
        for plant in (*PLANTS, answer[:24], answer[-24:]):
            assert plant not in text, (where, plant)
