import json

import pytest
from click.testing import CliRunner

import key_store_promises as promises
from holdfast.cli import main
from holdfast.storage.key_stores.sqlite_keys import SqliteKeys

FLEET = """
models:
  - {name: m, engine: openai, endpoints: [{url: "http://127.0.0.1:9"}]}
"""


@pytest.fixture
def fleet(tmp_path):
    """A fleet file whose store holds one key of each of two tenants."""
    path = tmp_path / "keys.db"
    store = SqliteKeys(path)
    promises.one(store, promises.NAME, promises.claim())
    promises.one(store, promises.NAME, promises.finish())
    promises.one(store, promises.OTHER, promises.claim("e2"))
    store.close()
    file = tmp_path / "fleet.yaml"
    file.write_text(f"{FLEET}gateway: {{idempotency: {{store: {{path: {path}}}}}}}\n")
    return str(file)


def run(*arguments, **more):
    return CliRunner().invoke(main, ["idempotency", *arguments], **more)


def test_tenants_are_listed_with_what_they_hold(fleet):
    shown = run("ls", "-c", fleet)
    assert shown.exit_code == 0, shown.output
    title, other, team = shown.output.splitlines()
    assert title.split() == ["tenant", "keys", "bytes", "stored"]
    assert (other.split(), team.split()) == (["other", "1", "0"], ["team", "1", "2"])
    told = json.loads(run("ls", "--json", "-c", fleet).output)
    assert told["tenants"][1] == {"tenant": "team", "keys": 1, "bytes": 2}


def test_a_purge_deletes_the_keys_of_one_tenant_after_it_asked(fleet):
    refused = run("purge", "team", "-c", fleet, input="n\n")
    assert refused.exit_code == 1
    assert len(run("ls", "-c", fleet).output.splitlines()) == 3
    done = run("purge", "team", "-c", fleet, input="y\n")
    assert done.output.endswith("1 keys deleted\n")
    assert json.loads(run("purge", "team", "--json", "-c", fleet).output)["keys"] == 0
    assert run("purge", "other", "--yes", "-c", fleet).exit_code == 0
    assert run("ls", "-c", fleet).output == "no key is kept\n"


def test_a_store_that_is_not_there_or_broken_is_told(fleet, tmp_path):
    (tmp_path / "keys.db").write_bytes(b"no database " * 100)
    broken = run("ls", "-c", fleet)
    assert (broken.exit_code, "keys.db" in broken.output) == (1, True)
    other = tmp_path / "other.yaml"
    other.write_text(FLEET)
    missing = run("ls", "-c", str(other))
    assert missing.exit_code == 1
    assert "no key was kept yet" in missing.output
