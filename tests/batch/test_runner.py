"""What the runner does with answers: tries again, waits, gives up; and how it shares and yields."""

import asyncio
import contextlib
import json
import ssl
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.batch.gateway_client import GatewayClient, pinned_context
from holdfast.batch.load_reports import LoadReports
from holdfast.frames.batch_load import LoadDatagram, LoadRow, decode_load, encode_load
from holdfast.queue_port import ItemState


def test_a_poison_item_goes_to_the_dead_letters_with_its_story_and_all_else_finishes(
    stage, make_line
):
    async def scenario(gateway, make):
        gateway.answers["p5"] = (502, "replicas_lost")
        async with make() as here:
            await here.work()
            batch = await here.create(b"".join(make_line(n) for n in range(12)))
            done = await here.ended(batch["id"])
            assert done["request_counts"] == {"total": 12, "completed": 11, "failed": 1}
            assert gateway.asked["p5"] == 1  # two replicas were lost with it: never sent again
            bad = await here.lines(done["error_file_id"])
            assert bad["c5"]["error"]["code"] == "dead_letter"
            assert "is replicas_lost" in bad["c5"]["error"]["message"]
            (dead,) = await here.queue.items("batch/default/m", states=[ItemState.DEAD])
            note = dead.story[-1]["note"]
            assert (note["code"], note["status"]) == ("replicas_lost", 502)

    stage(scenario)


def test_items_that_share_two_lost_replicas_with_a_poison_item_finish(stage, make_line, until):
    async def scenario(gateway, make):
        async with make() as here:
            gateway.deadly = "p0"  # the whole replica ends with it, and is back at once
            await here.work()
            batch = await here.create(b"".join(make_line(n) for n in range(12)))
            await until(lambda: "m" in here.runner.feeds)
            turns = here.runner.feeds["m"].suspect_turns
            done = await here.ended(batch["id"])
            assert done["request_counts"] == {"total": 12, "completed": 11, "failed": 1}
            assert gateway.asked["p0"] == 2
            assert gateway.lost[0] > {"p0"}, "others were lost with it"
            assert gateway.lost[1:] == [{"p0"}], "and then it was alone"
            (dead,) = await here.queue.items("batch/default/m", states=[ItemState.DEAD])
            assert [entry["note"]["code"] for entry in dead.story] == ["replica_lost"] * 2
            await until(lambda: (turns.running, turns.waiting) == (0, 0))

    stage(scenario)


def test_a_batch_that_is_cancelled_gives_its_waiting_suspects_back(stage, make_line, until):
    async def scenario(gateway, make):
        async with make() as here:
            for number in (1, 2, 3):
                gateway.answers[f"p{number}"] = (502, "replica_lost")
            await here.work()
            batch = await here.create(b"".join(make_line(n) for n in range(1, 4)))
            await until(lambda: gateway.asked.total() == 3)
            gateway.stand_still()
            feed = here.runner.feeds["m"]
            await until(lambda: len(feed.suspects) == 2 and len(feed.running) == 1)
            async with here.client() as client:
                await client.post(f"/v1/batches/{batch['id']}/cancel")
            assert (await here.ended(batch["id"]))["status"] == "cancelled"
            turns = feed.suspect_turns
            await until(lambda: (turns.running, turns.waiting) == (0, 0))

    stage(scenario)


def test_an_item_without_an_answer_is_tried_three_times(stage, make_line):
    async def scenario(gateway, make):
        gateway.answers["p1"] = (502, "upstream_failed")
        async with make() as here:
            await here.work()
            batch = await here.create(make_line(1) + make_line(2))
            done = await here.ended(batch["id"])
            assert gateway.asked == {"p1": 3, "p2": 1}
            assert done["request_counts"]["failed"] == 1

    stage(scenario)


def test_no_room_burns_no_receive_and_the_item_ends_well_when_there_is(stage, make_line, until):
    async def scenario(gateway, make):
        gateway.answers["p1"] = (503, "no_ready_replica")
        async with make() as here:
            await here.work()
            batch = await here.create(make_line(1))
            await until(lambda: gateway.asked["p1"] >= 2)
            gateway.answers.clear()
            done = await here.ended(batch["id"])
            assert done["request_counts"]["completed"] == 1

    stage(scenario)


def test_a_model_without_a_ready_replica_is_not_fed(stage, make_line, until):
    async def scenario(gateway, make):
        async with make() as here:
            await here.work(ready=False)
            batch = await here.create(make_line(1))
            await until(lambda: "m" in here.runner.feeds)
            feed = here.runner.feeds["m"]
            await until(lambda: feed.pace.reason == "no replica is ready")
            (item,) = await here.queue.items("batch/default/m")
            assert (item.receives, item.state) == (0, ItemState.READY)
            assert not gateway.asked
            here.ready = True
            assert (await here.ended(batch["id"]))["status"] == "completed"

    stage(scenario)


