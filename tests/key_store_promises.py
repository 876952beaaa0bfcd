"""What every store of idempotency keys promises; each adapter's tests call these with a store.

Kept apart from the fixtures, so that the stores inside this process (``test_key_store.py``) and
real servers are asked the same questions.
"""

import threading
from collections.abc import Callable
from functools import partial

from holdfast.core.request.idempotency.key_policy import (
    AnswerEnd,
    AnswerPieces,
    IdempotencyConfig,
    KeyChange,
    KeyClaim,
    KeyOutcome,
    KeyPolicy,
)
from holdfast.core.request.idempotency.key_record import KeyName, KeyState, KeyUsage
from holdfast.ports import KeyStore, WatchedKey

NOW = 1_000_000.0
POLICY = KeyPolicy(IdempotencyConfig(answers="store", tenant_keys_max=5))
NAME = KeyName("team", "d1")
OTHER = KeyName("other", "d1")
Opened = Callable[[], KeyStore]


def claim(execution="e1", owner="g1", fingerprint="f", now=NOW, *, repeatable=True):
    asked = KeyClaim(fingerprint, execution, owner, repeatable, now)
    return lambda record, usage: POLICY.claim(record, usage, asked)


def finish(execution="e1", pieces=(b"a", b"b"), status=200, total=0):
    total = total or len(pieces)
    told = AnswerPieces(execution, status, "x: y\r\n", True, total - len(pieces), pieces)
    end = AnswerEnd(total, whole=True, kept=True)
    return lambda record, usage: POLICY.finish(record, usage, told, end, NOW)


def publish(execution, pieces):
    def decide(record, usage):
        told = AnswerPieces(execution, 200, "", True, record.stored, pieces)
        return POLICY.publish(record, usage, told, NOW)

    return decide


def one(store: KeyStore, name: KeyName, decide):
    (ruling,) = store.update([KeyChange(name, decide)])
    return ruling


def seen(store: KeyStore, name: KeyName = NAME, execution: str = "e1", here: int = 0):
    (sight,) = store.look([WatchedKey(name, execution, here)])
    return sight


def a_new_store_is_empty(store: KeyStore) -> None:
    assert seen(store).record is None
    assert (store.usage(), store.wanted("g1"), store.due(NOW * 2, 10)) == ({}, [], [])
    assert store.purge("team") == 0
    assert store.update([]) == []
    assert store.look([]) == []


def the_first_claim_wins_and_further_ones_join(store: KeyStore) -> None:
    changes = [KeyChange(NAME, claim(f"e{i}", "g1")) for i in range(3)]
    told = store.update(changes)
    assert [r.outcome for r in told] == [KeyOutcome.EXECUTE, KeyOutcome.JOIN, KeyOutcome.JOIN]
    again = one(store, NAME, claim("e9", "g2"))
    assert again.outcome is KeyOutcome.JOIN
    assert again.record is not None
    assert again.record.execution == "e0"
    assert again.record.wanted
    assert one(store, NAME, claim("e9", "g2", "another")).outcome is KeyOutcome.MISMATCH


def tenants_do_not_see_each_other(store: KeyStore) -> None:
    assert one(store, NAME, claim("e1")).outcome is KeyOutcome.EXECUTE
    assert one(store, OTHER, claim("e2", fingerprint="x")).outcome is KeyOutcome.EXECUTE
    assert store.purge("other") == 1
    assert seen(store).record is not None
    assert seen(store, OTHER).record is None
    assert store.usage() == {"team": KeyUsage(1, 0, 1, 0)}


def pieces_come_in_order_and_from_where_they_are_asked(store: KeyStore) -> None:
    one(store, NAME, claim())
    one(store, NAME, publish("e1", (b"a", b"\x00\xff")))
    one(store, NAME, publish("e1", (b"c",)))
    assert seen(store).pieces == (b"a", b"\x00\xff", b"c")
    assert seen(store, here=2).pieces == (b"c",)
    assert seen(store, here=3).pieces == ()
    assert seen(store, execution="e2").pieces == ()
    done = one(store, NAME, finish(pieces=(b"d",), total=4)).record
    assert done is not None
    assert done.readable
    sight = seen(store, here=3)
    assert sight.pieces == (b"d",)
    assert sight.record == done
    assert (sight.record.status, sight.record.head) == (200, "x: y\r\n")
    assert store.usage() == {"team": KeyUsage(1, 5, 1, 5)}


def another_execution_has_none_of_the_old_pieces(store: KeyStore) -> None:
    one(store, NAME, claim())
    one(store, NAME, finish(status=503))
    assert seen(store).pieces == (b"a", b"b")
    ruling = one(store, NAME, claim("e2", "g2"))
    assert ruling.outcome is KeyOutcome.EXECUTE
    one(store, NAME, publish("e2", (b"new",)))
    assert seen(store, execution="e1").pieces == ()
    assert seen(store, execution="e2").pieces == (b"new",)
    assert one(store, NAME, finish("e1")).outcome is KeyOutcome.FENCED
    assert store.usage() == {"team": KeyUsage(1, 3, 1, 3)}


