import pytest

from holdfast.config.fleet_file import FleetFile
from holdfast.control.fleet import disturbances as module
from holdfast.control.fleet.canaries import bearer
from holdfast.control.fleet.disturbances import (
    DETOUR,
    KINDS,
    PROBE_BLIND,
    SILENCE,
    SKEW,
    SPOT_NOTICE,
    ChaosDisabledError,
    Disturbances,
)
from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.facts import (
    CanaryAnswered,
    LineSeen,
    Looked,
    Mark,
    MemorySeen,
    VersionsSeen,
)
from holdfast.core.messages import SpotNotice
from holdfast.core.types import SECOND
from holdfast.frames import DetoursFrame

URL = "http://127.0.0.1:9999"


class House:
    """Remembers what it was told."""

    def __init__(self):
        self.noted, self.frames, self.events, self.facts = [], [], [], []

    def note(self, notice):
        self.noted.append((notice.replica_id, notice.what))

    def broadcast(self, frame):
        self.frames.append(frame)

    def tell(self, *events):
        self.events += events

    def saw(self, fact):
        self.facts.append(fact)


def made():
    known = Disturbances(House())
    known.follow(0, enabled=True)
    return known


def deployed(**more):
    model = {"name": "m", "engine": "vllm", "endpoints": ["http://127.0.0.1:1"], **more}
    (one,) = FleetFile.model_validate({"models": [model]}).replicas()
    return one


def test_a_disturbance_holds_until_its_time_is_up():
    known = made()
    accepted, told = known.begin("r1", SILENCE, 10.0, 0)
    assert accepted
    assert "r1: silence" in told
    assert known.deaf("r1")
    known.look(9 * SECOND)
    assert known.is_so("r1", SILENCE)
    known.look(10 * SECOND)
    assert not known.is_so("r1", SILENCE)
    house = known._house
    assert house.noted == [("r1", "disturbed on purpose"), ("r1", "no longer disturbed")]


def test_one_can_be_taken_back_and_another_begun():
    known = made()
    known.begin("r1", DETOUR, 10.0, 0, URL)
    assert known.detours() == {"r1": URL}
    refused, why = known.begin("r1", SILENCE, 10.0, 0)
    assert not refused
    assert "already" in why
    assert known.end("r1", 1)[0]
    assert not known.end("r1", 1)[0]
    assert known.begin("r1", SILENCE, 10.0, 0)[0]
    assert known.snapshot() == {"r1": SILENCE}


def test_a_detour_is_told_to_gateways_and_to_canaries_until_it_ends():
    known, one = made(), deployed()
    assert known.greeting() == [DetoursFrame({})]
    assert known.reach(one) is one
    known.begin("m-1", DETOUR, 10.0, 0, URL)
    assert known.greeting() == [DetoursFrame({"m-1": URL})]
    assert known.reach(one).url == URL
    known.end("m-1", 1)
    assert known._house.frames == [DetoursFrame({"m-1": URL}), DetoursFrame({})]
    assert known.reach(one) is one


def test_the_engine_s_credential_does_not_follow_a_detour():
    known, one = made(), deployed(api_key_env="ENGINE_TOKEN")
    environment = {"ENGINE_TOKEN": "secret"}
    assert bearer(known.reach(one), environment) == "secret"
    known.begin("m-1", DETOUR, 10.0, 0, URL)
    assert bearer(known.reach(one), environment) is None
    known.end("m-1", 1)
    assert bearer(known.reach(one), environment) == "secret"


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_begun_unless_the_file_enables_chaos(kind):
    known = Disturbances(House())
    with pytest.raises(ChaosDisabledError, match=r"chaos\.enabled is false.*enabled: true"):
        known.begin("r1", kind, 10.0, 0, URL)
    assert known.snapshot() == {}
    known.follow(0, enabled=True)
    assert known.begin("r1", kind, 10.0, 0, URL)[0]


def test_a_file_that_no_longer_enables_chaos_ends_what_holds():
    known = made()
    known.begin("r1", DETOUR, 10.0, 0, URL)
    known.begin("r2", SILENCE, 10.0, 0)
    known.follow(1, enabled=True)
    assert known.snapshot() == {"r1": DETOUR, "r2": SILENCE}
    known.follow(2, enabled=False)
    assert known.snapshot() == {}
    assert known._house.frames[-1] == DetoursFrame({})
    assert known._house.noted[-2:] == [("r1", "no longer disturbed"), ("r2", "no longer disturbed")]


def test_a_blinded_canary_is_not_asked():
    known = made()
    known.begin("m-1", PROBE_BLIND, 10.0, 0)
    assert known.reach(deployed()) is None


def test_silence_takes_away_what_is_heard_and_leaves_answers():
    known = made()
    known.begin("r1", SILENCE, 10.0, 0)
    assert known.distorted(LineSeen("r1", Mark.WATCHDOG)) is None
    assert known.distorted(MemorySeen("r1", 5)) is None
    canary = CanaryAnswered("r1", CanaryVerdict.PASS)
    assert known.distorted(canary) is canary
    other = MemorySeen("r2", 5)
    assert known.distorted(other) is other
    assert known.distorted(Looked()) == Looked()


def test_skew_is_told_at_once_and_taken_back_at_its_end():
    known = made()
    known.begin("r1", SKEW, 10.0, 0)
    skewed = known.distorted(VersionsSeen("r1", cuda="12.1", engine="1.0"))
    assert skewed.cuda != "12.1"
    known.end("r1", 1)
    assert known._house.facts == [VersionsSeen("r1"), VersionsSeen("r1")]
    assert known.distorted(VersionsSeen("r1", cuda="12.1")).cuda == "12.1"


def test_a_spot_notice_is_given_once():
    known = made()
    known.begin("r1", SPOT_NOTICE, 10.0, 0)
    known.end("r1", 1)
    assert known._house.events == [SpotNotice("r1", 10 * SECOND)]


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
    accepted, why = made().begin("r1", kind, seconds, 0, url)
    assert not accepted
    assert told in why


def test_there_is_a_bound(monkeypatch):
    monkeypatch.setattr(module, "DISTURBED_MAX", 1)
    known = made()
    assert known.begin("r1", SILENCE, 1.0, 0)[0]
    assert not known.begin("r2", SILENCE, 1.0, 0)[0]


def test_the_kinds_are_those_of_the_plan():
    assert set(KINDS) - {DETOUR} == {"silence", "skew", "spot_notice", "probe_blind"}
