import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.cli.admin_port import read_fleet_file
from holdfast.config.fleet_file import FleetFile
from holdfast.core.failure import Cause
from holdfast.doctor import (
    AdviceLevel,
    check_file,
    check_gpus,
    check_machine,
    check_running,
    check_token_file,
    launches_on_gpus,
    links_of,
    secret_paths,
)
from holdfast.sources.placement_devices import read_devices
from holdfast.testing.gpu_host import FakeGpuHost

TWO_ZONES = [
    {"url": "http://127.0.0.1:9001", "zone": "a"},
    {"url": "http://127.0.0.1:9002", "zone": "b"},
]


def file(model=None, **more):
    section = {"name": "m", "engine": "vllm", "endpoints": TWO_ZONES, **(model or {})}
    return FleetFile.model_validate_json(json.dumps({"models": [section], **more}))


def told(found):
    return {advice.where: advice for advice in found}


def test_a_sound_file_gets_no_advice():
    assert check_file(file()) == []


def test_one_zone_and_one_replica_are_told_apart():
    one_zone = [{**end, "zone": "a"} for end in TWO_ZONES]
    (advice,) = check_file(file({"endpoints": one_zone}))
    assert "2 replicas in one zone, a" in advice.problem
    alone = told(check_file(file({"endpoints": TWO_ZONES[:1]})))
    assert "one replica" in alone["models.m"].problem
    assert "canary.expect" in alone["models.m.canary"].fix


def test_launched_replicas_are_counted_by_their_launch():
    launch = {"replicas": 3, "zones": ["a"], "command": ["engine", "--image", "engine:latest"]}
    found = told(check_file(file({"endpoints": [], "launch": launch})))
    assert "3 replicas in one zone" in found["models.m"].problem
    assert Cause.VERSION_SKEW in found["models.m.launch.command.2"].leads_to


def test_a_probe_that_cannot_fail_is_an_error():
    advice = told(check_file(file({"engine": "triton"})))["models.m.canary"]
    assert advice.level is AdviceLevel.ERROR
    assert Cause.WRONG_OUTPUT in advice.leads_to


def test_a_canary_that_takes_anything_for_the_same_is_noticed():
    found = told(check_file(file({"canary": {"similarity": 0.1}})))
    assert "10%" in found["models.m.canary.similarity"].problem


def test_waits_that_nobody_waits_for_are_named_with_their_field():
    found = told(check_file(file({"deadlines": {"request_s": "2h", "first_token_s": "10m"}})))
    assert "120 min" in found["models.m.deadlines.request_s"].problem
    assert found["models.m.deadlines.first_token_s"].level is AdviceLevel.NOTE


def test_a_name_that_moves_is_no_revision():
    assert "models.m.revision" in told(check_file(file({"revision": "main"})))
    assert check_file(file({"revision": "domain"})) == []


def test_retries_are_multiplied_over_layers():
    assert "retry.attempts" in told(check_file(file(retry={"attempts": 4})))
    rules = [{"when": {"tools": True}, "use": "m", "check": ["length"], "escalate": "big"}]
    big = {
        "name": "big",
        "engine": "vllm",
        "endpoints": [{**e, "url": e["url"].replace("900", "800")} for e in TWO_ZONES],
    }
    small = {"name": "m", "engine": "vllm", "endpoints": TWO_ZONES}
    virtual = [{"name": "auto", "rules": rules, "default": "m"}]
    whole = FleetFile.model_validate({"models": [small, big], "virtual_models": virtual})
    assert "12 tries" in told(check_file(whole))["retry.attempts"].problem


def test_retries_without_bound_or_jitter_are_named_and_errors_come_first():
    found = check_file(file(retry={"budget": False, "backoff": "none"}))
    assert [advice.level for advice in found] == [AdviceLevel.ERROR, AdviceLevel.WARNING]
    assert {advice.where for advice in found} == {"retry.budget", "retry.backoff"}


def test_ejection_beyond_half_is_named():
    found = told(check_file(file(fleet={"ejection": {"share_max": 0.8}})))
    assert "80%" in found["fleet.ejection.share_max"].problem


# --- a running fleet ------------------------------------------------------------------------------


def row(name, **more):
    return {"id": name, "model": "m", "revision": "1", "state": "ready", "zone": "a", **more}


def gateways(*epochs):
    return [{"name": f"g{place}", "epoch": epoch} for place, epoch in enumerate(epochs)]


