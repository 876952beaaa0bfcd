"""Files and batches through the API: happy ways, refusals, isolation, quotas, crashes."""

from holdfast.batch.items import LongResults
from holdfast.core.batch.limits import BatchLimits


def test_a_file_is_kept_listed_read_and_deleted(stage):
    async def scenario(_, make):
        async with make() as here:
            made = (await here.upload(b"hello\n")).json()
            assert made["object"] == "file"
            assert (made["bytes"], made["purpose"], made["filename"]) == (6, "batch", "in.jsonl")
            listed = (await here.get("/v1/files")).json()["data"]
            assert [one["id"] for one in listed] == [made["id"]]
            content = await here.get(f"/v1/files/{made['id']}/content")
            assert content.content == b"hello\n"
            mode = here.store.path(made["id"]).stat().st_mode & 0o777
            assert mode == 0o600
            async with here.client() as client:
                gone = (await client.delete(f"/v1/files/{made['id']}")).json()
            assert gone == {"id": made["id"], "object": "file", "deleted": True}
            assert (await here.get(f"/v1/files/{made['id']}")).status_code == 404

    stage(scenario)


def test_another_tenants_file_and_batch_look_as_if_they_were_not_there(stage, make_line):
    async def scenario(_, make):
        async with make() as here:
            batch = await here.create(make_line(1), tenant="a")
            for path in (f"/v1/files/{batch['input_file_id']}", f"/v1/batches/{batch['id']}"):
                theirs = await here.get(path, tenant="b")
                nowhere = await here.get(f"{path}0", tenant="b")
                assert theirs.status_code == nowhere.status_code == 404
                assert theirs.json()["error"]["code"] == nowhere.json()["error"]["code"]
            for path in ("/v1/files", "/v1/batches"):
                assert (await here.get(path, tenant="b")).json()["data"] == []
            async with here.client("b") as client:
                body = {
                    "input_file_id": batch["input_file_id"],
                    "endpoint": "/v1/chat/completions",
                    "completion_window": "24h",
                }
                refused = await client.post("/v1/batches", body)
            assert refused.status_code == 404
            assert refused.json()["error"]["param"] == "input_file_id"

    stage(scenario)


def test_what_is_wrong_with_a_request_is_told_in_openais_shape(stage):
    async def scenario(_, make):
        async with make() as here:
            wrong = await here.upload(b"x", purpose="fine-tune")
            assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "purpose")
            async with here.client() as client:
                for body, param in (
                    ({}, "input_file_id"),
                    ({"input_file_id": "f", "endpoint": "/x"}, "completion_window"),
                    (
                        {"input_file_id": "f", "endpoint": "/x", "completion_window": "24h"},
                        "endpoint",
                    ),
                ):
                    refused = await client.post("/v1/batches", body)
                    error = refused.json()["error"]
                    assert (refused.status_code, error["param"]) == (400, param)
                    assert error["type"] == "invalid_request_error"
                assert (await client.post("/v1/batches", content=b"{")).status_code == 400
                for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
                    told = await client.ask("POST", "/v1/batches", b"{}", kind)
                    assert told.status_code == 415, kind
                    assert told.json()["error"]["code"] == "unsupported_media_type"
                assert (await client.get("/v1/files?limit=0")).status_code == 400
                assert (await client.put("/v1/files")).status_code == 405
            async with here.client(tenant=None) as client:
                assert (await client.get("/v1/files")).status_code == 401

    stage(scenario)


def test_quotas_bound_bytes_files_and_batches_of_a_tenant(stage, make_line):
    async def scenario(_, make):
        limits = BatchLimits(
            file_bytes_max=4_000, tenant_bytes_max=6_000, tenant_batches_max=1, disk_free_min=0
        )
        async with make(limits=limits) as here:
            large = await here.upload(b"x" * 5_000)
            assert (large.status_code, large.json()["error"]["code"]) == (413, "file_too_large")
            await here.create(make_line(1))
            assert (await here.upload(b"x" * 3_000)).status_code == 200
            over = await here.upload(b"x" * 3_000)
            assert over.status_code == 429
            assert over.json()["error"]["code"] == "files_quota_exceeded"
            assert (await here.upload(b"x" * 3_000, tenant="other")).status_code == 200
            file = (await here.get("/v1/files")).json()["data"][-1]
            async with here.client() as client:
                body = {
                    "input_file_id": file["id"],
                    "endpoint": "/v1/chat/completions",
                    "completion_window": "24h",
                }
                second = await client.post("/v1/batches", body)
            assert second.status_code == 429
            assert not [one for one in here.store.folder.iterdir() if one.name[0] == "."]

    stage(scenario)


