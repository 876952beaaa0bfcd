import socket

import pytest

from holdfast.config.fleet_file import EndpointSection, ModelSection
from holdfast.control.deploy.launched_replica import (
    HOST,
    LaunchedReplica,
    build_of,
    free_port,
    is_free,
    new_launched_replica,
)
from holdfast.core.failure import Kind
from holdfast.core.types import ConfigError


def section(**more):
    launch = {"weights": "/w/model", "environment": {"A": "b"}, **more.pop("launch", {})}
    return ModelSection.model_validate({"name": "m", "engine": "vllm", "launch": launch, **more})


def unit(model=None, number=1, taken=()):
    return new_launched_replica(model or section(), number, "zone-a", "/w/model", "", set(taken))


def test_a_new_unit_is_what_the_file_says_on_a_port_of_its_own():
    model = section(launch={"slots": 4, "context": 2048}, served_as="org/m", revision="7")
    one = unit(model)
    assert (one.id, one.model, one.revision, one.zone) == ("m-1", "m", "7", "zone-a")
    assert (one.spec.served_as, one.spec.slots, one.spec.context) == ("org/m", 4, 2048)
    assert one.url == f"http://{HOST}:{one.spec.port}"
    order = one.order()
    assert (order.replica_id, order.port, order.note) == ("m-1", one.spec.port, {"model": "m"})
    assert order.command[:3] == ("vllm", "serve", "/w/model")
    assert order.environment["A"] == "b"
    assert one.endpoint() == EndpointSection(
        url=one.url, id="m-1", zone="zone-a", region="region-a", revision="7", slots=4
    )


def test_a_command_of_the_user_s_own_gets_its_places_filled():
    one = unit(section(launch={"command": ["serve", "{port}", "revision={revision}"]}))
    assert one.order().command == ("serve", str(one.spec.port), "revision=1")


def test_an_engine_that_cannot_be_started_so_is_refused():
    with pytest.raises(ConfigError):
        unit(section(launch={"command": ["serve", "{nonsense}"]})).order()


def test_what_must_survive_comes_back_and_the_rest_begins_anew():
    launch = {"arguments": ["--x", "1"], "memory_fraction": 0.5, "pass_env": ["HF_TOKEN"]}
    one = unit(section(launch=launch))
    one.held = one.loaded = one.was_ready = True
    one.pid, one.phase, one.removing, one.early_exits = 77, "loaded", True, 2
    one.fatal = (Kind.EXITED, "why")
    again = LaunchedReplica.from_store(one.to_store())
    assert again.to_store() == one.to_store()
    assert (again.held, again.loaded, again.was_ready) == (True, True, True)
    assert again.spec == one.spec
    assert again.order() == one.order()
    assert (again.pid, again.phase, again.removing, again.early_exits) == (None, "", False, 0)
    assert again.fatal is None


def test_a_unit_that_was_stored_before_variables_could_be_passed_on_comes_back():
    data = unit().to_store()
    del data["pass_env"]
    assert LaunchedReplica.from_store(data).order().pass_env == ()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.pop("spec"),
        lambda data: data.update(spec=None),
        lambda data: data["spec"].pop("arguments"),
        lambda data: data["spec"].update(port=0),
        lambda data: data["spec"].update(port="x"),
        lambda data: data["spec"].update(unknown=1),
        lambda data: data.update(unknown=1),
        lambda data: data.pop("model"),
    ],
)
def test_what_is_no_stored_unit_is_an_error_that_callers_know(spoil):
    data = unit().to_store()
    spoil(data)
    with pytest.raises((TypeError, KeyError, ConfigError)):
        LaunchedReplica.from_store(data)


def test_a_sibling_is_started_the_same_way_elsewhere():
    one = unit(section(launch={"arguments": ["--x"], "pass_env": ["HF_TOKEN"]}))
    one.was_ready = one.held = True
    other = one.sibling("m-2", "zone-b", {one.spec.port})
    assert (other.id, other.zone, other.build) == ("m-2", "zone-b", one.build)
    assert other.spec.port != one.spec.port
    assert other.spec.arguments == ("--x",)
    assert other.order().pass_env == ("HF_TOKEN",)
    assert (other.was_ready, other.held) == (False, False)
    other.environment["A"] = "changed"
    assert one.environment["A"] == "b"


@pytest.mark.parametrize(
    "change",
    [
        {"revision": "2"},
        {"served_as": "other"},
        {"engine": "sglang"},
        {"launch": {"weights": "/w/other"}},
        {"launch": {"context": 4096}},
        {"launch": {"environment": {"A": "c"}}},
        {"launch": {"arguments": ["--x"]}},
        {"launch": {"pass_env": ["HF_TOKEN"]}},
    ],
)
def test_what_changes_how_it_is_started_is_another_build(change):
    assert build_of(section(**change), "") != build_of(section(), "")


@pytest.mark.parametrize(
    "change",
    [
        {"launch": {"replicas": 3}},
        {"launch": {"zones": ["zone-b"]}},
        {"canary": {"tokens": 4}},
        {"rollout": {"settle_s": 1}},
    ],
)
def test_what_changes_only_how_many_or_how_they_are_watched_is_the_same_build(change):
    assert build_of(section(**change), "") == build_of(section(), "")


def test_a_build_is_called_as_it_was_before_variables_could_be_passed_on():
    assert build_of(section(), "") == "1+40b1fa5d"


def test_another_version_of_the_engine_is_another_build():
    assert build_of(section(), "0.2") != build_of(section(), "0.1")
    assert build_of(section(revision="7"), "").startswith("7+")


# --- ports ---------------------------------------------------------------------------------------


def test_a_free_port_is_free_and_not_one_of_those_that_are_promised():
    taken = {free_port(set()) for _ in range(8)}
    port = free_port(taken)
    assert port not in taken
    assert is_free(port)


def test_a_port_on_which_somebody_listens_is_not_free():
    with socket.create_server((HOST, 0)) as server:
        assert not is_free(server.getsockname()[1])


def test_a_port_whose_connections_linger_is_free():
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((HOST, port)):
            accepted, _ = server.accept()
            accepted.close()  # the side that closes first keeps the port in TIME_WAIT
    assert is_free(port)


def test_a_machine_without_ports_says_so():
    class All(set):
        def __contains__(self, _):
            return True

    with pytest.raises(ConfigError, match="no free port"):
        free_port(All())