def test_tenants_take_turns_and_each_is_asked_for_in_its_own_name(stage, make_line, until):
    async def scenario(gateway, make):
        async with make() as here:
            for tenant, number in (("big", 200), ("small", 10)):
                data = b"".join(make_line(f"{tenant}{n}") for n in range(number))
                batch = await here.create(data, tenant=tenant)
                await until(lambda b=batch: here.desk.open[b["id"]].state == "in_progress")
            await here.work(slots=6)
            await here.ended(batch["id"], "small")
            assert gateway.tenants["small"] == 10
            assert gateway.tenants["big"] <= 60  # not all of the larger one went first

    stage(scenario)


def test_people_who_wait_get_young_items_slots(stage, make_line, until):
    async def scenario(gateway, make):
        async with make() as here:
            gateway.stand_still()
            await here.work(slots=12)
            await here.create(b"".join(make_line(n) for n in range(50)))
            await until(lambda: gateway.now == 10)
            here.waiting = 3
            await until(lambda: len(here.runner._running) <= 7)
            await until(lambda: not here.runner.settlements.waiting)
            items = await here.queue.items("batch/default/m", limit=50)
            back = [item for item in items if item.state is ItemState.READY]
            assert {item.receives for item in back} == {0}  # taken back: no receive is burnt

    stage(scenario)


def test_what_first_tokens_are_usual_is_learned_while_there_is_no_batch(stage, make_line, until):
    async def scenario(_, make):
        async with make() as here:
            here.p95_s = 0.25
            await here.work()
            await until(lambda: "m" in here.runner._capacities)
            learned = here.runner._capacities["m"]
            await until(lambda: learned._looks >= 2)
            batch = await here.create(make_line(1))
            await here.ended(batch["id"])
            await until(lambda: "m" not in here.runner.feeds)
            assert here.runner._capacities["m"] is learned  # the next batch finds it
            assert learned._usual.value == 0.25

    stage(scenario)


def test_the_backlog_tells_what_waits_runs_and_when_it_ends(stage, make_line, until):
    async def scenario(gateway, make):
        async with make() as here:
            gateway.stand_still()
            await here.work(slots=12)
            await here.create(b"".join(make_line(n) for n in range(50)))
            await until(lambda: gateway.now == 10)
            told = (await here.get("/internal/backlog")).json()
            row = told["models"]["m"]
            assert (row["waiting"], row["in_flight"], row["dead"]) == (40, 10, 0)
            assert row["drain_s"] is None  # nothing ended yet: unknown is not zero
            assert told["batches"] == {"in_progress": 1}

    stage(scenario)


def test_reports_of_several_gateways_are_one_load():
    reports = LoadReports(now_ns=lambda: 0)
    rows = (("gateway-0", LoadRow("m", 1, 3, 8, 0.2, ready=True, replicas=2)),)
    rows += (("gateway-1", LoadRow("m", 2, 4, 8, None, ready=False)),)
    for name, row in rows:
        reports.take(decode_load(encode_load(LoadDatagram(name, [row]))))
    load = reports.of("m")
    assert (load.waiting, load.running, load.slots) == (3, 7, 8)
    assert (load.first_token_p95_s, load.ready, load.replicas) == (0.2, True, 2)
    assert reports.of("other") is None
    reports.leads_to = {"auto": ("m",)}
    assert reports.of("auto") == load
    assert reports.models() == {"m", "auto"}
    assert decode_load(b"nonsense") is None


def test_a_gateway_that_is_not_there_is_an_answer_of_status_0(stage):
    async def scenario(gateway, _):
        client = GatewayClient("http://127.0.0.1:1", b"secret")
        answer = await client.post("/v1/chat/completions", "a", b"{}")
        assert (answer.status, answer.broken) == (0, True)
        live = GatewayClient(gateway.url, b"secret")
        body = json.dumps({"messages": [{"content": "x"}]}).encode()
        for _ in range(2):  # the second on the same connection
            assert (await live.post("/v1/chat/completions", "a", body)).status == 200
        live.close()

    stage(scenario)


def test_the_runner_trusts_the_ports_own_certificate_and_a_renewed_one(tmp_path):
    async def answer(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"{}")
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    async def ask(port, client):
        return await client.post("/v1/chat/completions", "a", b"{}")

    async def scenario():
        shown = write_certificate(tmp_path)
        other = write_certificate(tmp_path / "renewed")
        trusted = [str(other[0])]
        server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_tls.load_cert_chain(*shown)
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_tls)
        port = server.sockets[0].getsockname()[1]
        url = f"https://127.0.0.1:{port}"
        client = GatewayClient(url, b"secret", lambda: pinned_context(trusted[0]))
        assert (await ask(port, client)).broken  # not the one that it knows
        trusted[0] = str(shown[0])
        assert (await ask(port, client)).status == 200
        client.close()
        server.close()
        await asyncio.sleep(0.05)

    asyncio.run(scenario())


def write_certificate(folder):
    """A certificate for no particular name, and its key."""
    folder.mkdir(exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gateway.example")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )
    certificate, secret = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate, secret
