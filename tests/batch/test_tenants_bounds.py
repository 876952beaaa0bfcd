"""What one tenant does with files and batches: none of it keeps another one waiting."""

import asyncio
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.batch import batch_desk
from holdfast.batch.api_errors import disk_full
from holdfast.batch.input_lines import InputLine
from holdfast.batch.items import LongResults, new_item
from holdfast.core.batch.limits import BatchLimits
from holdfast.queue_port import ItemState, QueueUnavailableError
from holdfast.storage import batch_records

RECORDED = Path(__file__).resolve().parent.parent / "recorded" / "batch-state.tar.gz"
PATIENCE_S = 10.0
BODY = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}


async def depths(here):
    """What the queue holds once the steps under way have ended: items are deleted in the last."""
    await asyncio.gather(*here.desk._steps.values())
    return await here.queue.depths()


def states(here, tenant):
    return [one.state for one in here.desk.open.values() if one.tenant == tenant]


def test_a_tenants_large_files_keep_no_other_tenants_batch_waiting(stage, make_line, until):
    async def scenario(_, make):
        async with make() as here:
            large = b"".join(make_line(number) for number in range(6_000))
            files = {
                "hostile": (await here.upload(large, "hostile")).json(),
                "other": (await here.upload(make_line(1), "other")).json(),
            }
            for tenant in ("hostile", "hostile", "hostile", "other"):
                body = {**BODY, "input_file_id": files[tenant]["id"]}
                made = await here.client(tenant).post("/v1/batches", body)
                assert made.status_code == 200
            await until(lambda: states(here, "other") == ["in_progress"])
            assert states(here, "hostile").count("validating") >= 2
            await until(lambda: states(here, "hostile") == ["in_progress"] * 3)
            assert sum(depth.open for depth in await depths(here)) == 3 * 6_000 + 1

    stage(scenario)


def test_a_file_of_line_breaks_ends_at_the_bound_of_lines(stage):
    async def scenario(_, make):
        async with make(limits=BatchLimits(lines_max=2_000, disk_free_min=0)) as here:
            batch = await here.create(b"\n" * 2_001)
            failed = await here.ended(batch["id"])
            assert [one["code"] for one in failed["errors"]["data"]] == ["too_many_requests"]

    stage(scenario)


def test_a_check_ends_at_its_bound_of_time(stage, make_line):
    async def scenario(_, make):
        async with make(limits=BatchLimits(check_s=1e-9, disk_free_min=0)) as here:
            failed = await here.ended((await here.create(make_line(1)))["id"])
            assert [one["code"] for one in failed["errors"]["data"]] == ["check_too_long"]

    stage(scenario)


def test_batches_that_are_created_too_fast_are_refused_with_the_time_to_wait(stage, make_line):
    async def scenario(_, make):
        async with make(limits=BatchLimits(tenant_batches_per_minute=2, disk_free_min=0)) as here:
            clock = here.desk._now_ns = iter([0, 0, 0, 20 * 10**9, 31 * 10**9]).__next__
            assert clock
            file = (await here.upload(make_line(1))).json()
            body = {**BODY, "input_file_id": file["id"]}
            client = here.client()
            answers = [await client.post("/v1/batches", body) for _ in range(5)]
            assert [one.status_code for one in answers] == [200, 200, 429, 429, 200]
            error = answers[2].json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            assert [one.headers.get("retry-after") for one in answers[2:4]] == ["30", "10"]
            here.desk._now_ns = lambda: 0
            await here.create(make_line(1), tenant="other")

    stage(scenario)


def test_creations_at_once_are_no_more_than_a_tenant_may_have(stage, make_line):
    async def scenario(_, make):
        async with make(limits=BatchLimits(tenant_batches_max=2, disk_free_min=0)) as here:
            file = (await here.upload(make_line(1))).json()
            body = {**BODY, "input_file_id": file["id"]}
            client = here.client()
            answers = await asyncio.gather(*(client.post("/v1/batches", body) for _ in range(10)))
            assert sorted(one.status_code for one in answers) == [200] * 2 + [429] * 8

    stage(scenario)


def test_uploads_at_once_are_no_more_than_a_tenant_may_have(stage):
    async def scenario(_, make):
        limits = BatchLimits(file_bytes_max=10_000, tenant_bytes_max=10_000, disk_free_min=0)
        async with make(limits=limits) as here:
            answers = await asyncio.gather(*(here.upload(b"x" * 6_000) for _ in range(3)))
            assert sorted(one.status_code for one in answers) in ([200, 429, 429], [429] * 3)
            kept = [one for one in answers if one.status_code == 200]
            assert here.desk.held.of("default") == 6_000 * len(kept)
            for one in kept:
                await here.client().delete(f"/v1/files/{one.json()['id']}")
            assert here.desk.held.of("default") == 0
            assert (await here.upload(b"x" * 10_000)).status_code == 200

    stage(scenario)


