import asyncio
from hashlib import sha256

import pytest

from holdfast.control.source import ConfigSource

HASH = "sha256:" + sha256(b"token").hexdigest()
GOOD = """
gateway: {listen: '127.0.0.1:8000', workers: 2}
admin: {listen: '127.0.0.1:8001'}
models: [{name: m, engine: vllm, endpoints: ['http://127.0.0.1:9501']}]
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(GOOD)
    return ConfigSource(path), path


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("127.0.0.1:8000", "127.0.0.1:8009", "gateway.listen"),
        ("workers: 2", "workers: 3", "gateway.workers"),
        ("127.0.0.1:8001", "127.0.0.1:8009", "admin.listen"),
        ("8001'}", f"8001', token: '{HASH}'}}", "admin.token"),
    ],
)
def test_what_only_a_restart_can_change_is_refused_with_the_way_to_do_it(source, old, new, named):
    found, path = source
    path.write_text(GOOD.replace(old, new))
    assert not asyncio.run(found.reload())
    assert found.epoch == 1
    (problem,) = found.problems
    assert f" {named}: cannot change while it runs" in problem
    assert "--takeover" in problem
    assert HASH not in problem


def test_a_file_that_says_the_same_in_other_words_is_no_new_epoch(source):
    found, path = source
    path.write_text(GOOD + "# a comment\n")
    assert not asyncio.run(found.reload())
    assert (found.epoch, found.problems) == (1, [])


def test_a_file_that_vanished_is_a_problem_and_its_return_is_none(source):
    found, path = source
    path.unlink()
    assert asyncio.run(found.changed())
    assert found.problems
    assert found.refused == 1
    path.write_text(GOOD + "retry: {attempts: 3}\n")
    assert asyncio.run(found.changed())
    assert (found.epoch, found.problems) == (2, [])
    assert not asyncio.run(found.changed())