def test_a_fleet_that_is_well_gets_no_advice():
    status = {"replicas": [row("a"), row("b", zone="b")], "gateways": gateways(1, 1)}
    assert check_running(status, [{"id": "inc-1", "stage": "closed"}]) == []


def test_what_the_status_page_shows_becomes_advice():
    status = {
        "config_problems": ["fleet.yaml:3: bad"],
        "gateways": gateways(1, 2),
        "panic": ["m"],
        "breakers_overruled": {"m": ["a", "b"]},
        "store": {"problem": "disk full"},
        "replicas": [
            row("a", revision="1"),
            row("b", revision="2", state="dead"),
            row("c", state="quarantined", canary={"verdict": "unsettled", "detail": "two answers"}),
        ],
    }
    found = check_running(status, [])
    problems = " | ".join(advice.problem for advice in found)
    for words in ("was refused", "2 different configs", "panic", "disk full", "2 revisions"):
        assert words in problems
    assert "one ready replica of 3" in problems
    assert "two answers" in problems
    assert "users' failures on most replicas; still tried: a, b" in problems


def test_a_process_that_stands_still_is_an_error_that_names_it():
    processes = [
        {"name": "control", "pid": 7, "condition": "turning", "for_s": 90.0},
        {"name": "gateway-1", "pid": 8, "condition": "stopped", "for_s": 12.2},
    ]
    (advice,) = check_running({"gateways": gateways(1, 1), "processes": processes}, [])
    assert (advice.level, advice.where) == (AdviceLevel.ERROR, "gateway-1")
    assert advice.problem == "has been stopped for 12 s (pid 8)"
    processes = [{"name": "supervisor", "pid": 6, "condition": "stopped", "for_s": 5.0}]
    (advice,) = check_running({"gateways": gateways(1, 1), "processes": processes}, [])
    assert (advice.where, "kill -CONT 6" in advice.fix) == ("supervisor", True)


def test_one_gateway_and_none_are_different_things():
    assert check_running({"gateways": gateways(1)}, [])[0].level is AdviceLevel.NOTE
    assert check_running({}, [])[0].level is AdviceLevel.ERROR


def test_all_ready_ones_in_one_zone_are_a_warning():
    status = {"replicas": [row("a"), row("b")], "gateways": gateways(1, 1)}
    (advice,) = check_running(status, [])
    assert "one zone only" in advice.problem


def test_an_open_incident_brings_its_fix():
    incident = {
        "id": "inc-000007",
        "stage": "open",
        "cause": "undersized",
        "title": "x",
        "fix": "set 4 GB",
    }
    found = check_running({"gateways": gateways(1, 1)}, [incident, {"id": "inc-8", "title": "y"}])
    assert found[0].fix == "set 4 GB"
    assert found[0].leads_to == (Cause.UNDERSIZED,)
    assert "holdfast explain inc-8" in found[1].fix


# --- who may do what ------------------------------------------------------------------------------

HASH = "sha256:" + "1" * 64
OTHER = "sha256:" + "2" * 64


def test_one_token_for_everything_beyond_loopback_is_noted():
    far = {"listen": "0.0.0.0:8001", "token": HASH, "insecure": True}
    found = told(check_file(file(admin=far)))
    assert found["admin.token"].level is AdviceLevel.NOTE
    named = {**far, "tokens": [{"name": "grafana", "roles": ["read"], "token": OTHER}]}
    assert "admin.token" not in told(check_file(file(admin=named)))
    assert check_file(file(admin={"token": HASH})) == []


def test_chaos_that_other_hosts_can_order_is_a_warning():
    far = {"listen": "0.0.0.0:8001", "token": HASH, "insecure": True}
    found = told(check_file(file(admin=far, chaos={"enabled": True})))
    assert found["chaos.enabled"].level is AdviceLevel.WARNING
    assert check_file(file(chaos={"enabled": True})) == []


def test_reading_that_is_open_beside_tokens_is_noted():
    found = told(check_file(file(admin={"token": HASH, "open_read": True})))
    assert "every process of this machine" in found["admin.open_read"].problem


