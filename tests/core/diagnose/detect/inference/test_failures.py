from itertools import pairwise

import pytest

from holdfast.core.diagnose.detect.detector import REPEAT
from holdfast.core.diagnose.detect.inference.failures import (
    InferenceConfig,
    InferenceFailureDetector,
)
from holdfast.core.diagnose.evidence import Evidence, Remedy, Sign
from holdfast.core.diagnose.facts import Declared, Fact, InferencesSeen, Looked, ProcessEnded
from holdfast.core.diagnose.investigation import Investigation
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.failure import Cause
from holdfast.core.types import SECOND, ConfigError


class Server:
    """One replica whose server counts as a test says, every five seconds."""

    def __init__(self) -> None:
        self.census = ReplicaRegistry()
        self.census.take(Declared("m-1", "m", host="h1"))
        self.detector = InferenceFailureDetector(InferenceConfig(), self.census)
        self.now = 0
        self.successes = self.failures = 0

    def passes(self, successes: int, failures: int, looks: int = 1) -> list[Evidence]:
        said: list[Evidence] = []
        for _ in range(looks):
            self.now += 5 * SECOND
            self.successes += successes
            self.failures += failures
            counts = (self.successes, self.failures, self.successes, self.successes)
            fact = InferencesSeen("m-1", *counts, 0.1 * self.successes, 0.2 * self.successes, 3)
            said += self.detector.take(fact, self.now)
        return said


def test_inferences_that_fail_are_told_with_the_servers_own_figures() -> None:
    server = Server()
    assert server.passes(10, 0, looks=12) == []
    (said,) = server.passes(5, 5, looks=6)
    assert said.sign is Sign.INFERENCES_FAIL
    assert said.about.replica == "m-1"
    assert "of 120 inferences as failed in the last 60 s" in said.text
    assert "waited 100.0 ms and took 200.0 ms" in said.text
    assert said.numbers["failures"] == 25
    assert said.numbers["pending"] == 3


def test_it_is_said_again_while_it_holds_and_no_more_when_it_is_over() -> None:
    server = Server()
    server.passes(1, 0, looks=2)
    said = server.passes(1, 1, looks=40)
    assert 6 <= len(said) <= 8  # in 200 s, once in 30
    assert all(b.at - a.at >= REPEAT for a, b in pairwise(said))
    server.passes(10, 0, looks=13)
    assert server.passes(10, 0, looks=20) == []


@pytest.mark.parametrize(
    ("successes", "failures"),
    [
        (10, 0),
        (1_000, 5),  # much traffic, and few of it
        (0, 0),
        (100, 24),  # below a fifth
    ],
)
def test_a_healthy_server_is_silent(successes: int, failures: int) -> None:
    server = Server()
    server.passes(1, 0)
    assert server.passes(successes, failures, looks=30) == []


def test_one_request_that_fails_again_and_again_is_not_enough() -> None:
    server = Server()
    server.passes(0, 0)
    assert server.passes(0, 4) == []
    assert server.passes(0, 0, looks=30) == []


def test_a_new_process_counts_anew_and_an_unknown_replica_is_ignored() -> None:
    server = Server()
    server.passes(10, 4)
    server.detector.take(ProcessEnded("m-1"), server.now)
    server.successes = server.failures = 0
    assert server.passes(0, 4) == []  # counted since its start: when, nobody knows
    assert server.detector.take(InferencesSeen("x-1", 0, 0), server.now) == ()
    assert server.detector.take(InferencesSeen("x-1", 0, 99), server.now + SECOND) == ()


@pytest.mark.parametrize(
    ("field", "value"), [("failures_min", 1), ("share_min", 0.0), ("share_min", 1.1)]
)
def test_a_bad_setting_is_refused_with_its_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"inferences.{field}"):
        InferenceConfig(**{field: value})  # type: ignore[arg-type]


def test_an_incident_opens_and_nothing_is_done_on_the_servers_word_alone() -> None:
    investigation = Investigation()
    now, findings = 0, []
    facts: list[Fact] = [Declared("m-1", "m", host="h1", managed=True)]
    facts += [InferencesSeen("m-1", 10 * n, 10 * n) for n in range(30)]
    for fact in facts:
        for one in (fact, Looked()):
            now += SECOND
            findings += investigation.take(one, now)
    (incident,) = investigation.incidents.values()
    assert incident.cause is Cause.SERVER_ERRORS
    assert incident.about.replica == "m-1"
    assert not [one for one in findings if getattr(one, "remedy", None) is Remedy.TAKE_OUT]
