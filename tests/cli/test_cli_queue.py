import asyncio
import json
import stat

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.queue_port import ItemState, NewItem, Settlement
from holdfast.storage.queues.sqlite import SqliteQueue

FLEET = """
models:
  - {name: m, engine: openai, endpoints: [{url: "http://127.0.0.1:9"}]}
"""


@pytest.fixture
def fleet(tmp_path):
    """A fleet file whose queue has an item in every state worth looking at."""
    path = tmp_path / "queue.sqlite"

    async def fill():
        queue = SqliteQueue(path)
        items = [NewItem(f"b1/{n}", b"secret \x1b[2J", "b1", "acme", max_receives=1) for n in "abc"]
        await queue.enqueue("chat/acme", items)
        dead, done, held = await queue.lease("chat/acme", 3, 60.0, "runner")
        await queue.nack([dead.lease], note={"lost_replica": "[bold]r1"})
        await queue.ack([Settlement(done.lease, ItemState.DONE, b"answer")])
        await queue.enqueue("chat/zebra", [NewItem("z", b"")])
        assert held.id == "b1/c"
        await queue.close()

    asyncio.run(fill())
    file = tmp_path / "fleet.yaml"
    file.write_text(f"{FLEET}batch: {{store: {{path: {path}}}}}\n")
    return str(file)


def run(*arguments, **more):
    return CliRunner().invoke(main, ["queue", *arguments], **more)


def test_queues_are_listed_with_their_depth(fleet):
    shown = run("ls", "-c", fleet)
    assert shown.exit_code == 0, shown.output
    title, first, second = shown.output.splitlines()
    assert title.split()[:5] == ["queue", "waiting", "delayed", "in", "flight"]
    assert first.split()[:8] == ["chat/acme", "0", "0", "1", "1", "1", "0", "0"]
    assert second.split()[:2] == ["chat/zebra", "1"]
    told = json.loads(run("ls", "--json", "-c", fleet).output)
    assert told["store"] == "sqlite"
    assert told["queues"][0]["counts"] == {
        "ready": 0,
        "delayed": 0,
        "leased": 1,
        "done": 1,
        "failed": 0,
        "dead": 1,
        "cancelled": 0,
    }


def test_a_dead_letter_tells_its_story_and_not_its_prompt(fleet):
    shown = run("peek", "chat/acme", "--state", "dead", "-c", fleet).output
    assert "b1/a" in shown
    assert 'receive 1: nacked (runner) {"lost_replica": "[bold]r1"}' in shown
    assert "secret" not in shown
    assert "b1/b" not in shown
    shown = run("peek", "chat/acme", "--state", "dead", "--payload", "-c", fleet).output
    assert "secret" in shown
    assert "\x1b" not in shown
    lines = run("peek", "chat/acme", "--json", "-c", fleet).output.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["b1/a", "b1/b", "b1/c"]
    assert "payload" not in json.loads(lines[0])
    page = run("peek", "chat/acme", "-n", "1", "-c", fleet).output
    assert "more with --after 1" in page
    assert run("peek", "nothing", "-c", fleet).output == "no such items\n"


def test_dead_letters_are_sent_again(fleet):
    shown = run("redrive", "chat/acme", "--id", "b1/a", "--id", "b1/b", "-c", fleet)
    assert shown.exit_code == 1
    assert "1 dead letter made ready again" in shown.output
    assert "1 of the ids are no dead letters of it" in shown.output
    assert run("redrive", "chat/acme", "-c", fleet).output == "0 dead letters made ready again\n"


def test_purging_asks_first(fleet):
    refused = run("purge", "chat/acme", "--state", "dead", "-c", fleet, input="n\n")
    assert refused.exit_code == 1
    assert "delete 1 items of chat/acme for good?" in refused.output
    one = ["--id", "b1/a", "--id", "unknown"]
    assert run("purge", "chat/acme", *one, "--yes", "-c", fleet).output == "1 item deleted\n"
    assert run("purge", "chat/acme", "--yes", "-c", fleet).output == "2 items deleted\n"
    assert run("purge", "chat/acme", "-c", fleet).output == "0 items deleted\n"
    assert run("ls", "-c", fleet).output.splitlines()[1].startswith("chat/zebra")


def test_a_store_that_is_not_there_is_not_made(tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_text(f"{FLEET}batch: {{store: {{path: {tmp_path}/none.db}}}}\n")
    shown = run("ls", "-c", str(file))
    assert shown.exit_code == 1
    assert "none.db is not there: no item was queued yet" in shown.output
    assert not (tmp_path / "none.db").exists()


def test_the_file_is_for_its_owner_only(fleet, tmp_path):
    mode = stat.S_IMODE((tmp_path / "queue.sqlite").stat().st_mode)
    assert mode == 0o600


@pytest.mark.parametrize(
    ("store", "told"),
    [
        ("{kind: mysql}", "kind"),
        (
            "{kind: redis}",
            "batch.store.url_env: is missing for redis; name the environment",
        ),
        ("{kind: redis, url_env: U, url_file: /u}", "batch.store.url_env: is set beside url_file"),
        ("{kind: redis, url_env: U, path: /p}", "batch.store.path: is set for redis; remove it"),
        ("{url_env: U}", "batch.store.url_env: is set for sqlite; remove it"),
        ("{items_max: 0}", "items_max"),
    ],
)
def test_a_bad_store_is_refused_where_it_stands(tmp_path, store, told):
    file = tmp_path / "fleet.yaml"
    file.write_text(f"{FLEET}batch: {{store: {store}}}\n")
    shown = run("ls", "-c", str(file))
    assert shown.exit_code == 2
    assert "fleet.yaml:4" in shown.output
    assert told in shown.output


def test_a_url_that_is_missing_or_wrong_is_told_without_its_text(tmp_path, monkeypatch):
    pytest.importorskip("redis")
    file = tmp_path / "fleet.yaml"
    file.write_text(f"{FLEET}batch: {{store: {{kind: redis, url_env: QUEUE_URL}}}}\n")
    shown = run("ls", "-c", str(file))
    assert "QUEUE_URL, which is not set" in shown.output
    monkeypatch.setenv("QUEUE_URL", "http://:hunter2@x")
    shown = run("ls", "-c", str(file))
    assert "its URL cannot be read" in shown.output
    assert "hunter2" not in shown.output
