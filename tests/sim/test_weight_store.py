import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.types import SECOND, ConfigError, nanos
from holdfast.sim.clock import WORLD, Clock
from holdfast.sim.weight_store import LoadingConfig, WeightStore

FOREVER = 10**18


class Fleet:
    """Replicas that load from one store and note when they are ready."""

    def __init__(self, **config: float) -> None:
        self.clock = Clock()
        self.store = WeightStore(LoadingConfig(**config), self.clock)
        self.ready: dict[str, int] = {}

    def load(self, name: str, at: int = 0) -> None:
        def begin(_: object, now: int) -> None:
            self.store.load(name, lambda then: self.ready.update({name: then}), now)

        self.clock.at(at, WORLD, begin)

    def cancel(self, name: str, at: int) -> None:
        self.clock.at(at, WORLD, lambda _, now: self.store.cancel(name, now))

    def run(self) -> dict[str, float]:
        self.clock.run(FOREVER)
        return {name: time / SECOND for name, time in self.ready.items()}


def forty(parallel_max: int) -> dict[str, float]:
    fleet = Fleet(size_gb=10.0, bandwidth_gb_per_s=0.1, parallel_max=parallel_max)
    for index in range(40):
        fleet.load(f"r{index}")
    return fleet.run()


@pytest.mark.parametrize(
    ("parallel_max", "mean_s"),
    [
        (0, 4_000.0),  # all together: everybody is ready last
        (40, 4_000.0),
        (1, 2_050.0),  # one after the other: 100, 200, … 4,000
        (4, 2_200.0),  # waves of four: 400, 800, … 4,000, each for four
        (8, 2_400.0),  # waves of eight: 800, … 4,000
    ],
)
def test_forty_replicas_behind_one_store(parallel_max: int, mean_s: float) -> None:
    ready = sorted(forty(parallel_max).values())
    wave = parallel_max or 40
    assert len(ready) == 40
    assert sum(ready) / 40 == pytest.approx(mean_s, abs=1e-6)
    for index, time in enumerate(ready):  # n loads of 100 s sharing one bandwidth take n x 100 s
        assert time == pytest.approx((index // wave + 1) * wave * 100.0, abs=1e-6)


def test_the_last_is_ready_at_the_same_time_however_many_load_at_once() -> None:
    ends = [max(forty(parallel_max).values()) for parallel_max in (0, 1, 4, 8)]
    assert ends == pytest.approx([4_000.0] * 4, abs=1e-6)


def test_one_that_joins_later_slows_the_other_from_then_on() -> None:
    fleet = Fleet(size_gb=10.0, bandwidth_gb_per_s=1.0)
    fleet.load("early")
    fleet.load("late", nanos(4.0))
    # Alone for 4 s (4 GB), then 6 GB at half the speed; after that the late one is alone.
    assert fleet.run() == pytest.approx({"early": 16.0, "late": 20.0}, abs=1e-6)


def test_cancelling_gives_the_share_to_the_others() -> None:
    fleet = Fleet(size_gb=10.0, bandwidth_gb_per_s=1.0)
    fleet.load("stays")
    fleet.load("goes")
    fleet.cancel("goes", nanos(4.0))
    assert fleet.run() == pytest.approx({"stays": 12.0}, abs=1e-6)  # 2 GB by then, 8 alone


def test_cancelling_lets_the_next_in_line_begin() -> None:
    fleet = Fleet(size_gb=10.0, bandwidth_gb_per_s=1.0, parallel_max=1)
    for name in ("first", "second", "third"):
        fleet.load(name)
    fleet.cancel("first", nanos(3.0))
    fleet.cancel("second", nanos(5.0))
    assert fleet.run() == pytest.approx({"third": 15.0}, abs=1e-6)


def test_cancelling_one_that_waits_or_is_unknown_disturbs_nobody() -> None:
    fleet = Fleet(size_gb=10.0, bandwidth_gb_per_s=1.0, parallel_max=1)
    fleet.load("first")
    fleet.load("second")
    fleet.cancel("second", nanos(1.0))
    fleet.cancel("nobody", nanos(2.0))
    assert fleet.run() == pytest.approx({"first": 10.0}, abs=1e-6)


def test_a_replica_may_load_again_after_it_was_cancelled() -> None:
    fleet = Fleet(size_gb=10.0, bandwidth_gb_per_s=1.0)
    fleet.load("r")
    fleet.cancel("r", nanos(9.0))
    fleet.load("r", nanos(20.0))
    assert fleet.run() == pytest.approx({"r": 30.0}, abs=1e-6)


def test_nothing_to_read_is_ready_at_once() -> None:
    fleet = Fleet(size_gb=0.0, parallel_max=1)
    fleet.load("a", SECOND)
    fleet.load("b", SECOND)
    ready = fleet.run()
    assert set(ready) == {"a", "b"}
    assert all(1.0 <= time < 1.0 + 1e-6 for time in ready.values())


@settings(max_examples=60)
@given(
    starts=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    parallel_max=st.integers(0, 4),
)
def test_the_store_is_never_idle_while_somebody_loads(starts: list[int], parallel_max: int) -> None:
    fleet = Fleet(size_gb=2.0, bandwidth_gb_per_s=1.0, parallel_max=parallel_max)
    for index, start in enumerate(starts):
        fleet.load(f"r{index}", start * SECOND)
    ready = sorted(fleet.run().values())
    assert len(ready) == len(starts)
    # Whatever the order, the work is the same: when the last of a busy spell is ready is known.
    busy_until = 0.0
    for start in sorted(starts):
        busy_until = max(busy_until, start) + 2.0
    assert ready[-1] == pytest.approx(busy_until, abs=1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [("start_s", -1.0), ("size_gb", -0.1), ("bandwidth_gb_per_s", 0.0), ("parallel_max", -1)],
)
def test_a_config_that_cannot_be_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"loading\.{field}: is {value}; use "):
        LoadingConfig(**{field: value})


def test_how_much_was_read_is_told_while_it_reads() -> None:
    fleet = Fleet(size_gb=10.0, bandwidth_gb_per_s=1.0, parallel_max=2)
    for name in ("r0", "r1", "r2"):
        fleet.load(name)
    fleet.clock.run(nanos(8.0))
    read = [fleet.store.read(name, nanos(8.0)) for name in ("r0", "r1", "r2", "nobody")]
    assert read == [4_000_000_000, 4_000_000_000, 0, None]
    assert fleet.run() == pytest.approx({"r0": 20.0, "r1": 20.0, "r2": 30.0}, abs=1e-6)
