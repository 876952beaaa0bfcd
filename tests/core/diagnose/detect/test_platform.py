"""Sources that cannot see, and replicas that are wanted and do not run."""

import pytest

from holdfast.core.diagnose.detect.platform import PlatformConfig, PlatformDetector
from holdfast.core.diagnose.evidence import Sign
from holdfast.core.diagnose.facts import Looked, ReplicasWanted, SourceFailing
from holdfast.core.diagnose.investigation import Investigation
from holdfast.core.failure import Cause, Class
from holdfast.core.types import ConfigError, nanos

FORBIDDEN = "403 Forbidden: pods is forbidden"


def blind(failing_s, source="kube"):
    return SourceFailing(source, "pods", failing_s, FORBIDDEN)


def wanted(waited_s, running=0, reason="0/4 nodes are available: 4 Insufficient nvidia.com/gpu"):
    return ReplicasWanted("llama", 2, running, 2 - running, waited_s, reason, "kube")


def signs(*facts, at=1_000.0):
    detector = PlatformDetector(PlatformConfig())
    found = [one for fact in facts for one in detector.take(fact, nanos(at))]
    return [one.sign for one in found], [one.text for one in found]


def test_a_source_that_is_blind_for_a_minute_is_a_sign_with_its_reason():
    found, texts = signs(blind(61.0), blind(66.0))
    assert found == [Sign.SOURCE_BLIND]  # and once
    assert "403" in texts[0]
    assert "pods" in texts[0]


def test_two_blind_sources_are_two_signs():
    assert signs(blind(61.0), blind(61.0, "aws"))[0] == [Sign.SOURCE_BLIND] * 2


def test_an_api_server_that_restarts_is_none():
    assert signs(blind(20.0))[0] == []


def test_replicas_that_nobody_runs_are_told_soon_where_the_model_has_no_other():
    found, texts = signs(wanted(61.0))
    assert found == [Sign.NOT_PLACED]
    assert "Insufficient nvidia.com/gpu" in texts[0]
    assert signs(wanted(30.0))[0] == []


def test_a_node_that_is_being_made_is_waited_for_while_others_serve():
    assert signs(wanted(300.0, running=1))[0] == []
    assert signs(wanted(601.0, running=1))[0] == [Sign.NOT_PLACED]


def test_what_waits_without_a_word_of_its_platform_has_only_begun():
    assert signs(wanted(61.0, reason=""))[0] == []


@pytest.mark.parametrize("field", ["blind_s", "unserved_s", "waiting_s"])
@pytest.mark.parametrize("value", [0, -1.0, 100_000, float("nan")])
def test_what_cannot_be_a_time_is_refused(field, value):
    with pytest.raises(ConfigError, match=f"platform.{field}"):
        PlatformConfig(**{field: value})


@pytest.mark.parametrize(
    ("fact", "cause"), [(blind(90.0), Cause.SOURCE_BLIND), (wanted(90.0), Cause.NOT_PLACED)]
)
def test_it_becomes_an_incident_that_names_the_cause(fact, cause):
    investigation = Investigation()
    for second in range(30):
        now = nanos(1_000 + second)
        if second % 5 == 0:
            investigation.take(fact, now)
        investigation.take(Looked(), now)
    (incident,) = investigation.incidents.values()
    assert (incident.cause, incident.failure_class) == (cause, Class.ROUTING)
