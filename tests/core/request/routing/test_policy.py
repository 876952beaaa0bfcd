"""What holds for every policy, whatever it prefers."""

import heapq
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.request.breaker import Breaker, BreakerConfig
from holdfast.core.request.candidate import Candidate
from holdfast.core.request.routing import POLICIES, RoutingPolicy, build
from holdfast.core.request.routing.policy import may_take
from holdfast.core.stats import PeakEwma
from holdfast.core.types import Replica, Request
from sampling import examples

# Every policy, the variants that take another path, and one nest of wrappers.
VARIANTS = {
    **{name: (name, {}) for name in POLICIES},
    "zone_preference": ("zone_preference", {"zone": "zone-a"}),
    "zone_preference, eager": (
        "zone_preference",
        {"zone": "zone-a", "slack": 0, "spill_factor": 1},
    ),
    "zone_preference of round_robin": (
        "zone_preference",
        {"zone": "zone-a", "inner": "round_robin"},
    ),
    "length_classes of round_robin": (
        "length_classes",
        {"long_tokens": 50, "inner": "round_robin"},
    ),
    "power_of_two by inflight": ("power_of_two", {"by": "inflight"}),
    "power_of_three": ("power_of_two", {"choices": 3}),
    "token_work of all": ("token_work", {"look_at": "all"}),
    "prefix_affinity, tight": ("prefix_affinity", {"slack": 0, "load_factor": 1.0}),
    "session_affinity of weighted": ("session_affinity", {"slack": 0, "inner": "weighted"}),
    "a nest": (
        "zone_preference",
        {"zone": "zone-b", "inner": {"name": "prefix_affinity", "inner": "least_loaded"}},
    ),
}
every_policy = pytest.mark.parametrize("variant", VARIANTS)


def policy_of(variant: str, seed: int = 1) -> RoutingPolicy:
    name, config = VARIANTS[variant]
    return build(name, Random(seed), **config)


def candidate(name: str, zone: str = "zone-a", weight: float = 1.0) -> Candidate:
    replica = Replica(name, "model", zone=zone)
    made = Candidate(replica, Breaker(BreakerConfig(), Random(0)), PeakEwma())
    made.weight = weight
    return made


def request(rng: Random) -> Request:
    conversation = rng.randrange(200)
    return Request(
        0,
        "model",
        arrived=0,
        prompt_tokens=rng.randrange(100),
        prefix=(1, conversation + 2),
        session=f"session {conversation}",
    )


@st.composite
def crowds(draw):
    crowd = []
    for index in range(draw(st.integers(0, 10))):
        zone = draw(st.sampled_from(["zone-a", "zone-b", "zone-c"]))
        made = candidate(f"replica {index}", zone, draw(st.floats(1e-6, 1e6)))
        made.limit = draw(st.integers(0, 3))
        made.inflight = draw(st.integers(0, 3))
        made.reported_tokens = draw(st.none() | st.integers(0, 10_000))
        made.latency.value = draw(st.none() | st.floats(0, 1e12))
        crowd.append(made)
    return crowd


steps = st.lists(
    st.tuples(
        st.integers(0, 1023),  # bit mask: who is in the list
        st.integers(0, 1023),  # bit mask: who was tried
        st.builds(
            Request,
            st.just(0),
            st.just("model"),
            arrived=st.just(0),
            prompt_tokens=st.integers(0, 100),
            prefix=st.lists(st.integers(0, 3), max_size=4).map(tuple),
            session=st.sampled_from(["", "one", "two"]),
        ),
        st.integers(1, 4),  # choices made with this list
    ),
    max_size=6,
)


@every_policy
@settings(max_examples=examples(25))
@given(crowd=crowds(), script=steps, seed=st.integers(0, 99))
def test_it_returns_an_eligible_candidate_or_none_iff_there_is_none(variant, crowd, script, seed):
    policy = policy_of(variant, seed)
    for members, tried_mask, wanted, times in script:
        listed = [c for index, c in enumerate(crowd) if members >> index & 1]
        tried = tuple(c.id for index, c in enumerate(crowd) if tried_mask >> index & 1)
        for _ in range(times):
            eligible = [c for c in listed if may_take(c, tried)]
            choice = policy.choose(wanted, listed, tried, now=0)
            if choice is None:
                assert not eligible
            else:
                chosen, reason = choice
                assert chosen in eligible
                assert reason
                chosen.inflight += 1


@every_policy
def test_the_same_seed_makes_the_same_choices(variant):
    def run() -> list[tuple[str, str]]:
        policy = policy_of(variant, seed=5)
        pool = [candidate(f"r{index}", f"zone-{'ab'[index % 2]}") for index in range(9)]
        draw = Random(6)
        seen = []
        for _ in range(300):
            choice = policy.choose(request(draw), pool, (), now=0)
            assert choice is not None
            choice[0].inflight = draw.randrange(5)
            seen.append((choice[0].id, choice[1]))
        return seen

    assert run() == run()


@every_policy
def test_a_suspect_gets_less_than_half_its_fair_share(variant):
    """Weight 0.1 among eight, some two requests in flight on each of the others."""
    policy = policy_of(variant)
    pool = [candidate(f"r{index}", f"zone-{'ab'[index % 2]}") for index in range(8)]
    suspect = pool[3]
    suspect.weight = 0.1
    draw = Random(7)
    leaving: list[tuple[float, int, Candidate, int]] = []
    count = 0
    for turn in range(2000):
        while leaving and leaving[0][0] <= turn:
            _, _, done, tokens = heapq.heappop(leaving)
            done.inflight -= 1
            done.own_tokens -= tokens
        wanted = request(draw)
        choice = policy.choose(wanted, pool, (), now=turn)
        assert choice is not None
        chosen = choice[0]
        chosen.inflight += 1
        chosen.own_tokens += wanted.prompt_tokens
        heapq.heappush(
            leaving, (turn + draw.expovariate(1 / 16), turn, chosen, wanted.prompt_tokens)
        )
        count += chosen is suspect
    assert count < 2000 / 8 / 2


@every_policy
def test_a_policy_bears_the_name_it_is_built_by(variant):
    assert policy_of(variant).name == VARIANTS[variant][0]


def test_may_take_wants_room_and_no_earlier_try():
    one = candidate("one")
    one.limit = 1
    assert may_take(one, ())
    assert not may_take(one, ("one",))
    one.inflight = 1
    assert not may_take(one, ())