def test_agents_that_share_a_token_are_a_warning_and_those_with_their_own_are_not():
    for source in ({"type": "agents", "token": HASH}, {"type": "agents"}):
        found = told(check_file(file(sources=[source])))
        assert "speaks for all" in found["sources.agents"].problem
    ends = [{**end, "id": f"r{n}"} for n, end in enumerate(TWO_ZONES)]
    own = {"type": "agents", "agents": [{"name": "gpu-1", "token": HASH, "replicas": ["r0"]}]}
    assert check_file(file({"endpoints": ends}, sources=[own])) == []
    own["agents"][0]["replicas"] = ["nobody"]
    found = told(check_file(file({"endpoints": ends}, sources=[own])))
    assert "'nobody'" in found["sources.agents.agents.gpu-1"].problem


def test_a_token_that_others_can_read_is_an_error():
    assert check_token_file("/state/admin.token", exposed=False) == []
    (advice,) = check_token_file("/state/admin.token", exposed=True)
    assert advice.level is AdviceLevel.ERROR


# --- the machine ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("descriptors", "levels"),
    [
        (1 << 20, []),
        (20_024, []),
        (20_000, []),
        (18_000, ["warning"]),
        (1_024, ["warning"]),
        (30, ["error"]),
    ],
)
def test_a_limit_on_open_files_is_compared_with_the_bound_on_connections(descriptors, levels):
    found = check_machine(file(), descriptors)
    assert [advice.level.value for advice in found] == levels
    for advice in found:
        assert advice.where == "gateway.http.connections_max"
        assert "raise the limit on open files to 20024" in advice.fix
        assert advice.leads_to == (Cause.OWN_SHORTAGE,)


# --- GPUs -----------------------------------------------------------------------------------------


def launched(replicas, engine="vllm", **launch):
    launch = {"replicas": replicas, "weights": "/w", "zones": ["a", "b"], **launch}
    return file({"endpoints": [], "engine": engine, "launch": launch})


def test_gpus_that_suffice_are_named_and_a_rollout_without_a_spare_one_is_told():
    host = read_devices(FakeGpuHost(4, ((0, 1), (2, 3))))
    one, full = check_gpus(launched(1, gpus=2), host), check_gpus(launched(2, gpus=2), host)
    (note,) = one
    assert (note.level, note.where) == (AdviceLevel.NOTE, "this host")
    assert note.problem == "has 4 GPUs NVIDIA Z9 with 80 GiB; NVLink joins 0-1, 2-3"
    assert "drains one replica before the next" in told(full)["models.m.launch"].problem


def test_more_replicas_than_gpus_are_a_warning_with_the_reason_in_numbers():
    host = read_devices(FakeGpuHost(4, ((0, 1), (2, 3))))
    advice = told(check_gpus(launched(3, gpus=2), host))["models.m.launch"]
    assert (advice.level, advice.leads_to) == (AdviceLevel.WARNING, (Cause.NOT_PLACED,))
    assert advice.problem == (
        "wants 3 replicas, and the 3. waits: "
        "2 GPUs wanted, 0 of 4 free: m-1 holds 0, 1; m-2 holds 2, 3"
    )
    shared = told(check_gpus(launched(3, memory_fraction=0.4), read_devices(FakeGpuHost(1))))
    assert "the 3. shares a GPU that has no room" in shared["models.m.launch"].problem


def test_what_runs_on_the_host_already_does_not_count_and_slices_are_named():
    host = FakeGpuHost(2)
    host.gpus[0].memory_used = host.gpus[0].memory_total
    host.gpus[1].slices = [10, 10]
    found = told(check_gpus(launched(2, gpus=1), read_devices(host)))
    assert "MIG slices of NVIDIA Z9 with 10 GiB" in found["this host"].problem
    assert "models.m.launch" not in found


def test_a_host_without_a_gpu_is_an_error_for_those_who_ask_and_a_warning_for_who_needs_one():
    host = read_devices(FakeGpuHost(0))
    (asked,) = check_gpus(launched(1, gpus=1), host)
    assert asked.level is AdviceLevel.ERROR
    assert asked.problem == (
        "needs 1 of this host's GPUs for each replica, and there is no GPU: the driver sees no GPU"
    )
    (needed,) = check_gpus(launched(1), host)
    assert needed.level is AdviceLevel.WARNING


def test_of_models_that_need_no_gpu_nothing_is_said():
    for plain in (file(), launched(3, engine="llamacpp"), launched(3, gpus=0)):
        assert not launches_on_gpus(plain)
        assert check_gpus(plain, read_devices(FakeGpuHost(1))) == []
    assert launches_on_gpus(launched(1))