def test_a_batch_with_bad_lines_fails_as_a_whole_and_names_them(stage, make_line):
    async def scenario(gateway, make):
        async with make() as here:
            await here.work()
            batch = await here.create(make_line(1) + b"nonsense\n" + make_line(1))
            failed = await here.ended(batch["id"])
            told = [(one["code"], one["line"]) for one in failed["errors"]["data"]]
            assert failed["status"] == "failed"
            assert told == [("invalid_json_line", 2), ("duplicate_custom_id", 3)]
            assert not gateway.asked

    stage(scenario)


def test_a_batch_runs_and_each_line_has_one_record(stage, make_line):
    async def scenario(gateway, make):
        gateway.answers["p3"] = (400, "invalid_value")
        async with make() as here:
            await here.work()
            batch = await here.create(
                b"".join(make_line(n) for n in range(30)),
                metadata={"for": "test"},
                output_expires_after={"anchor": "created_at", "seconds": 3_600},
            )
            done = await here.ended(batch["id"])
            assert done["status"] == "completed"
            assert done["request_counts"] == {"total": 30, "completed": 29, "failed": 1}
            assert done["metadata"] == {"for": "test"}
            out = await here.lines(done["output_file_id"])
            bad = await here.lines(done["error_file_id"])
            assert set(out) | set(bad) == {f"c{n}" for n in range(30)}
            assert set(bad) == {"c3"}
            assert out["c7"]["response"]["body"] == {"echo": "p7"}
            assert bad["c3"]["response"]["status_code"] == 400
            file = (await here.get(f"/v1/files/{done['output_file_id']}")).json()
            assert file["expires_at"] - file["created_at"] == 3_600
            assert not await here.queue.depths()
            here.wall += 4_000
            await here.desk.look()
            assert (await here.get(f"/v1/files/{done['output_file_id']}")).status_code == 404

    stage(scenario)


def test_a_cancelled_batch_keeps_what_was_done(stage, make_line, until):
    async def scenario(gateway, make):
        async with make() as here:
            await here.work(slots=5)
            batch = await here.create(b"".join(make_line(n) for n in range(40)))
            await until(lambda: sum(gateway.asked.values()) >= 3)
            gateway.stand_still()
            async with here.client() as client:
                told = await client.post(f"/v1/batches/{batch['id']}/cancel")
                assert told.json()["status"] == "cancelling"
            ended = await here.ended(batch["id"])
            assert ended["status"] == "cancelled"
            out = await here.lines(ended["output_file_id"])
            bad = await here.lines(ended["error_file_id"])
            assert len(out) >= 3
            assert set(out) | set(bad) == {f"c{n}" for n in range(40)}
            assert {one["error"]["code"] for one in bad.values()} == {"batch_cancelled"}
            async with here.client() as client:
                again = await client.post(f"/v1/batches/{batch['id']}/cancel")
            assert (again.status_code, again.json()["error"]["code"]) == (409, "batch_finished")

    stage(scenario)


def test_a_window_that_ends_leaves_partial_results(stage, make_line, until):
    async def scenario(gateway, make):
        async with make() as here:
            await here.work(slots=5)
            batch = await here.create(b"".join(make_line(n) for n in range(40)))
            await until(lambda: sum(gateway.asked.values()) >= 3)
            gateway.stand_still()
            here.wall += 86_401
            await here.desk.look()
            ended = await here.ended(batch["id"])
            assert ended["status"] == "expired"
            bad = await here.lines(ended["error_file_id"])
            out = await here.lines(ended["output_file_id"])
            assert len(out) + len(bad) == 40
            assert {one["error"]["code"] for one in bad.values()} == {"batch_expired"}

    stage(scenario)