def test_a_tenant_without_room_creates_no_batch(stage, make_line):
    async def scenario(_, make):
        size = len(make_line(1))
        limits = BatchLimits(file_bytes_max=size, tenant_bytes_max=size, disk_free_min=0)
        async with make(limits=limits) as here:
            file = (await here.upload(make_line(1))).json()
            body = {**BODY, "input_file_id": file["id"]}
            refused = await here.client().post("/v1/batches", body)
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "files_quota_exceeded"

    stage(scenario)


def test_a_batch_whose_lines_have_no_room_is_refused_before_it_runs(stage, make_line):
    async def scenario(gateway, make):
        limits = BatchLimits(file_bytes_max=20_000, tenant_bytes_max=20_000, disk_free_min=0)
        async with make(limits=limits) as here:
            await here.work()
            batch = await here.create(b"".join(make_line(number) for number in range(30)))
            failed = await here.ended(batch["id"])
            assert [one["code"] for one in failed["errors"]["data"]] == ["files_quota_exceeded"]
            assert not gateway.asked

    stage(scenario)


def test_answers_count_while_they_come_and_each_line_still_has_one_record(stage, make_line):
    async def scenario(gateway, make):
        limits = BatchLimits(file_bytes_max=200_000, tenant_bytes_max=200_000, disk_free_min=0)
        async with make(limits=limits) as here:
            lines = b"".join(make_line(n, f"{n:03d}" + "x" * 5_000) for n in range(20))
            batch = await here.create(lines)
            await here.work(slots=4)
            done = await here.ended(batch["id"])
            out = await here.lines(done["output_file_id"])
            bad = await here.lines(done["error_file_id"])
            assert len(out) > 5
            assert set(out) | set(bad) == {f"c{n}" for n in range(20)}
            assert {one["error"]["code"] for one in bad.values()} == {"files_quota_exceeded"}
            assert sum(gateway.asked.values()) < 20  # the others were not asked for nothing
            held = sum(one["bytes"] for one in (await here.get("/v1/files")).json()["data"])
            assert len(lines) < held <= 200_000
            assert here.desk.held.of("default") == held

    stage(scenario)


def test_what_an_open_batch_keeps_counts_after_a_restart(stage, make_line, until):
    async def scenario(gateway, make):
        async with make() as first:
            batch = await first.create(b"".join(make_line(n, "x" * 2_000) for n in range(40)))
            await first.work(slots=6)
            await until(lambda: first.runner.settlements.recorded >= 10)
            gateway.stand_still()
            await until(lambda: gateway.now)
        before = first.desk.held.of("default")
        async with make() as second:
            await until(lambda: second.desk.remaining(batch["id"]))
            assert second.desk.held.of("default") == before
            gateway.hold.set()
            await second.work()
            done = await second.ended(batch["id"])
            assert done["request_counts"]["completed"] == 40
            files = (await second.get("/v1/files")).json()["data"]
            assert second.desk.held.of("default") == sum(one["bytes"] for one in files)

    stage(scenario)


def test_an_ended_batch_and_its_dead_letters_go_when_their_time_is_over(stage, make_line):
    async def scenario(gateway, make):
        gateway.answers["p1"] = (502, "replica_lost")
        limits = BatchLimits(keep_s=1_000.0, disk_free_min=0)
        async with make(limits=limits) as here:
            await here.work()
            batch = await here.create(make_line(1) + make_line(2))
            kept = await here.create(
                make_line(2), output_expires_after={"anchor": "created_at", "seconds": 3_600}
            )
            for one in (batch, kept):
                assert (await here.ended(one["id"]))["status"] == "completed"
            (depth,) = await depths(here)
            assert depth.counts == {ItemState.DEAD: 1}
            here.wall += 999
            await here.desk.look()
            assert (await here.get(f"/v1/batches/{batch['id']}")).status_code == 200
            here.wall += 2
            await here.desk.look()
            assert (await here.get(f"/v1/batches/{batch['id']}")).status_code == 404
            assert (await here.get(f"/v1/batches/{kept['id']}")).status_code == 200
            assert not await depths(here)

    stage(scenario)


def test_a_look_at_files_waits_for_no_other_tenants_commit(stage, make_line):
    async def scenario(_, make):
        async with make() as here:
            await here.upload(make_line(1))
            with here.records._write():  # as long as its sync takes
                async with asyncio.timeout(PATIENCE_S):
                    listed = (await here.get("/v1/files")).json()["data"]
            assert len(listed) == 1

    stage(scenario)


def test_items_that_could_not_be_deleted_at_the_end_go_later(stage, make_line, monkeypatch):
    async def scenario(_, make):
        async with make() as here:
            purge = here.queue.purge

            async def away(*_, **__):
                raise QueueUnavailableError("away")

            monkeypatch.setattr(here.queue, "purge", away)
            await here.work()
            await here.ended((await here.create(make_line(1)))["id"])
            assert await depths(here)
            monkeypatch.setattr(here.queue, "purge", purge)
            await here.desk.look()
            assert not await depths(here)

    stage(scenario)