def test_secrets_that_every_user_can_read_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    names = ("admin", "key", "engine", "tls.key", "tls.pem")
    admin, key, engine, private, public = paths = [tmp_path / name for name in names]
    for path in paths:
        path.write_text("hf-planted-secret-of-a-file")
        path.chmod(0o640)
    config = tmp_path / "fleet.yaml"
    config.write_text(
        f"admin: {{token_file: {admin}}}\n"
        f"gateway: {{tls: {{certificate: {public}, key: {private}}}}}\n"
        f"tenants: [{{name: t, keys: [{{file: {key}, id: ci}}]}}]\n"
        "models:\n"
        f"  - {{name: m, engine: vllm, api_key_file: {engine}, endpoints: ['http://a:1']}}\n"
    )
    file = read_fleet_file(config)
    assert secret_paths(file) == [key, admin, private, engine]

    def told():
        result = CliRunner().invoke(main, ["doctor", "-c", str(config), "--json"])
        advice = json.loads(result.output)["advice"]
        return [one["where"] for one in advice if "every user" in one["problem"]]

    assert told() == []
    for path in (engine, public):  # a certificate is no secret
        path.chmod(0o644)
    engine.chmod(0o604)
    assert told() == [str(engine)]
    engine.unlink()
    assert told() == []


def test_idempotency_without_tenants_or_with_too_short_a_life_is_a_warning():
    tenants = [{"name": "a", "keys": ["sha256:" + "0" * 64]}]
    sound = {"idempotency": {"enabled": True, "store": {"path": "/var/lib/holdfast/keys.db"}}}
    assert check_file(file(gateway=sound, tenants=tenants)) == []
    assert check_file(file(gateway={"idempotency": {"policy": {"ttl_s": 1}}})) == []  # it is off
    risky = {"idempotency": {"enabled": True, "store": {"path": "keys.db"}, "policy": {"ttl_s": 5}}}
    found = told(check_file(file(gateway=risky)))
    assert "share their idempotency keys" in found["gateway.idempotency"].problem
    assert found["gateway.idempotency.store.path"].fix == "write the whole path"
    assert "600 s" in found["gateway.idempotency.policy.ttl_s"].problem
    assert {advice.level for advice in found.values()} == {AdviceLevel.WARNING}


TWO_CONTROLS = {
    "members": [{"name": "a", "address": "127.0.0.1:1"}, {"name": "b", "address": "127.0.0.1:2"}],
    "lease": {"store": "sqlite", "path": "/x/lease.sqlite"},
}


def test_every_link_between_own_processes_is_listed_with_what_authenticates_it():
    (own,) = links_of(file())
    assert (own.of, "control.sock" in own.where, "user" in own.authenticated) == (
        "gateway",
        True,
        True,
    )
    links = {one.of: one for one in links_of(file(control=TWO_CONTROLS, batch={"enabled": True}))}
    assert links["control.members.b"].where == "127.0.0.1:2"
    assert "/x/lease.sqlite.secret" in links["control.members.a"].authenticated
    assert "secret of the run" in links["batch"].authenticated
    tls = {"certificate": "c", "key": "k", "ca": "/x/controls.pem"}
    certified = file(control={**TWO_CONTROLS, "tls": tls})
    assert "/x/controls.pem" in links_of(certified)[-1].authenticated
    assert Path("k") in secret_paths(certified)


def test_a_secret_of_controls_that_others_can_read_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    config, secret = tmp_path / "fleet.yaml", tmp_path / "lease.sqlite.secret"
    control = {**TWO_CONTROLS, "lease": {"store": "sqlite", "path": str(tmp_path / "lease.sqlite")}}
    section = {"name": "m", "engine": "vllm", "endpoints": TWO_ZONES}
    config.write_text(json.dumps({"models": [section], "control": control}))

    def told(*options):
        return CliRunner().invoke(main, ["doctor", "-c", str(config), *options])

    fine = told()
    assert (fine.exit_code, "nothing found" in fine.output) == (0, True)
    assert "control.members.a" in fine.output
    assert len(json.loads(told("--json").output)["links"]) == 3
    secret.write_text("k" * 64)
    secret.chmod(0o644)
    result = told("--json")
    assert result.exit_code == 1
    (advice,) = [one for one in json.loads(result.output)["advice"] if one["level"] == "error"]
    assert (advice["where"], "open to other users" in advice["problem"]) == (str(secret), True)
