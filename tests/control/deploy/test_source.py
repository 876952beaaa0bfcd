import asyncio
from hashlib import sha256

import pytest

from holdfast.config.document import ConfigFileError
from holdfast.config.tenants import hash_key
from holdfast.control.deploy.source import ConfigSource

HASH = "sha256:" + sha256(b"a token that nobody guesses").hexdigest()
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


def test_tokens_are_rotated_by_writing_their_files_anew(tmp_path):
    path, secrets = tmp_path / "fleet.yaml", [tmp_path / name for name in ("all", "role", "agent")]
    for number, secret in enumerate(secrets):
        secret.write_text(f"hf-the-first-token-{number}\n")
    every, role, agent = secrets
    admin = (
        f"8001', token_file: {every}, tokens: [{{name: a, roles: [read], token_file: {role}}}]}}"
    )
    sources = f"sources: [{{type: agents, agents: [{{name: g, token_file: {agent}}}]}}]\n"
    path.write_text(GOOD.replace("8001'}", admin) + sources)
    found = ConfigSource(path)

    def held():
        file = found.file
        return [file.admin.token, file.admin.tokens[0].token, file.sources[0].agents[0].token]

    before = held()
    assert before == [hash_key(f"hf-the-first-token-{number}") for number in range(3)]
    assert not asyncio.run(found.changed())
    for number, secret in enumerate(secrets):
        secret.write_text(f"hf-the-second-token-{number}\n")
        assert asyncio.run(found.changed())
        assert held()[number] == hash_key(f"hf-the-second-token-{number}")
    assert found.epoch == 4
    assert b"-token-1" not in found.json
    # One that cannot be read is refused with its name, and the token in use stays.
    every.unlink()
    assert asyncio.run(found.changed())
    (problem,) = found.problems
    assert "admin.token_file" in problem
    assert str(every) in problem
    assert held()[0] == hash_key("hf-the-second-token-0")


def test_the_admin_token_of_the_file_changes_while_it_runs(source):
    found, path = source
    path.write_text(GOOD.replace("8001'}", f"8001', token: '{HASH}'}}"))
    assert asyncio.run(found.reload())
    assert found.file.admin.token == HASH
    assert found.problems == []


def test_a_key_is_rotated_by_writing_its_file_anew(tmp_path):
    path, secret = tmp_path / "fleet.yaml", tmp_path / "key"
    secret.write_text("hf-the-first-of-two-keys\n")
    path.write_text(f"{GOOD}tenants: [{{name: t, keys: [{{file: {secret}, id: ci}}]}}]\n")
    found = ConfigSource(path)
    (first,) = found.file.tenants[0].keys
    assert not asyncio.run(found.changed())
    secret.write_text("hf-the-second-of-two-keys\n")
    assert asyncio.run(found.changed())
    (second,) = found.file.tenants[0].keys
    assert found.epoch == 2
    assert (second.hash, second.id) != (first.hash, first.id)
    assert second.hash == hash_key("hf-the-second-of-two-keys")
    assert b"two-keys" not in found.json
    secret.unlink()
    assert asyncio.run(found.changed())
    assert "cannot be read" in found.problems[0]
    assert found.epoch == 2  # what runs goes on


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


# --- what only an import, or an engine's dialect, can refute -------------------------------------

HTTP = "canary: {shape: http, path: /x, body: '{}', check: 'CHECK'}"
LAUNCH = """
models:
  - name: m
    engine: vllm
    launch:
      replicas: 1
      command: [serve, '{port}']
"""


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        (GOOD.replace("}]", ", " + HTTP.replace("CHECK", "no_such:check") + "}]"), 4, "no_such"),
        (GOOD.replace("}]", ", " + HTTP.replace("CHECK", "os.path:sep") + "}]"), 4, "no function"),
        (LAUNCH.replace("{port}", "{prot}"), 7, "{prot}"),
    ],
)
def test_a_file_that_cannot_work_is_refused_at_its_line(tmp_path, text, line, told):
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with pytest.raises(ConfigFileError) as caught:
        ConfigSource(path)
    assert f"fleet.yaml:{line}:" in str(caught.value)
    assert told in str(caught.value)


def test_a_setting_that_an_engine_has_no_flag_for_is_refused_while_it_runs(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(LAUNCH)
    found = ConfigSource(path)
    assert found.file.models[0].launch.replicas == 1
    bad = LAUNCH.replace("command: [serve, '{port}']", "weights: w\n      pipeline_parallel: 2")
    path.write_text(bad.replace("vllm", "llamacpp"))
    assert not asyncio.run(found.reload())
    assert found.epoch == 1
    (problem,) = found.problems
    assert "fleet.yaml:8:" in problem
    assert "pipeline_parallel" in problem


def test_a_share_of_no_gpu_is_refused(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(LAUNCH.replace("command:", "gpu_share: 0.5\n      command:"))
    with pytest.raises(ConfigFileError) as caught:
        ConfigSource(path)
    told = "launch.gpu_share: is set, and no GPU is chosen; set launch.gpus beside it, or remove"
    assert told in str(caught.value)


def test_a_check_that_is_there_is_accepted(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(GOOD.replace("}]", ", " + HTTP.replace("CHECK", "os.path:isabs") + "}]"))
    assert ConfigSource(path).problems == []


# --- after another control -----------------------------------------------------------------------


def test_the_same_file_goes_on_with_the_epoch_of_before(source, tmp_path):
    found, path = source
    again = ConfigSource(path, (7, found.json))
    assert (again.epoch, again.file, again.problems) == (7, found.file, [])
    path.write_text(GOOD + "retry: {attempts: 3}\n")
    assert ConfigSource(path, (7, found.json)).epoch == 8


def test_a_bad_file_leaves_the_one_of_before(source):
    found, path = source
    path.write_text("models: []\n")
    again = ConfigSource(path, (7, found.json))
    assert (again.epoch, again.file, again.refused) == (7, found.file, 1)
    assert again.problems
