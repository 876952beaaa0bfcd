"""What the long prompts at a replica explain, by the tenants that sent them."""

from random import Random

import pytest

from holdfast.core.failure import Kind, Outcome
from holdfast.core.messages import ReplicaView
from holdfast.core.request.active_request import ActiveRequest
from holdfast.core.request.lane import Lane, LaneConfig
from holdfast.core.request.prompts.long_prompts import LONG_TOKENS
from holdfast.core.types import SECOND, Replica, Request, State

NOW = 1_000 * SECOND


class Books:
    """One lane with three replicas, and the attempts that wait there."""

    def __init__(self) -> None:
        self.lane = Lane("m", LaneConfig(routing="round_robin"), {}, Random)
        views = [ReplicaView(Replica(n, "m", slots=99), State.READY, 1.0) for n in ("r1", "r2")]
        self.lane.pool.apply(views, 0)
        self.now = NOW
        self.number = 0

    def send(self, tenant: str, tokens: int, name: str = "r1", **more):
        self.number += 1
        size = {"prompt_tokens": tokens, "tenant": tenant, **more}
        active = ActiveRequest(Request(self.number, "m", self.now, **size), "m", NOW + 600 * SECOND)
        return active, self.lane.open(active, self.lane.pool.candidates[name], self.now)

    def first(self, sent) -> None:
        self.lane.first_content(*sent, self.now)

    def end(self, sent, kind: Kind = Kind.CLIENT_GONE) -> None:
        self.lane.close(*sent, Outcome.CANCELLED, kind, self.now)

    def told(self, name: str = "r1") -> tuple[int, float | None]:
        """The tokens that wait, and the seconds that they explain."""
        self.lane.settle(self.now)
        tally = next(one for one in self.lane.tallies() if one.replica_id == name)
        return tally.unread, tally.explained_s


def test_a_prompt_explains_a_millisecond_a_token_until_its_first_token():
    books = Books()
    books.send("a", LONG_TOKENS - 1)
    assert books.told() == (0, None)
    sent = books.send("a", 100_000)
    assert books.told() == (100_000, 100.0)
    books.first(sent)
    assert books.told() == (0, None)
    books.end(sent)
    assert books.told() == (0, None)


@pytest.mark.parametrize("whole", [True, False])
def test_of_one_tenant_the_largest_counts_and_of_several_each(whole):
    books = Books()
    sent = [books.send("a", tokens, whole=whole) for tokens in (50_000, 100_000, 9_000, 80_000)]
    assert books.told() == (239_000, 100.0)
    books.send("b", 20_000)
    books.send("c", 10_000, "r2")
    assert books.told() == (259_000, 120.0)
    assert books.told("r2") == (10_000, 10.0)
    books.end(sent[1])
    assert books.told() == (159_000, 100.0)


def test_a_tenant_with_prompts_at_a_replica_that_hung_is_not_believed_for_ten_minutes():
    books = Books()
    books.send("a", 100_000)
    books.send("b", 20_000, "r2")
    books.lane.long_prompts.refute("r1", books.now)
    assert books.told() == (100_000, 0.0)
    books.send("a", 100_000, "r2")
    assert books.told("r2") == (120_000, 20.0)  # its neighbour's word is as good as before
    books.now += 599 * SECOND
    assert books.told() == (100_000, 0.0)
    books.now += 2 * SECOND
    assert books.told() == (100_000, 100.0)


def test_the_tenants_that_are_doubted_are_bounded():
    books = Books()
    for number in range(1_100):
        sent = books.send(f"t{number}", 10_000)
        books.lane.long_prompts.refute("r1", books.now)
        books.end(sent)
    books.send("t0", 10_000)  # the oldest is forgotten
    assert books.told()[1] == 10.0
    books.send("t1099", 90_000)
    assert books.told()[1] == 10.0


def test_first_tokens_of_streams_teach_how_long_a_prompt_explains():
    books = Books()
    for _ in range(200):
        sent = books.send("a", 10_000)
        books.now += SECOND // 2  # 20,000 tokens/s
        books.first(sent)
        books.end(sent)
    books.now += 11 * SECOND
    books.send("a", 100_000)
    assert books.told() == (100_000, 50.0)


def test_answers_in_one_piece_teach_nothing_of_prompts():
    books = Books()
    for _ in range(200):
        sent = books.send("a", 10_000, whole=True)
        books.now += 100 * SECOND
        books.first(sent)
        books.end(sent)
    books.now += 11 * SECOND
    books.send("a", 100_000)
    assert books.told() == (100_000, 100.0)
