"""One key, one file or one batch: repeated, at once, after a restart, and with another request."""

import asyncio

from holdfast.batch.creation_keys import KEEP_S

BODY = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}


def keyed(here, key, tenant="default"):
    client = here.client(tenant)
    client._headers["idempotency-key"] = key
    return client


def test_the_same_upload_is_one_file_and_another_is_refused(stage, make_line):
    async def scenario(_, make):
        async with make() as here:
            client = keyed(here, "k1")
            first = (await client.upload(make_line(1), "batch")).json()
            again = (await client.upload(make_line(1), "batch")).json()
            assert first == again
            other = await client.upload(make_line(2), "batch")
            assert (other.status_code, other.json()["error"]["code"]) == (
                422,
                "idempotency_key_reused",
            )
            assert len((await client.get("/v1/files")).json()["data"]) == 1
            # Another tenant's key of the same name is another key; and without one there is none.
            assert (await keyed(here, "k1", "red").upload(make_line(2), "batch")).status_code == 200
            assert (await here.upload(make_line(1))).json()["id"] != first["id"]
            left = [path.name for path in here.store.folder.iterdir()]
            assert len(left) == 3  # nothing of what was refused or repeated

    stage(scenario)


def test_callers_at_once_get_one_batch_also_after_a_restart(stage, make_line):
    async def scenario(_, make):
        async with make() as here:
            file = (await here.upload(make_line(1))).json()
            body = {**BODY, "input_file_id": file["id"]}
            client = keyed(here, "k")
            answers = await asyncio.gather(*(client.post("/v1/batches", body) for _ in range(10)))
            ids = {answer.json()["id"] for answer in answers}
            assert len(ids) == 1
            assert len((await client.get("/v1/batches")).json()["data"]) == 1
        async with make() as here:
            client = keyed(here, "k")
            reordered = dict(reversed(body.items()))
            assert (await client.post("/v1/batches", reordered)).json()["id"] in ids
            other = await client.post("/v1/batches", {**body, "metadata": {"a": "b"}})
            assert other.status_code == 422

    stage(scenario)


def test_a_refused_creation_leaves_its_key_free(stage, make_line):
    async def scenario(_, make):
        async with make() as here:
            client = keyed(here, "k")
            missing = {**BODY, "input_file_id": "file-none"}
            assert (await client.post("/v1/batches", missing)).status_code == 404
            file = (await here.upload(make_line(1))).json()
            good = {**BODY, "input_file_id": file["id"]}
            assert (await client.post("/v1/batches", good)).status_code == 200

    stage(scenario)


def test_a_key_that_is_none_a_deleted_file_and_an_old_key(stage, make_line):
    async def scenario(_, make):
        async with make() as here:
            for bad in ("a b", "x" * 256, ""):
                answer = await keyed(here, bad).upload(make_line(1), "batch")
                assert (answer.status_code, answer.json()["error"]["param"]) == (
                    400,
                    "Idempotency-Key",
                )
            client = keyed(here, "k")
            file = (await client.upload(make_line(1), "batch")).json()
            await client.delete(f"/v1/files/{file['id']}")
            answer = await client.upload(make_line(1), "batch")
            assert (answer.status_code, answer.json()["error"]["code"]) == (
                409,
                "idempotency_answer_gone",
            )
            with here.records._write():
                here.records._db.execute("UPDATE creation_keys SET at = at - ?", (KEEP_S + 10,))
            assert (await client.upload(make_line(2), "batch")).status_code == 200

    stage(scenario)