def test_a_file_that_a_batch_reads_is_not_deleted(stage, make_line):
    async def scenario(_, make):
        async with make() as here:
            batch = await here.create(make_line(1))
            async with here.client() as client:
                refused = await client.delete(f"/v1/files/{batch['input_file_id']}")
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "file_in_use")

    stage(scenario)


def test_a_full_disk_refuses_new_work_and_goes_on_when_room_returns(stage, make_line, until):
    async def scenario(gateway, make):
        free = [10**9]
        limits = BatchLimits(disk_free_min=1_000)
        async with make(limits=limits, free_bytes=lambda _: free[0]) as here:
            batch = await here.create(b"".join(make_line(n) for n in range(40)))
            gateway.stand_still()
            await here.work(slots=8)
            await until(lambda: gateway.now)
            free[0] = 10
            refused = await here.upload(b"x")
            assert (refused.status_code, refused.json()["error"]["code"]) == (507, "disk_full")
            await until(lambda: here.runner.feeds["m"].pace.reason.startswith("the disk has no"))
            running = len(here.runner._running)
            assert 0 < running < 40
            gateway.hold.set()  # what runs is recorded, and nothing else is sent
            await until(lambda: here.runner.settlements.recorded == running)
            for _ in range(3):
                await here.runner._look()
            assert sum(gateway.asked.values()) == running
            free[0] = 10**9
            done = await here.ended(batch["id"])
            assert (done["status"], done["request_counts"]["completed"]) == ("completed", 40)
            assert (await here.upload(b"x")).status_code == 200

    stage(scenario)


def test_an_output_waits_for_room_on_the_disk(stage, make_line, until):
    async def scenario(_, make):
        free = [10**9]
        limits = BatchLimits(disk_free_min=1_000)
        async with make(limits=limits, free_bytes=lambda _: free[0]) as here:
            batch = await here.create(b"".join(make_line(n) for n in range(5)))
            begin, here.store.begin = here.store.begin, refuse_once_full(here.store, free)
            await here.work()
            await until(lambda: here.desk.open[batch["id"]].state == "finalizing")
            assert (await here.get(f"/v1/batches/{batch['id']}")).json()["status"] == "finalizing"
            free[0] = 10**9
            here.store.begin = begin
            assert (await here.ended(batch["id"]))["status"] == "completed"

    stage(scenario)


def refuse_once_full(store, free):
    """The disk is full from the first output file on."""

    def begin():
        free[0] = 10
        return store.check_room()

    return begin


def test_a_successor_goes_on_where_a_killed_process_was(stage, make_line, tmp_path, until):
    async def scenario(gateway, make):
        first = make()
        await first.desk.start()
        batch = await first.create(b"".join(make_line(n) for n in range(50)))
        await first.work(slots=6)
        await until(lambda: sum(gateway.asked.values()) >= 10)
        # As kill -9 leaves it: tasks end, nothing is given back or closed in order.
        for task in [*first.working, *first.desk._steps.values()]:
            task.cancel()
        first.runner._give_back = first.runner.settlements.flush = _nothing
        for running in list(first.runner._running.values()):
            running.task.cancel()
        (tmp_path / "files" / ".part-file-x").write_bytes(b"half")
        (tmp_path / "files" / "file-without-record").write_bytes(b"whole")
        async with make() as second:
            await second.work()
            done = await second.ended(batch["id"])
            out = await second.lines(done["output_file_id"])
            assert set(out) == {f"c{n}" for n in range(50)}
            assert not (tmp_path / "files" / ".part-file-x").exists()
            assert not (tmp_path / "files" / "file-without-record").exists()
        await first.queue.close()
        first.gateway.close()
        first.records.close()

    stage(scenario)


async def _nothing():
    return True


def test_long_results_lie_in_files_and_go_with_their_batch(tmp_path):
    results = LongResults(tmp_path)
    long = b"x" * 300_000
    named = results.put("batch_1/7", long)
    assert len(named) < 100
    assert results.get(named) == long
    assert results.get(results.put("batch_1/8", b"{}")) == b"{}"
    results.drop("batch_1")
    assert not list(tmp_path.iterdir())
