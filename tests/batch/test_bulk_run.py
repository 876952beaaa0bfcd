"""``holdfast batch run``: splits, keeps the order, and goes on after a kill at any call."""

import json

import pytest

from holdfast.batch.client.api_client import BatchApiClient, BatchApiError
from holdfast.batch.client.bulk_run import BulkRun, BulkRunError


class KilledError(BaseException):
    """The process ends here, as by SIGKILL."""


class Server:
    """A batch API in memory: a batch is done when it is looked at for the second time."""

    def __init__(self):
        self.files, self.names, self.batches, self.looks = {}, {}, {}, {}
        self.created = 0
        self.calls = 0
        self.dies_at = None

    def _call(self, *, after=False):
        """Count a call; die before it had an effect, or after it and before its answer."""
        if not after:
            self.calls += 1
        if self.dies_at == (self.calls, after):
            raise KilledError

    def upload(self, source, begin, end, name):
        self._call()
        file_id = f"file-{len(self.names)}"
        self.files[file_id] = source.read_bytes()[begin:end]
        self.names[file_id] = name
        self._call(after=True)
        return {"id": file_id}

    def post(self, _path, body):
        self._call()
        batch_id = f"batch_{self.created}"
        self.created += 1
        self.batches[batch_id] = self._done(batch_id, body)
        self._call(after=True)
        return {"id": batch_id}

    def _done(self, batch_id, body):
        good, bad = [], []
        for line in self.files[body["input_file_id"]].splitlines():
            if line.strip():
                said = json.loads(line)
                (bad if said["custom_id"].endswith("7") else good).append(said["custom_id"])
        for kind, ids in (("out", good), ("err", bad)):
            text = "".join(json.dumps({"custom_id": one}) + "\n" for one in ids)
            self.files[f"{kind}-{batch_id}"] = text.encode()
        counts = {"total": len(good + bad), "completed": len(good), "failed": len(bad)}
        return {
            "id": batch_id,
            "metadata": body["metadata"],
            "output_file_id": f"out-{batch_id}",
            "error_file_id": f"err-{batch_id}" if bad else None,
            "request_counts": counts,
        }

    def get(self, path, **_query):
        self._call()
        if path == "/v1/files":
            return {"data": [{"id": one, "filename": name} for one, name in self.names.items()]}
        if path == "/v1/batches":
            return {"data": list(self.batches.values())}
        batch_id = path.rpartition("/")[2]
        self.looks[batch_id] = self.looks.get(batch_id, 0) + 1
        status = "completed" if self.looks[batch_id] > 1 else "in_progress"
        return {**self.batches[batch_id], "status": status}

    def download(self, file_id, into):
        self._call()
        half = len(self.files[file_id]) // 2
        into.write(self.files[file_id][:half])
        into.flush()
        self._call(after=True)
        into.write(self.files[file_id][half:])

    def delete(self, path):
        self._call()
        self.files.pop(path.rpartition("/")[2], None)


def write_input(path, number):
    lines = [
        {"custom_id": f"c{n}", "method": "POST", "url": "/v1/chat/completions", "body": {}}
        for n in range(number)
    ]
    path.write_text("\n\n".join(json.dumps(line) for line in lines))


def run(server, folder, **options):
    bulk = BulkRun(
        server,
        folder / "in.jsonl",
        folder / "out.jsonl",
        lines_each=4,
        sleep=lambda _: None,
        **options,
    )
    return bulk.run()


def ids(path):
    return [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]


def check(folder, server, number=10):
    good = [f"c{n}" for n in range(number) if n % 10 != 7]
    assert ids(folder / "out.jsonl") == good  # in the order of the input, each once
    assert ids(folder / "out.jsonl.errors") == ["c7"]
    assert server.created == 3  # no part was sent twice
    assert not (folder / "out.jsonl.progress").exists()


def test_a_file_is_split_and_its_answers_keep_its_order(tmp_path):
    write_input(tmp_path / "in.jsonl", 10)
    server, seen = Server(), []
    state = run(server, tmp_path, on_progress=lambda state: seen.append(state.done))
    assert (state.total, state.done, state.failed) == (10, 10, 1)
    assert seen == sorted(seen)
    check(tmp_path, server)


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_call_it_goes_on_and_nothing_is_sent_or_written_twice(tmp_path, after):
    write_input(tmp_path / "in.jsonl", 10)
    whole = Server()
    run(whole, tmp_path)
    for call in range(1, whole.calls + 1):
        for left in tmp_path.glob("out.*"):
            left.unlink()
        server = Server()
        server.dies_at = (call, after)
        try:
            run(server, tmp_path)
        except KilledError:
            run(server, tmp_path)
        check(tmp_path, server)


def test_what_cannot_be_run_is_refused_before_anything_is_sent(tmp_path):
    server = Server()
    (tmp_path / "in.jsonl").write_text("")
    with pytest.raises(BulkRunError, match="no lines"):
        run(server, tmp_path)
    (tmp_path / "in.jsonl").write_text("[]\n")
    with pytest.raises(BulkRunError, match=r"in\.jsonl:1: not a line of a batch"):
        run(server, tmp_path)
    write_input(tmp_path / "in.jsonl", 10)
    (tmp_path / "out.jsonl").write_text("precious\n")
    with pytest.raises(BulkRunError, match="exists"):
        run(server, tmp_path)
    assert (tmp_path / "out.jsonl").read_text() == "precious\n"
    assert server.calls == 0


def test_an_input_that_changed_meanwhile_is_refused(tmp_path):
    write_input(tmp_path / "in.jsonl", 10)
    server = Server()
    server.dies_at = (3, False)
    with pytest.raises(KilledError):
        run(server, tmp_path)
    write_input(tmp_path / "in.jsonl", 11)
    with pytest.raises(BulkRunError, match="delete"):
        run(server, tmp_path)


def test_a_server_that_is_away_is_asked_again_until_patience_ends():
    slept, now = [], [0.0]

    def sleep(pause_s):
        slept.append(pause_s)
        now[0] += pause_s

    client = BatchApiClient(
        "http://127.0.0.1:1", patience_s=30.0, sleep=sleep, clock=lambda: now[0]
    )
    with pytest.raises(BatchApiError, match=r"no answer from 127\.0\.0\.1"):
        client.get("/v1/batches")
    assert 30 <= sum(slept) <= 45
    assert max(slept) == 10.0
