"""Whether an owner is alive: its beat must fire the verdict, and clocks and pauses must not."""

from holdfast.core.request.idempotency.owner_watch import OWNERS_MAX, OwnerWatch
from holdfast.core.types import SECOND

LEASE = 5 * SECOND


def look(watch, beats, step=SECOND // 10, owner="g"):
    """Look again and again; after how many looks it was dead, or None."""
    now = 1_000 * SECOND
    for number, beat in enumerate(beats):
        if watch.is_dead(owner, beat, now):
            return number
        now += step
    return None


def test_a_beat_that_stands_still_for_the_lease_is_death():
    assert look(OwnerWatch(LEASE), [7] * 200) == 50


def test_a_beat_that_moves_is_life_however_slowly():
    assert look(OwnerWatch(LEASE), [n // 49 for n in range(500)]) is None


def test_who_said_farewell_is_dead_at_once_and_may_come_back():
    watch = OwnerWatch(LEASE)
    assert look(watch, [1, 2, None]) == 2
    assert look(watch, [1, 2, 3]) is None


def test_a_watcher_that_could_not_look_begins_anew():
    watch = OwnerWatch(LEASE)
    assert not watch.is_dead("g", 1, 0)
    assert not watch.is_dead("g", 1, 3600 * SECOND)  # it was frozen, or the store was away
    assert not watch.is_dead("g", 1, 3600 * SECOND + LEASE // 2)
    assert watch.is_dead("g", 1, 3600 * SECOND + LEASE)


def test_owners_nobody_waits_for_are_forgotten_and_their_number_is_bounded():
    watch = OwnerWatch(LEASE)
    for number in range(OWNERS_MAX + 10):
        assert not watch.is_dead(f"g{number}", 1, 0)
    assert len(watch._seen) == OWNERS_MAX
    watch.forget_others({"g1", "g5"})
    assert set(watch._seen) == {"g1", "g5"}
