import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.diagnose.detect import queues as module
from holdfast.core.diagnose.detect.queues import QueuesConfig, QueuesDetector
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    ChainDeclared,
    Declared,
    Fact,
    Gone,
    Looked,
    QueueSeen,
    StateChanged,
)
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import ConfigError, State, nanos
from sampling import examples


class Fleet:
    """One replica ``r`` of model ``m``; more on demand."""

    def __init__(self) -> None:
        self.census = ReplicaRegistry()
        self.detector = QueuesDetector(QueuesConfig(), self.census)
        self.take(0, Declared("r", "m"))

    def take(self, at: float, *facts: Fact) -> list[Evidence]:
        said = []
        for fact in facts:
            self.census.take(fact)
            if isinstance(fact, Gone):
                self.detector.forget(fact.replica)
            elif isinstance(fact, QueuesDetector.reads):
                said += self.detector.take(fact, nanos(at))
        return said

    def run(
        self, depths: list[int], *, done: int | None = None, start: int = 0, step: int = 5
    ) -> list[Evidence]:
        said = []
        for n, depth in enumerate(depths):
            at = start + n * step
            if done is not None:
                said += self.take(at, AttemptsSeen("r", float(step), successes=done, tokens=done))
            said += self.take(at, QueueSeen("m", depth))
        return said

    def state(self, at: float, state: State, replica: str = "r") -> list[Evidence]:
        return self.take(at, StateChanged(replica, state, "x"))


def signs(said: list[Evidence]) -> list[Sign]:
    return [one.sign for one in said]


def test_a_queue_that_grows_for_a_minute_is_told_with_what_was_finished() -> None:
    said = Fleet().run([10 * n for n in range(13)], done=2)
    assert signs(said) == [Sign.QUEUE_GROWS]
    assert said[0].about == About(model="m")
    assert said[0].text == "the queue of m grew from 0 to 120 in 60 s while 24 were finished"
    assert said[0].numbers == {"waiting": 120.0, "grew": 120.0, "span_s": 60.0, "finished_s": 0.4}


def test_noise_on_a_growing_queue_does_not_hide_it() -> None:
    depths = [5 * n + (7 if n % 2 else 0) for n in range(26)]
    said = Fleet().run(depths, done=1)
    assert set(signs(said)) == {Sign.QUEUE_GROWS}
    assert len(said) == 3  # at its onset and every half minute


def test_a_burst_that_drains_is_no_growing_queue() -> None:
    burst = [0, 0, 0, 500, 480, 450, 420, 400, 370, 340, 300, 270, 240, 200, 150, 100, 50, 0, 0]
    assert not Fleet().run(burst, done=3)
    assert not Fleet().run(burst)  # nor where nobody tells what is finished


def test_a_long_burst_that_a_fast_model_works_off_in_seconds_is_no_sign() -> None:
    rising = [25 * n for n in range(20)]
    assert not Fleet().run([*rising, 300, 100, 0], done=200)


def test_a_deep_queue_that_breathes_is_no_sign() -> None:
    depths = [1000 + (37 * n * n) % 60 for n in range(100)]
    assert not Fleet().run(depths, done=5)


def test_a_queue_of_a_platform_is_judged_by_the_age_of_its_oldest_work() -> None:
    fleet = Fleet()
    young = [fleet.take(60 * n, QueueSeen("m", 20 * n, oldest_s=5.0)) for n in range(6)]
    assert not any(young)
    fleet = Fleet()
    old = [fleet.take(60 * n, QueueSeen("m", 20 * n, oldest_s=60.0 * n)) for n in range(4)]
    assert signs(old[2]) == [Sign.QUEUE_GROWS]
    assert "the oldest waits 120 s" in old[2][0].text


def test_where_nothing_is_known_of_the_consumers_growth_alone_speaks() -> None:
    said = Fleet().run([10, 20, 40, 80], step=30)
    assert [(one.sign, one.at) for one in said] == [
        (Sign.QUEUE_GROWS, nanos(60)),
        (Sign.QUEUE_GROWS, nanos(90)),
    ]


def test_a_queue_that_stands_while_nothing_is_finished_is_told_too() -> None:
    fleet = Fleet()
    fleet.take(0, AttemptsSeen("r", 1.0, successes=5))
    said = fleet.run([4] * 25)
    assert [one.at for one in said] == [nanos(120)]
    assert said[0].text == "the queue of m stands at 4 in 120 s while 0 were finished"


