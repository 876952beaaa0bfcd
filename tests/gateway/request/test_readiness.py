from random import Random

import orjson
import pytest

from holdfast.config.fleet_file import FleetFile
from holdfast.core.messages import FleetView, ReplicaView, ViewChanged
from holdfast.core.request.flow import Flow
from holdfast.core.types import State
from holdfast.gateway.request.readiness import Readiness

NOW = 1_000_000_000


class Probe:
    """An exchange of a load balancer's."""

    def __init__(self, path, method=b"GET"):
        self.path, self.method = path, method
        self.status, self.headers, self.body = 0, b"", b""

    def respond(self, status, headers, body):
        assert not self.status
        self.status, self.headers, self.body = status, headers, body


@pytest.fixture
def flow():
    """A flow that knows of one model with one replica in the given state."""

    def make(state=State.READY, share=1.0):
        model = {"name": "org/m", "engine": "vllm", "endpoints": ["http://127.0.0.1:9501"]}
        file = FleetFile.from_json(orjson.dumps({"models": [model]}))
        made = Flow(file.flow_config(), Random)
        views = tuple(ReplicaView(one.replica, state, share) for one in file.replicas())
        made.handle(ViewChanged(FleetView(1, views)), NOW)
        return made

    return make


def ask(standing, flow, path, method=b"GET"):
    probe = Probe(path, method)
    standing.answer(probe, flow, NOW)
    return probe.status, probe.body


@pytest.fixture
def standing():
    ready = Readiness()
    ready.has_view = True
    return ready


def test_only_the_paths_of_probes_are_known(standing):
    known = (b"/livez", b"/readyz", b"/readyz/m", b"/readyz/")
    assert all(standing.knows(path) for path in known)
    unknown = (b"/", b"/livez/", b"/livezz", b"/readyzz", b"/v1/readyz", b"/metrics", b"/LIVEZ")
    assert not any(standing.knows(path) for path in unknown)


def test_a_gateway_is_ready_once_it_has_a_view(flow):
    standing = Readiness()
    assert ask(standing, flow(), b"/readyz") == (503, b"no fleet view yet\n")
    assert ask(standing, flow(), b"/readyz/org/m") == (503, b"no fleet view yet\n")
    standing.has_view = True
    assert ask(standing, flow(), b"/readyz") == (200, b"ready\n")
    assert ask(standing, flow(), b"/readyz/org/m") == (200, b"ready\n")


def test_a_gateway_that_does_not_hear_of_control_is_ready_and_says_so(standing, flow):
    standing.control_silent_s = 12.4
    told = b"ready; control has been silent for 12 s: serving by its last view\n"
    assert ask(standing, flow(), b"/readyz") == (200, told)
    assert ask(standing, flow(), b"/readyz/org/m") == (200, b"ready\n")
    standing.draining = True
    assert ask(standing, flow(), b"/readyz") == (503, b"draining\n")


def test_who_drains_is_alive_and_not_ready(standing, flow):
    standing.draining = True
    assert ask(standing, flow(), b"/livez") == (200, b"alive\n")
    assert ask(standing, flow(), b"/readyz") == (503, b"draining\n")
    assert ask(standing, flow(), b"/readyz/org/m") == (503, b"draining\n")


def test_a_gateway_without_any_replica_is_ready_and_the_model_is_not(standing, flow):
    down = flow(State.DRAINING, share=0.0)
    assert ask(standing, down, b"/readyz") == (200, b"ready\n")
    assert ask(standing, down, b"/readyz/org/m") == (503, b"no replica may be chosen\n")


@pytest.mark.parametrize("name", [b"other", b"", b"org", b"%00", b"org/m/"])
def test_a_model_that_is_not_there_is_not_ready(standing, flow, name):
    assert ask(standing, flow(), b"/readyz/" + name) == (503, b"no such model\n")


def test_probes_may_use_head_and_nothing_else(standing, flow):
    assert ask(standing, flow(), b"/livez", b"HEAD")[0] == 200
    assert ask(standing, flow(), b"/readyz", b"POST") == (405, b"use GET\n")


def test_answers_are_not_to_be_cached(standing, flow):
    probe = Probe(b"/readyz")
    standing.answer(probe, flow(), NOW)
    assert b"cache-control: no-store\r\n" in probe.headers
