"""Joining and root finding with a few toy rules: the engine knows no cause by name."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.core.diagnose import case_book as books
from holdfast.core.diagnose.causes.rule import CauseRule, Proof, Scope, proof
from holdfast.core.diagnose.diagnosis import (
    Changed,
    Closed,
    Diagnosis,
    DiagnosisConfig,
    News,
    Opened,
)
from holdfast.core.diagnose.evidence import About, Evidence, Incident, Remedy, Sign, Stage
from holdfast.core.diagnose.facts import (
    ChainDeclared,
    Declared,
    Fact,
    Gone,
    LineSeen,
    Mark,
    PhaseSeen,
    ProcessEnded,
    StateChanged,
)
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.failure import Cause, Class
from holdfast.core.types import ConfigError, State, nanos
from sampling import examples


def rule(
    *proofs: Proof,
    explains: tuple[Cause, ...] = (),
    consequences: tuple[Sign, ...] = (),
    scope: Scope = Scope.REPLICA,
    standing: bool = False,
) -> CauseRule:
    return CauseRule(
        Class.RUNTIME,
        proofs,
        story="s",
        look="l",
        fix="f",
        remedy=Remedy.OBSERVE,
        explains=frozenset(explains),
        consequences=frozenset(consequences),
        scope=scope,
        standing=standing,
    )


QUEUE = Cause.QUEUE_STALLED
TOYS = {
    Cause.CRASHED: rule(
        proof(Sign.EXITED, at=0.8),
        explains=(QUEUE, Cause.CONNECTION_LOST, Cause.TRANSFER_FAILED),
        consequences=(Sign.DEAD_LETTERS,),
    ),
    Cause.CONNECTION_LOST: rule(proof(Sign.CONNECTIONS_LOST, at=0.6)),
    Cause.OUT_OF_MEMORY: rule(proof(Sign.EXIT_137, at=0.7), explains=(QUEUE, Cause.CRASHED)),
    Cause.UNDERSIZED: rule(
        proof(Sign.RESERVED_TOO_LITTLE, at=0.6), explains=(Cause.OUT_OF_MEMORY,), standing=True
    ),
    Cause.WRONG_OUTPUT: rule(proof(Sign.CANARY_WRONG, at=0.7)),
    Cause.SLOW: rule(proof(Sign.CANARY_SLOW, at=0.6), explains=(QUEUE,)),
    Cause.HUNG: rule(proof(Sign.NO_FIRST_TOKEN, at=0.6), proof(Sign.CANARY_SILENT, at=0.7)),
    Cause.DISK_FULL: rule(proof(Sign.LOG_DISK_FULL, at=0.8), scope=Scope.HOST),
    Cause.COLD_START_CONTENTION: rule(
        proof(Sign.FILESYSTEM_FULL_SPEED, at=0.8),
        scope=Scope.FILESYSTEM,
        explains=(Cause.LOAD_STALLED,),
    ),
    Cause.LOAD_STALLED: rule(proof(Sign.LOAD_STUCK, at=0.7)),
    Cause.QUERY_OF_DEATH: rule(
        proof(Sign.SAME_REQUEST_KILLS, at=0.9), scope=Scope.MODEL, explains=(Cause.CRASHED,)
    ),
    Cause.TRANSFER_FAILED: rule(proof(Sign.LOG_TRANSFER, at=0.8)),
    Cause.CHAIN_BACKED_UP: rule(
        proof(Sign.CHAIN_WAITS, at=0.7), scope=Scope.MODEL, explains=(QUEUE,)
    ),
    QUEUE: rule(proof(Sign.QUEUE_GROWS, at=0.6), scope=Scope.MODEL),
}


class Bench:
    """A diagnosis with six replicas of model m on three hosts, and a clock in seconds."""

    def __init__(self, config: DiagnosisConfig | None = None) -> None:
        self.census = ReplicaRegistry()
        for n in range(1, 7):
            name, host = f"r{n}", f"h{(n + 1) // 2}"
            role = {1: "prefill", 2: "decode"}.get(n, "")
            self.census.take(Declared(name, "m", "1", host=host, filesystem="fs", role=role))
        self.census.take(Declared("x1", "n", "1", host="h9"))
        self.diagnosis = Diagnosis(config or DiagnosisConfig(), TOYS, self.census)

    def see(self, sign: Sign, who: str = "r1", at: float = 0.0, source: str = "") -> list[News]:
        about = self.census.about(who) if who in self.census.replicas else About(model=who)
        return self.take(sign, about, at, source)

    def take(self, sign: Sign, about: About, at: float = 0.0, source: str = "") -> list[News]:
        evidence = Evidence(sign, about, nanos(at), source or sign.value, sign.value)
        return self.diagnosis.take(evidence, nanos(at))

    def saw(self, fact: Fact, at: float = 0.0) -> None:
        self.diagnosis.saw(fact, nanos(at))

    def ready(self, who: str, at: float) -> None:
        self.saw(StateChanged(who, State.READY, "passed_enough"), at)

    def named(self) -> list[str]:
        return [f"{one.cause.value} {one.about}" for one in self.diagnosis.incidents.values()]

    def only(self) -> Incident:
        (incident,) = self.diagnosis.incidents.values()
        return incident


@pytest.mark.parametrize(
    "wrong",
    [{"open_at": 0.0}, {"wide_share": 1.5}, {"prefer_by": 1.0}, {"close_s": 0.0}, {"lag_s": 1e9}],
)
def test_a_config_that_cannot_work_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        replace(DiagnosisConfig(), **wrong)


def test_a_cause_takes_the_consequences_that_came_before_it() -> None:
    bench = Bench()
    assert isinstance(bench.see(Sign.CONNECTIONS_LOST)[0], Opened)
    news = bench.see(Sign.EXITED, at=1)
    assert isinstance(news[0], Changed)
    incident = bench.only()
    assert incident.cause is Cause.CRASHED
    assert [one.sign for one in incident.evidence] == [Sign.EXITED]
    assert [one.sign for one in incident.consequences] == [Sign.CONNECTIONS_LOST]
    told = [entry.text for entry in incident.timeline if entry.what == "cause"]
    assert told == [
        "connection lost, confidence 60%",
        "crashed, confidence 80%; before: connection lost",
    ]


def test_what_a_cause_explains_does_not_replace_it() -> None:
    bench = Bench()
    bench.see(Sign.EXIT_137)
    bench.see(Sign.EXITED, at=1)
    bench.see(Sign.CONNECTIONS_LOST, at=2)
    assert bench.named() == ["out_of_memory r1"]
    assert bench.only().other_causes == ()


def test_of_two_rivals_the_clearly_likelier_one_is_named() -> None:
    bench = Bench()
    bench.see(Sign.CANARY_SLOW)
    bench.see(Sign.CANARY_WRONG, at=1)
    assert bench.named() == ["wrong_output r1"]
    assert bench.only().other_causes == (Cause.SLOW,)
    bench.see(Sign.NO_FIRST_TOKEN, at=2)
    assert bench.only().other_causes == (Cause.SLOW, Cause.HUNG)
    bench.see(Sign.CANARY_SILENT, at=3)
    assert bench.named() == ["hung r1"]
    assert bench.only().confidence == pytest.approx(0.88)


def test_a_standing_condition_stands_beside_a_failure_it_does_not_explain() -> None:
    bench = Bench()
    bench.see(Sign.RESERVED_TOO_LITTLE)
    bench.see(Sign.CANARY_WRONG, at=1)
    assert bench.named() == ["undersized r1", "wrong_output r1"]
    bench.see(Sign.EXIT_137, at=2)
    assert "out_of_memory r1" not in bench.named()


def test_a_condition_takes_over_the_failure_that_it_explains() -> None:
    bench = Bench()
    bench.see(Sign.EXIT_137)
    bench.see(Sign.RESERVED_TOO_LITTLE, at=1)
    assert bench.named() == ["undersized r1"]
    bench.see(Sign.EXITED, at=200)  # the condition was not said again: the case explains it still
    assert bench.named() == ["undersized r1"]


def test_a_queue_belongs_to_the_replica_that_failed_whichever_came_first() -> None:
    for order in ((Sign.QUEUE_GROWS, Sign.EXITED), (Sign.EXITED, Sign.QUEUE_GROWS)):
        bench = Bench()
        for at, sign in enumerate(order):
            bench.see(sign, "m" if sign is Sign.QUEUE_GROWS else "r1", at)
        assert bench.named() == ["crashed r1"]
        assert bench.only().id == "inc-000001"
        bench.see(Sign.DEAD_LETTERS, "m", 3)
        signs = {one.sign for one in bench.only().consequences}
        assert signs == {Sign.QUEUE_GROWS, Sign.DEAD_LETTERS}


def test_a_queue_of_another_model_is_its_own_incident() -> None:
    bench = Bench()
    bench.see(Sign.EXITED)
    bench.see(Sign.QUEUE_GROWS, "n", 1)
    assert bench.named() == ["crashed r1", "queue_stalled n"]


def test_a_queue_that_was_stalled_long_before_is_not_explained() -> None:
    bench = Bench()
    for at in range(0, 700, 30):
        bench.see(Sign.QUEUE_GROWS, "m", at)
    bench.see(Sign.EXITED, at=700)
    assert bench.named() == ["queue_stalled m", "crashed r1"]


def test_a_chain_waits_for_the_failure_behind_it() -> None:
    bench = Bench()
    bench.saw(ChainDeclared("c", ("m", "n")))
    bench.see(Sign.QUEUE_GROWS, "m")
    bench.see(Sign.EXITED, "x1", 1)
    assert bench.named() == ["crashed x1"]
    bench = Bench()
    bench.saw(ChainDeclared("c", ("a", "b", "m")))
    bench.see(Sign.CHAIN_WAITS, "b")
    bench.see(Sign.CHAIN_WAITS, "a", 1)
    bench.see(Sign.QUEUE_GROWS, "m", 2)
    assert bench.named() == ["chain_backed_up b"]


def test_those_on_one_filesystem_suffer_from_it() -> None:
    bench = Bench()
    bench.see(Sign.LOAD_STUCK, "r1")
    bench.see(Sign.LOAD_STUCK, "r2", 1)
    bench.take(Sign.FILESYSTEM_FULL_SPEED, About(filesystem="fs"), 2)
    bench.see(Sign.LOAD_STUCK, "r3", 3)
    assert bench.named() == ["cold_start_contention fs"]
    assert set(bench.only().replicas) == {"r1", "r2", "r3"}


def test_those_on_one_host_share_what_sits_there() -> None:
    bench = Bench()
    bench.see(Sign.LOG_DISK_FULL, "r1")
    assert bench.only().about.replica == "r1"
    bench.see(Sign.LOG_DISK_FULL, "r2", 1)
    assert bench.only().about == About(model="m", revision="1", host="h1")
    bench.see(Sign.LOG_DISK_FULL, "r3", 2)
    assert bench.only().about == About(model="m", revision="1")  # half of them: not the host's


def test_half_of_a_model_makes_an_incident_of_the_model() -> None:
    bench = Bench()
    for at, who in enumerate(("r1", "r2")):
        bench.see(Sign.CANARY_WRONG, who, at)
    assert bench.named() == ["wrong_output r1", "wrong_output r2"]
    news = bench.see(Sign.CANARY_WRONG, "r3", 3)
    assert bench.named() == ["wrong_output m"]
    assert bench.only().id == "inc-000001"
    closed = [one.incident.id for one in news if isinstance(one, Closed)]
    assert closed == ["inc-000002"]
    bench.see(Sign.CANARY_WRONG, "r4", 4)
    assert bench.named() == ["wrong_output m"]
    bench.see(Sign.NO_FIRST_TOKEN, "r5", 5)
    assert bench.named() == ["wrong_output m", "hung r5"]


def test_half_of_a_model_over_a_long_time_is_not_one_failure() -> None:
    bench = Bench()
    for n, who in enumerate(("r1", "r2", "r3")):
        bench.see(Sign.CANARY_WRONG, who, n * 121)
    assert len(bench.named()) == 3


def pair(revisions: tuple[str, str] = ("1", "1"), more: str = "") -> Bench:
    """Two more replicas, of a model of their own, and one of another revision if wanted."""
    bench = Bench()
    for name, revision in (*zip(("p1", "p2"), revisions, strict=True), ("p3", more)):
        if revision:
            bench.census.take(Declared(name, "p", revision, host=f"h-{name}"))
    return bench


@pytest.mark.parametrize("sign", [Sign.NO_FIRST_TOKEN, Sign.EXITED, Sign.CANARY_SLOW])
def test_what_befalls_one_replica_after_another_is_two_incidents(sign: Sign) -> None:
    bench = pair()
    bench.saw(StateChanged("p1", State.QUARANTINED, "stalled"), 1)
    bench.see(sign, "p1", 1)
    bench.see(sign, "p1", 29)
    bench.ready("p1", 30)
    bench.saw(StateChanged("p2", State.QUARANTINED, "stalled"), 47)
    bench.see(sign, "p2", 47)
    bench.see(sign, "p2", 77)
    first, second = bench.diagnosis.incidents.values()
    assert (first.about.replica, second.about.replica) == ("p1", "p2")
    bench.see(sign, "p1", 80)  # it falls ill again, while the other one is: now the model is
    assert bench.only().about == About(model="p", revision="1")


@pytest.mark.parametrize("sign", [Sign.NO_FIRST_TOKEN, Sign.EXITED, Sign.CANARY_SLOW])
@pytest.mark.parametrize("ready_at", [None, 45, 60])
def test_what_befalls_them_at_one_time_is_one_incident(sign: Sign, ready_at: int | None) -> None:
    bench = pair()
    bench.saw(StateChanged("p1", State.QUARANTINED, "stalled"), 1)
    bench.see(sign, "p1", 1)
    if ready_at == 45:
        bench.ready("p1", 45)  # the other's began before its sign was seen
    bench.see(sign, "p2", 47)
    if ready_at == 60:
        bench.ready("p1", 60)
    assert bench.only().about == About(model="p", revision="1")


def test_a_sign_that_was_not_said_again_is_over_though_no_state_ever_showed_it() -> None:
    bench = pair()
    bench.see(Sign.CANARY_SLOW, "p1", 1)
    bench.see(Sign.CANARY_SLOW, "p2", 60)
    assert bench.named() == ["slow p1", "slow p2"]


def test_a_crash_loop_around_a_bad_revision_is_one_incident_of_it() -> None:
    bench = pair(("2", "2"), more="1")
    for at, who in ((0, "p1"), (30, "p2"), (60, "p1"), (90, "p2")):
        bench.see(Sign.EXITED, who, at)
        bench.ready(who, at + 10)
    assert bench.only().about == About(model="p", revision="2")


def test_what_the_other_revision_has_too_is_not_the_revisions() -> None:
    bench = pair(("2", "2"), more="1")
    for at, who in ((0, "p3"), (30, "p1"), (60, "p2")):
        bench.see(Sign.EXITED, who, at)
        bench.ready(who, at + 10)
    assert bench.named() == ["crashed p3", "crashed p1", "crashed p2"]


def test_an_incident_of_a_model_that_is_well_again_does_not_grow() -> None:
    bench = Bench()
    for n in (1, 2, 3):
        bench.see(Sign.CANARY_SLOW, f"r{n}", n)
    for n in (1, 2, 3):
        bench.ready(f"r{n}", 20 + n)
    bench.see(Sign.CANARY_SLOW, "r4", 60)
    bench.see(Sign.CANARY_SLOW, "r4", 90)
    assert bench.named() == ["slow m", "slow r4"]


def test_replicas_of_which_nobody_knows_the_model_stay_apart() -> None:
    bench = Bench()
    bench.take(Sign.CANARY_WRONG, About("a"))
    bench.take(Sign.CANARY_WRONG, About("b"))
    assert len(bench.named()) == 2
    for name in ("c", "d"):  # a platform's that are gone are replaced by others of their model
        bench.saw(ProcessEnded(name, code=1))
        bench.take(Sign.EXITED, About(name))
    assert len(bench.named()) == 4


def test_a_cause_of_the_model_gathers_what_was_closed_before_it_was_known() -> None:
    bench = Bench()
    bench.see(Sign.EXITED, "r1")
    bench.ready("r1", 20)
    bench.diagnosis.look(nanos(130))
    assert bench.only().stage is Stage.CLOSED
    bench.see(Sign.EXITED, "r2", 200)
    bench.take(Sign.SAME_REQUEST_KILLS, About(model="m"), 201)
    assert bench.named() == ["query_of_death m"]
    assert bench.only().stage is Stage.OPEN
    assert bench.only().closed_at is None


@pytest.mark.parametrize("peer", ["r1", "h1:8998", ""])
def test_whoever_blames_an_ill_peer_is_part_of_its_incident(peer: str) -> None:
    bench = Bench()
    bench.saw(LineSeen("r2", Mark.TRANSFER_FAILED, peer))
    bench.see(Sign.LOG_TRANSFER, "r2")
    bench.see(Sign.NO_FIRST_TOKEN, "r2", 1)
    bench.see(Sign.CANARY_SILENT, "r2", 2)
    bench.see(Sign.EXITED, "r1", 3)
    assert bench.named() == ["crashed r1"]
    bench.see(Sign.EXITED, "r2", 30)
    assert bench.named() == ["crashed r1"]


def test_a_peer_that_hangs_is_blamed_too_unless_it_blames_back() -> None:
    bench = Bench()
    bench.see(Sign.CANARY_SILENT, "r1")
    bench.saw(LineSeen("r2", Mark.TRANSFER_FAILED, "r1"))
    bench.see(Sign.LOG_TRANSFER, "r2", 1)
    assert bench.named() == ["hung r1"]
    bench = Bench()
    bench.see(Sign.CANARY_SILENT, "r1")
    bench.saw(LineSeen("r2", Mark.TRANSFER_FAILED, "r1"))
    bench.saw(LineSeen("r1", Mark.TRANSFER_FAILED, "r2"))
    bench.see(Sign.LOG_TRANSFER, "r2", 1)
    assert bench.named() == ["hung r1", "transfer_failed r2"]


def test_an_incident_closes_after_silence_once_its_replica_is_well() -> None:
    bench = Bench()
    bench.saw(StateChanged("r1", State.DEAD, "exited"))
    bench.see(Sign.EXITED)
    assert bench.diagnosis.look(nanos(500)) == []
    bench.ready("r1", 501)
    (news,) = bench.diagnosis.look(nanos(502))
    assert isinstance(news, Closed)
    assert news.incident.closed_at == nanos(502)
    assert bench.diagnosis.look(nanos(503)) == []


def test_the_same_failure_reopens_its_incident_for_ten_minutes() -> None:
    bench = Bench()
    bench.see(Sign.EXITED)
    bench.diagnosis.look(nanos(130))
    (news,) = bench.see(Sign.EXITED, at=400)
    assert isinstance(news, Opened)
    assert bench.only().id == "inc-000001"
    bench.diagnosis.look(nanos(530))
    bench.see(Sign.EXITED, at=1_200)
    assert len(bench.named()) == 2


def test_a_similar_failure_after_a_good_time_is_another_one() -> None:
    bench = Bench()
    bench.see(Sign.CONNECTIONS_LOST)
    bench.ready("r1", 10)
    bench.diagnosis.look(nanos(130))
    bench.see(Sign.EXITED, at=300)
    assert bench.named() == ["connection_lost r1", "crashed r1"]


def test_another_failure_after_a_recovery_closes_the_first() -> None:
    bench = Bench()
    bench.see(Sign.EXITED)
    bench.ready("r1", 30)
    news = bench.see(Sign.CANARY_WRONG, at=60)
    assert [type(one) for one in news] == [Closed, Opened]
    assert bench.named() == ["crashed r1", "wrong_output r1"]


def test_one_of_many_that_recovered_has_its_next_failure_for_itself() -> None:
    bench = Bench()
    for n in (1, 2, 3):
        bench.see(Sign.EXITED, f"r{n}", n)
        bench.ready(f"r{n}", 20 + n)
    bench.see(Sign.CONNECTIONS_LOST, "r1", 40)  # of r1 more is heard: it is not over
    news = bench.see(Sign.CANARY_WRONG, "r2", 60)
    crash, wrong = bench.diagnosis.incidents.values()
    assert (crash.cause, crash.stage) == (Cause.CRASHED, Stage.OPEN)
    assert crash.about == About(model="m", revision="1")
    assert (wrong.cause, wrong.about.replica) == (Cause.WRONG_OUTPUT, "r2")
    assert Opened(wrong) in news
    assert "r2" in str(crash.timeline[-1]), crash.timeline[-1]
    case = bench.diagnosis.case(crash.id)
    assert case is not None
    assert set(case.root_replicas()) == {"r1", "r3"}
    bench.see(Sign.CANARY_SLOW, "r4", 61)
    assert bench.named()[2:] == ["slow r4"]


def test_one_of_many_that_did_not_recover_stays_with_them() -> None:
    bench = Bench()
    for n in (1, 2, 3):
        bench.see(Sign.EXITED, f"r{n}", n)
    bench.see(Sign.CANARY_WRONG, "r2", 60)
    assert bench.only().cause is Cause.CRASHED


def test_the_last_of_many_closes_what_they_had() -> None:
    bench = Bench()
    for n in (1, 2, 3):
        bench.see(Sign.EXITED, f"r{n}", n)
        bench.ready(f"r{n}", 20 + n)
    for n in (1, 2, 3):
        bench.see(Sign.CANARY_WRONG, f"r{n}", 40 + n)
    crash, *_ = bench.diagnosis.incidents.values()
    assert (crash.cause, crash.stage) == (Cause.CRASHED, Stage.CLOSED)


def test_evidence_that_proves_nothing_follows_from_what_is_known() -> None:
    bench = Bench()
    assert bench.see(Sign.BACKPRESSURE) == []
    bench.see(Sign.EXITED, at=1)
    (news,) = bench.see(Sign.BACKPRESSURE, at=2)
    assert isinstance(news, Changed)
    assert bench.only().consequences[0].sign is Sign.BACKPRESSURE
    assert bench.see(Sign.DEAD_LETTERS, "n", 3) == []


def test_a_sign_means_what_it_means_in_its_phase() -> None:
    bench = Bench()
    bench.saw(PhaseSeen("r1", "loading"))
    bench.see(Sign.EXITED)
    case = bench.diagnosis.case("inc-000001")
    assert case is not None
    assert [piece.loading for piece in case.seen.values()] == [True]


def test_whoever_is_gone_leaves_no_live_signs() -> None:
    bench = Bench()
    bench.see(Sign.BACKPRESSURE)
    bench.saw(Gone("r1"))
    bench.diagnosis.look(nanos(1_000))
    assert bench.diagnosis.incidents == {}


def test_incidents_of_an_earlier_life_go_on() -> None:
    bench = Bench()
    bench.see(Sign.EXITED)
    old = bench.only()
    again = Bench()
    again.diagnosis.adopt(old, nanos(5))
    again.see(Sign.CONNECTIONS_LOST, at=6)
    assert again.named() == ["crashed r1"]
    again.see(Sign.EXITED, "x1", 7)
    assert list(again.diagnosis.incidents) == ["inc-000001", "inc-000002"]
    unknown = Incident("inc-000009", Cause.FROZEN, Class.RUNTIME, About("r1"), 0, 0.9)
    again.diagnosis.adopt(unknown, nanos(8))
    assert again.diagnosis.refused == 1


def test_two_incidents_of_one_thing_become_one() -> None:
    bench = Bench()
    about = bench.census.about("r1")
    for name in ("inc-000001", "inc-000002"):
        old = Incident(name, Cause.CRASHED, Class.RUNTIME, about, 0, 0.8)
        bench.diagnosis.adopt(old, 0)
    bench.see(Sign.EXITED, at=1)
    assert list(bench.diagnosis.incidents) == ["inc-000001"]


def test_when_there_is_no_room_nothing_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "INCIDENTS_MAX", 1)
    bench = Bench()
    bench.see(Sign.EXITED)
    assert bench.see(Sign.EXITED, "x1", 1) == []
    assert bench.diagnosis.refused == 1


SEEN = st.tuples(
    st.integers(-3, 60),
    st.sampled_from([sign for rule in TOYS.values() for one in rule.proofs for sign in one.signs]),
    st.sampled_from(["r1", "r2", "r3", "r4", "x1", "m", "n"]),
    st.sampled_from([None, State.READY, State.DEAD]),
)


@settings(max_examples=examples(150))
@example(
    [
        (0, Sign.EXITED, "r2", None),
        (0, Sign.SAME_REQUEST_KILLS, "r1", None),
        (18, Sign.EXITED, "r1", None),
        (27, Sign.CANARY_SILENT, "r2", None),
        (38, Sign.EXITED, "r1", None),
        (38, Sign.CONNECTIONS_LOST, "r2", None),
    ]
)
@given(st.lists(SEEN, max_size=60))
def test_whatever_is_seen_the_books_stay_right(steps: list[tuple[int, Sign, str, State]]) -> None:
    bench = Bench()
    bench.saw(ChainDeclared("c", ("n", "m")))
    now = 0
    known: set[str] = set()
    closed: set[str] = set()
    for step, sign, who, state in steps:
        now = max(0, now + step)
        if state is not None and who in bench.census.replicas:
            bench.saw(StateChanged(who, state, "x"), now)
        for news in (*bench.see(sign, who, now), *bench.diagnosis.look(nanos(now))):
            if isinstance(news, Opened):
                known.add(news.incident.id)
                closed.discard(news.incident.id)
            elif isinstance(news, Closed):
                closed.add(news.incident.id)
            assert news.incident.id in known
        alive = [one for one in bench.diagnosis.incidents.values() if one.closed_at is None]
        keys = [(one.cause, one.about) for one in alive]
        assert len(keys) == len(set(keys))
        assert not closed & {one.id for one in alive}
        assert all(one.stage is Stage.OPEN and one.evidence for one in alive)