def test_it_is_told_earlier_where_a_replica_was_lost() -> None:
    fleet = Fleet()
    fleet.take(0, Declared("r2", "m"), AttemptsSeen("r", 1.0))
    fleet.state(0, State.READY)
    fleet.state(0, State.DEAD, "r2")
    said = []
    for n in range(13):
        said += fleet.take(5 * n, QueueSeen("m", 4, deliveries=3.0))
    assert [one.at for one in said] == [nanos(60)]
    assert "the same work was handed out 3.0 times" in said[0].text


def test_a_queue_that_stands_while_tokens_or_its_head_move_is_none() -> None:
    fleet = Fleet()
    for n in range(40):
        assert not fleet.take(5 * n, AttemptsSeen("r", 5.0, tokens=50), QueueSeen("m", 4))
    fleet = Fleet()
    for n in range(40):
        assert not fleet.take(5 * n, QueueSeen("m", 4, oldest_s=100.0))


def test_a_platform_queue_whose_head_does_not_move_stands() -> None:
    fleet = Fleet()
    said = []
    for n in range(25):
        said += fleet.take(5 * n, QueueSeen("m", 4, oldest_s=5.0 * n))
    assert signs(said) == [Sign.QUEUE_GROWS]


def test_of_a_standing_queue_nobody_knows_anything_about_nothing_is_concluded() -> None:
    fleet = Fleet()
    assert not fleet.run([4] * 40)
    fleet.state(200, State.DEAD)
    said = fleet.run([4] * 14, start=200)
    assert [(one.sign, one.at) for one in said] == [(Sign.QUEUE_GROWS, nanos(260))]


def test_while_a_model_is_started_its_queue_may_wait_but_not_for_ever() -> None:
    fleet = Fleet()
    fleet.state(0, State.LOADING)
    said = fleet.run([10 * n for n in range(200)])
    assert said[0].at >= nanos(300)


def test_few_samples_short_spans_and_samples_from_before_a_gap_prove_nothing() -> None:
    assert not Fleet().run([0, 500], step=100)
    assert not Fleet().run([10 * n for n in range(12)])
    assert not Fleet().run([0, 50, 100, 150], step=400)


def test_quick_reports_do_not_shorten_the_memory_of_a_queue() -> None:
    assert Fleet().run(list(range(62)), step=1)


def test_when_it_drains_the_sign_is_over_and_news_the_next_time() -> None:
    fleet = Fleet()
    assert fleet.run([10 * n for n in range(13)])
    assert not fleet.run([0] * 5, start=65)
    said = fleet.run([10 * n for n in range(14)], start=90)
    assert len(said) == 1
    assert said[0].at >= nanos(90 + 45)


def test_dead_letters_are_told_when_they_grow() -> None:
    fleet = Fleet()
    assert not fleet.take(0, QueueSeen("m", 0, dead_letters=7))
    assert not fleet.take(5, QueueSeen("m", 0), QueueSeen("m", 0, dead_letters=7))
    (said,) = fleet.take(10, QueueSeen("m", 0, dead_letters=9))
    assert said.sign is Sign.DEAD_LETTERS
    assert said.text == "2 more dead letters of m, 9 in all: work was given up"
    assert not fleet.take(15, QueueSeen("m", 0, dead_letters=10))
    (said,) = fleet.take(45, QueueSeen("m", 0, dead_letters=12))
    assert said.numbers == {"grew": 3.0, "dead_letters": 12.0}
    assert not fleet.take(90, QueueSeen("m", 0, dead_letters=0))
    (said,) = fleet.take(95, QueueSeen("m", 0, dead_letters=1))
    assert said.text.startswith("1 more dead letter of m, 1 in all")


def chain(fleet: Fleet, upto: int, *, later: str) -> list[Evidence]:
    """The queue of the first model grows, and something is said of the last."""
    fleet.take(0, ChainDeclared("voice", ("asr", "llm", "tts")), ChainDeclared("other", ("x", "y")))
    said = []
    for n in range(upto):
        if later == "grows":
            said += fleet.take(5 * n, QueueSeen("tts", 12 * n))
        said += fleet.take(5 * n, QueueSeen("asr", 10 * n))
    return said


def test_a_model_whose_queue_grows_waits_for_the_later_one_whose_queue_grows() -> None:
    fleet = Fleet()
    said = chain(fleet, 13, later="grows")
    assert [(one.sign, one.about.model) for one in said] == [
        (Sign.QUEUE_GROWS, "tts"),
        (Sign.QUEUE_GROWS, "asr"),
        (Sign.CHAIN_WAITS, "asr"),
    ]
    assert said[2].text == (
        "asr waits for tts, a later model of chain voice, whose own queue grows: 144 wait there"
    )
    assert said[2].numbers == {"waiting": 120.0, "later_waiting": 144.0}
    assert fleet.detector.waits_for == {"asr": "tts"}
    fleet.take(70, QueueSeen("tts", 0))
    fleet.take(75, QueueSeen("asr", 150))
    assert not fleet.detector.waits_for


