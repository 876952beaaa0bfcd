"""What replicas are known to lack: bounded, forgotten in time, at a restart, at a new revision."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.core.request.breaker import Breaker, BreakerConfig
from holdfast.core.request.candidate import Candidate
from holdfast.core.request.routing.absent_paths import ABSENT_FOR, ABSENT_MAX, AbsentPaths
from holdfast.core.stats import PeakEwma
from holdfast.core.types import SECOND, Replica

NAMES = [f"r{number}" for number in range(40)]
PATHS = ["/v1/embeddings", "/v1/rerank", "/v1/responses", "/v2/models/"]


def candidate(name: str, revision: str = "1") -> Candidate:
    replica = Replica(name, "m", revision=revision)
    return Candidate(replica, Breaker(BreakerConfig(), Random(1)), PeakEwma())


class Absent(RuleBasedStateMachine):
    """The table beside a list of all that was ever learned."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000 * SECOND
        self.table = AbsentPaths()
        self.learned: dict[tuple[str, str, str], int] = {}  # the eldest first
        self.pool = {name: candidate(name) for name in NAMES}

    @rule(name=st.sampled_from(NAMES), path=st.sampled_from(PATHS))
    def learn(self, name: str, path: str) -> None:
        one = self.pool[name]
        self.table.learn(one, path, self.now)
        self.learned.pop((name, one.revision, path), None)
        if len(self.learned) == ABSENT_MAX:
            del self.learned[next(iter(self.learned))]
        self.learned[name, one.revision, path] = self.now

    @rule(path=st.sampled_from(PATHS))
    def learn_of_all(self, path: str) -> None:
        for name in NAMES:
            self.learn(name, path)

    @rule(name=st.sampled_from(NAMES))
    def restart(self, name: str) -> None:
        self.table.forget(name)
        self.learned = {key: at for key, at in self.learned.items() if key[0] != name}

    @rule(name=st.sampled_from(NAMES), revision=st.sampled_from(["1", "2"]))
    def roll(self, name: str, revision: str) -> None:
        self.pool[name].update(Replica(name, "m", revision=revision))

    @rule(pause_s=st.integers(1, 400))
    def wait(self, pause_s: int) -> None:
        self.now += pause_s * SECOND

    @invariant()
    def knows_the_latest_for_as_long_as_it_may(self) -> None:
        assert len(self.table.until) <= ABSENT_MAX
        self.learned = {k: at for k, at in self.learned.items() if self.now - at < ABSENT_FOR}
        for path in PATHS:
            expected = {
                name
                for name, one in self.pool.items()
                if (name, one.revision, path) in self.learned
            }
            assert set(self.table.lacking(path, self.pool.values(), self.now)) == expected


TestAbsent = Absent.TestCase


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(PATHS)), min_size=1))
def test_it_is_empty_again_after_ten_minutes(told):
    table = AbsentPaths()
    for name, path in told:
        table.learn(candidate(name), path, 0)
    assert 0 < len(table.until) <= ABSENT_MAX
    assert table.lacking("/v1/embeddings", [], ABSENT_FOR) == ()
    assert len(table.until) == 0