def a_full_tenant_is_refused_and_others_are_not(store: KeyStore) -> None:
    changes = [KeyChange(KeyName("team", f"k{i}"), claim(f"e{i}")) for i in range(6)]
    outcomes = [ruling.outcome for ruling in store.update(changes)]
    assert outcomes == [KeyOutcome.EXECUTE] * 5 + [KeyOutcome.FULL]
    assert one(store, KeyName("team", "k7"), claim("e7")).outcome is KeyOutcome.FULL
    assert one(store, OTHER, claim("e8")).outcome is KeyOutcome.EXECUTE
    assert store.usage()["team"].keys == 5


def beats_count_up_and_end_with_the_farewell(store: KeyStore) -> None:
    one(store, NAME, claim())
    assert seen(store).beat is None
    assert store.beat("g1", 0) == []
    first = seen(store).beat
    store.beat("g2", 0)
    assert seen(store).beat == first
    store.beat("g1", 0)
    assert seen(store).beat not in {first, None}
    store.farewell("g1")
    assert seen(store).beat is None
    store.farewell("nobody")


def what_others_wait_for_is_told_to_its_owner(store: KeyStore) -> None:
    one(store, NAME, claim("e1", "g1"))
    assert store.wanted("g1") == []
    one(store, NAME, claim("e2", "g2"))
    assert store.wanted("g1") == [(NAME, "e1")]
    assert store.wanted("g2") == []
    forget = partial(POLICY.forget_answer, execution="e1")
    one(store, NAME, finish(pieces=(), total=2))
    one(store, NAME, lambda record, _: forget(record))
    assert store.wanted("g1") == []


def what_expired_is_due_and_goes_with_its_pieces(store: KeyStore) -> None:
    one(store, NAME, claim())
    one(store, NAME, finish())
    one(store, OTHER, claim("e2"))
    assert store.due(NOW + 1, 10) == []
    late = NOW + POLICY.config.ttl_s + 1
    assert set(store.due(late, 10)) == {NAME, OTHER}
    assert len(store.due(late, 1)) == 1
    one(store, NAME, lambda record, _: POLICY.expire(record, late))
    assert seen(store).record is None
    assert NAME not in store.due(late, 10)
    assert "team" not in store.usage()
    one(store, NAME, claim("e3"))
    assert seen(store, execution="e3").pieces == ()


def a_purge_takes_all_and_is_heard_of(store: KeyStore) -> None:
    one(store, NAME, claim())
    one(store, NAME, finish())
    assert store.purge("team") == 1
    assert seen(store).record is None
    assert store.usage() == {}
    ((number, tenant),) = store.beat("g1", 0)
    assert tenant == "team"
    assert store.beat("g1", number) == []
    assert one(store, NAME, claim("e2")).outcome is KeyOutcome.EXECUTE
    assert seen(store, execution="e2").pieces == ()


def what_was_written_is_there_for_the_next(opened: Opened) -> None:
    store = opened()
    one(store, NAME, claim())
    one(store, NAME, finish())
    before = seen(store)
    store.close()
    again = opened()
    assert seen(again) == before
    assert again.usage() == {"team": KeyUsage(1, 2, 1, 2)}
    again.close()


def of_many_claims_at_once_one_wins(opened: Opened) -> None:
    """Eight gateways claim the same twenty keys at the same time, each key several times."""
    names = [KeyName(f"t{i % 4}", f"k{i}") for i in range(20)]
    won: list[tuple[KeyName, str]] = []
    failed: list[Exception] = []
    begin = threading.Barrier(8)

    def gateway(number: int) -> None:
        store = opened()
        try:
            begin.wait(30)
            for turn in range(2):
                order = names if (number + turn) % 2 else names[::-1]
                executions = [f"{number}-{turn}-{i}" for i in range(20)]
                changes = [
                    KeyChange(name, claim(execution, f"g{number}"))
                    for name, execution in zip(order, executions, strict=True)
                ]
                told = zip(changes, executions, store.update(changes), strict=True)
                won.extend((c.name, e) for c, e, r in told if r.outcome is KeyOutcome.EXECUTE)
        except Exception as error:  # noqa: BLE001 whatever it is, the test says so
            failed.append(error)
        finally:
            store.close()

    threads = [threading.Thread(target=gateway, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert sorted(name.digest for name, _ in won) == sorted(name.digest for name in names)
    store = opened()
    records = [seen(store, name, execution).record for name, execution in won]
    assert [r.execution for r in records if r] == [execution for _, execution in won]
    assert {r.state for r in records if r} == {KeyState.EXECUTING}
    assert sum(held.keys for held in store.usage().values()) == 20
    store.close()


OF_ONE_STORE = (
    a_new_store_is_empty,
    the_first_claim_wins_and_further_ones_join,
    tenants_do_not_see_each_other,
    pieces_come_in_order_and_from_where_they_are_asked,
    another_execution_has_none_of_the_old_pieces,
    a_full_tenant_is_refused_and_others_are_not,
    beats_count_up_and_end_with_the_farewell,
    what_others_wait_for_is_told_to_its_owner,
    what_expired_is_due_and_goes_with_its_pieces,
    a_purge_takes_all_and_is_heard_of,
)
OF_SEVERAL = (what_was_written_is_there_for_the_next, of_many_claims_at_once_one_wins)