def test_it_waits_for_one_without_a_ready_replica() -> None:
    fleet = Fleet()
    fleet.take(0, Declared("t", "tts"))
    fleet.state(0, State.DEAD, "t")
    said = chain(fleet, 13, later="")
    assert signs(said) == [Sign.QUEUE_GROWS, Sign.CHAIN_WAITS]
    assert (
        "waits for tts, a later model of chain voice, of which no replica is ready" in said[1].text
    )
    assert "later_waiting" not in said[1].numbers


def test_it_waits_for_one_where_work_waits_long_although_the_queue_there_is_full() -> None:
    fleet = Fleet()
    fleet.take(0, ChainDeclared("voice", ("m", "llm", "tts")))
    said = []
    for n in range(14):
        said += fleet.take(5 * n, QueueSeen("tts", 8, oldest_s=90.0), QueueSeen("m", 10 * n))
    assert signs(said) == [Sign.QUEUE_GROWS, Sign.CHAIN_WAITS]
    assert "where 8 wait for longer than 60 s" in said[1].text


def test_a_model_that_keeps_up_well_enough_tells_all_the_same_for_whom_it_waits() -> None:
    fleet = Fleet()
    fleet.take(0, ChainDeclared("documents", ("m", "summary")))
    said = []
    for n in range(20):
        said += fleet.take(5 * n, AttemptsSeen("r", 5.0, successes=30))
        said += fleet.take(5 * n, QueueSeen("summary", 10 * n, oldest_s=6.0 * n))
        said += fleet.take(5 * n, QueueSeen("m", 3 * n))
    assert {(one.sign, one.about.model) for one in said} == {
        (Sign.QUEUE_GROWS, "summary"),
        (Sign.CHAIN_WAITS, "m"),
    }


def test_a_growing_queue_in_a_chain_whose_later_models_are_well_waits_for_nobody() -> None:
    fleet = Fleet()
    fleet.take(0, ChainDeclared("voice", ("m", "llm", "tts")))
    fleet.take(0, QueueSeen("llm", 0))
    said = []
    for n in range(14):
        said += fleet.take(5 * n, QueueSeen("tts", 3, oldest_s=1.0), QueueSeen("m", 10 * n))
    assert signs(said) == [Sign.QUEUE_GROWS]


def test_the_last_model_of_a_chain_never_waits_for_an_earlier_one() -> None:
    fleet = Fleet()
    fleet.take(0, ChainDeclared("voice", ("asr", "m")), Declared("a", "asr"))
    fleet.state(0, State.DEAD, "a")
    assert signs(fleet.run([10 * n for n in range(13)])) == [Sign.QUEUE_GROWS]


def test_without_a_ready_replica_for_a_while_the_model_is_named() -> None:
    fleet = Fleet()
    fleet.take(0, Declared("r2", "m"), QueueSeen("m", 3))
    fleet.state(0, State.READY)
    fleet.state(0, State.SUSPECT, "r2")
    assert not fleet.state(10, State.DEAD)
    assert not fleet.take(40, Looked())
    assert not fleet.state(50, State.LOADING, "r2")  # died and came back, nobody saw it die
    assert not fleet.take(64, Looked())
    (said,) = fleet.take(65, Looked())
    assert said.sign is Sign.NO_REPLICA_READY
    assert said.text == "no replica of m is ready for 15 s: 1 dead, 1 loading; 3 requests wait"
    assert said.numbers == {"replicas": 2.0, "lost": 2.0, "for_s": 15.0, "waiting": 3.0}
    assert not fleet.take(66, Looked())
    assert len(fleet.take(95, Looked())) == 1
    fleet.state(96, State.READY, "r2")
    assert not fleet.take(200, Looked())


def test_a_start_a_stop_and_a_planned_restart_are_no_loss() -> None:
    fleet = Fleet()
    plan = [State.STARTING, State.LOADING, State.WARMING, State.READY, State.DRAINING]
    plan += [State.STOPPED, State.STARTING, State.LOADING, State.READY, State.DRAINING, State.DEAD]
    for n, state in enumerate(plan):
        assert not fleet.state(100 * n, state)
        assert not fleet.take(100 * n + 99, Looked())


