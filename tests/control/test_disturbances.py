import pytest

from holdfast.control import disturbances as module
from holdfast.control.disturbances import DETOUR, KINDS, SILENCE, Disturbances
from holdfast.core.types import SECOND

URL = "http://127.0.0.1:9999"


def test_a_disturbance_holds_until_its_time_is_up():
    known = Disturbances()
    accepted, told = known.begin("r1", SILENCE, 10.0, 0)
    assert accepted
    assert "r1: silence" in told
    assert known.is_so("r1", SILENCE)
    assert known.over(9 * SECOND) == []
    ((name, one),) = known.over(10 * SECOND)
    assert (name, one.kind) == ("r1", SILENCE)
    assert not known.is_so("r1", SILENCE)


def test_one_can_be_taken_back_and_another_begun():
    known = Disturbances()
    known.begin("r1", DETOUR, 10.0, 0, URL)
    assert known.detours() == {"r1": URL}
    assert known.url_of("r1") == URL
    refused, why = known.begin("r1", SILENCE, 10.0, 0)
    assert not refused
    assert "already" in why
    ended = known.end("r1")
    assert ended is not None
    assert ended.url == URL
    assert known.end("r1") is None
    assert known.url_of("r1") == ""
    assert known.begin("r1", SILENCE, 10.0, 0)[0]
    assert known.snapshot() == {"r1": SILENCE}


@pytest.mark.parametrize(
    ("kind", "seconds", "url", "told"),
    [
        ("nonsense", 1.0, "", "kind is one of"),
        (SILENCE, 0.0, "", "seconds"),
        (SILENCE, 1e9, "", "seconds"),
        (DETOUR, 1.0, "", "url is"),
        (DETOUR, 1.0, "http://169.254.169.254:80", "url is"),
        (DETOUR, 1.0, "https://127.0.0.1:80", "url is"),
        (DETOUR, 1.0, "http://127.0.0.1", "url is"),
        (DETOUR, 1.0, "http://127.0.0.1:99999", "url is"),
    ],
)
def test_what_makes_no_sense_or_leads_elsewhere_is_refused(kind, seconds, url, told):
    accepted, why = Disturbances().begin("r1", kind, seconds, 0, url)
    assert not accepted
    assert told in why


def test_there_is_a_bound(monkeypatch):
    monkeypatch.setattr(module, "DISTURBED_MAX", 1)
    known = Disturbances()
    assert known.begin("r1", SILENCE, 1.0, 0)[0]
    assert not known.begin("r2", SILENCE, 1.0, 0)[0]


def test_the_kinds_are_those_of_the_plan():
    assert set(KINDS) - {DETOUR} == {"silence", "skew", "spot_notice", "probe_blind"}