def test_the_oldest_ended_batches_go_where_there_are_too_many(stage, make_line, monkeypatch):
    monkeypatch.setattr(batch_desk, "BATCHES_KEPT_MAX", 2)

    async def scenario(_, make):
        async with make() as here:
            running = await here.create(make_line(1), tenant="other")
            made = [await here.ended((await here.create(b"no json"))["id"]) for _ in range(4)]
            await here.desk.look()
            listed = (await here.get("/v1/batches")).json()["data"]
            assert [one["id"] for one in listed] == [made[3]["id"], made[2]["id"]]
            assert (await here.get(f"/v1/batches/{running['id']}", "other")).status_code == 200

    stage(scenario)


def test_a_start_reads_what_is_open(stage, make_line, monkeypatch):
    async def scenario(_, make):
        async with make() as here:
            await here.work()
            for _ in range(5):
                await here.ended((await here.create(make_line(1)))["id"])
            here.runner.stop()
            await here.working[0]
            still = await here.create(make_line(1))
        read = []
        real = batch_records._batch
        monkeypatch.setattr(batch_records, "_batch", lambda data: read.append(1) or real(data))
        async with make() as here:
            assert list(here.desk.open) == [still["id"]]
            assert len(read) == 1

    stage(scenario)


def test_a_long_result_leaves_the_reserve_of_the_disk_alone(tmp_path):
    full = []

    def check_room():
        if full:
            raise disk_full()

    results = LongResults(tmp_path, check_room)
    long = b"x" * 300_000
    named = results.put("batch_1/7", long)
    assert results.bytes_of([named, b"short"]) == len(named) + 300_000 + 5
    full.append(True)
    with pytest.raises(type(disk_full())):
        results.put("batch_1/8", long)
    assert results.put("batch_1/9", b"{}") == b"{}"


def test_two_pairs_of_names_that_read_alike_both_run(stage, make_line, until):
    async def scenario(gateway, make):
        async with make() as here:
            here.models = ["m", "a/m"]
            body = {"model": "a/m", "messages": [{"role": "user", "content": "theirs"}]}
            ours = await here.create(make_line(1, "ours"), tenant="team/a")
            theirs = await here.create(make_line(2, body=body), tenant="team")
            await until(lambda: all(here.desk.remaining(one["id"]) for one in (ours, theirs)))
            assert len({depth.queue for depth in await depths(here)}) == 2
            await here.work()
            for one, tenant in ((ours, "team/a"), (theirs, "team")):
                done = await here.ended(one["id"], tenant)
                assert done["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
            assert gateway.tenants == {"team/a": 1, "team": 1}

    stage(scenario)


def test_a_state_directory_of_before_goes_on(stage, tmp_path):
    """It has two batches in one queue, whose name is that of both pairs of tenant and model."""
    with tarfile.open(RECORDED) as recorded:
        recorded.extractall(tmp_path, filter="data")

    async def scenario(gateway, make):
        async with make(limits=BatchLimits(keep_s=1_000.0, disk_free_min=0)) as here:
            here.models = ["m", "a/m"]
            opened = {one.tenant: one for one in here.desk.open.values()}
            assert {one.queues for one in opened.values()} == {("batch/team/a/m",)}
            await here.work()
            for tenant, prompts in (("team/a", {"ours", "ours too"}), ("team", {"theirs"})):
                done = await here.ended(opened[tenant].id, tenant)
                assert done["request_counts"]["completed"] == len(prompts)
                output = await here.get(f"/v1/files/{done['output_file_id']}/content", tenant)
                assert output.content.count(b"\n") == len(prompts)
                assert all(gateway.asked[prompt] == 1 for prompt in prompts)
            (depth,) = await depths(here)
            assert depth.counts == {ItemState.DEAD: 1}
            (old,) = (await here.get("/v1/batches")).json()["data"]
            here.wall += 1_001
            await here.desk.look()
            assert (await here.get(f"/v1/batches/{old['id']}")).status_code == 404
            assert not await depths(here)

    stage(scenario)


def test_a_batch_that_was_half_enqueued_before_goes_on_in_its_queue(stage, make_line):
    async def scenario(gateway, make):
        async with make() as first:
            batch = await first.create(make_line(1) + make_line(2), tenant="team/a")
            await first.desk._steps[batch["id"]]
            name = "batch/team/a/m"  # as it was written before
            size = len(make_line(1)) - 1
            (queue,) = first.desk.open[batch["id"]].queues
            await first.queue.purge(queue)
            line = InputLine(1, 0, size, "c1", "m")
            await first.queue.enqueue(name, [new_item(batch["id"], "team/a", line, 2e9)])
            record = first.desk.open[batch["id"]]
            before = {"state": "validating", "queues": (name,), "kept_bytes": 0}
            first.records.put_batch(replace(record, **before))
        async with make() as second:
            await second.work()
            done = await second.ended(batch["id"], "team/a")
            assert done["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
            assert gateway.asked == {"p1": 1, "p2": 1}
            assert not await depths(second)

    stage(scenario)