def test_a_replica_of_which_nothing_is_known_may_be_ready() -> None:
    fleet = Fleet()
    fleet.take(0, Declared("r2", "m"))
    fleet.state(0, State.DEAD)
    assert not fleet.take(60, Looked())
    fleet.take(60, Gone("r2"))
    assert len(fleet.take(61, Looked())) == 1


def test_when_the_last_that_served_goes_the_dead_alone_remain() -> None:
    fleet = Fleet()
    fleet.take(0, Declared("r2", "m"), Declared("r3", "m"))
    fleet.state(0, State.DEAD)
    fleet.state(0, State.READY, "r2")
    fleet.state(0, State.READY, "r3")
    fleet.take(50, Looked(), Gone("r2"))
    assert not fleet.take(100, Looked(), Gone("r3"))
    assert not fleet.take(114, Looked())
    assert len(fleet.take(115, Looked())) == 1


def test_a_replica_that_changes_its_model_is_counted_there() -> None:
    fleet = Fleet()
    fleet.state(0, State.DEAD)
    fleet.take(1, Declared("r", "n"))
    fleet.state(1, State.DEAD)
    (said,) = fleet.take(20, Looked())
    assert said.about.model == "n"
    assert list(fleet.detector._of) == ["n"]


def test_forgotten_replicas_leave_nothing_and_strangers_never_came() -> None:
    fleet = Fleet()
    fleet.state(0, State.DEAD)
    fleet.take(20, Looked())
    fleet.take(21, Gone("r"), Gone("r"), AttemptsSeen("r", 1.0, successes=1))
    assert not fleet.state(22, State.DEAD)
    assert not fleet.take(60, Looked())
    assert not fleet.detector._lives
    assert not fleet.detector._of
    assert not fleet.detector._pace._said


def test_books_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(module, "MODELS_MAX", 1)
    monkeypatch.setattr(module, "CHAINS_MAX", 1)
    monkeypatch.setattr(module, "LINKS_MAX", 2)
    fleet = Fleet()
    fleet.take(0, ChainDeclared("a", ("x", "y", "z")), ChainDeclared("b", ("x",)))
    fleet.take(0, QueueSeen("x", 1), QueueSeen("y", 1), AttemptsSeen("r", 1.0))
    assert fleet.detector.refused == 3
    assert fleet.detector._chains == {"a": ("x", "y")}
    assert list(fleet.detector._queues) == ["x"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("window_s", 0.0), ("stand_s", 600.0), ("sample_s", 0.0), ("gap_s", -1.0)),
        *(("wait_s", 0.0), ("start_s", 1e6), ("unready_s", 0.0), ("samples_min", 2)),
        *(("growth_min", 0), ("growth_share", 0.0), ("rising_pairs", 1.1), ("peak_share", 0.0)),
    ],
)
def test_bad_configs_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"queues\.{field}"):
        QueuesConfig(**{field: value})


NAMES, MODELS = st.sampled_from(["r", "s", "t"]), st.sampled_from("mnx")
COUNTS = st.one_of(st.none(), st.integers(0, 50))
STEPS = st.one_of(
    st.builds(
        QueueSeen,
        MODELS,
        st.integers(0, 200),
        dead_letters=COUNTS,
        oldest_s=st.one_of(st.none(), st.floats(0, 500)),
    ),
    st.builds(AttemptsSeen, NAMES, st.just(1.0), st.integers(0, 3), tokens=st.integers(0, 3)),
    st.builds(StateChanged, NAMES, st.sampled_from(State), st.just("x")),
    st.builds(Declared, NAMES, MODELS),
    st.builds(Gone, NAMES),
    st.just(ChainDeclared("c", ("m", "n", "x"))),
    st.just(Looked()),
)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 40), STEPS), max_size=60))
def test_whatever_comes_it_accuses_only_where_work_waits_or_nobody_is_ready(
    steps: list[tuple[int, Fact]],
) -> None:
    fleet, at = Fleet(), 0
    for after, fact in steps:
        at += after
        for said in fleet.take(at, fact):
            assert said.at == nanos(at)
            if said.sign in (Sign.QUEUE_GROWS, Sign.CHAIN_WAITS):
                assert said.numbers["waiting"] >= 1
            elif said.sign is Sign.NO_REPLICA_READY:
                ready = (State.READY, State.SUSPECT)
                lives = fleet.detector._of[said.about.model].values()
                assert all(one.state not in ready for one in lives)
            else:
                assert said.numbers["grew"] >= 1


@settings(max_examples=examples(100))
@given(st.lists(st.integers(0, 300), min_size=1, max_size=40))
def test_a_queue_that_never_rises_is_never_called_growing(depths: list[int]) -> None:
    assert not Fleet().run(sorted(depths, reverse=True), done=1)
