from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.request.admission.quota import Quota, QuotaConfig, Reservation
from holdfast.core.request.lease import LeaseConfig, Shares, Trials
from holdfast.core.types import MILLISECOND, SECOND, ConfigError, nanos
from sampling import examples

GATEWAYS = ("0", "1", "2", "3")
ROUND = 100 * MILLISECOND
REPLICA = ("m", "m-1")


def shares_of_four(**config):
    shares = Shares(LeaseConfig(**config), GATEWAYS, 0)
    shares.declare(["acme"], 0)
    for gateway in GATEWAYS:
        shares.came(gateway)
    return shares


def lent(shares, good="acme"):
    return {gateway: shares.of(gateway)[good] for gateway in GATEWAYS}


# --- shares --------------------------------------------------------------------------------------


def test_before_any_demand_everybody_has_the_same():
    shares = shares_of_four()
    assert not shares.rebalance(ROUND)
    assert lent(shares) == dict.fromkeys(GATEWAYS, 0.25)


def test_a_single_client_gets_nearly_the_whole_quota_within_three_rounds():
    shares = shares_of_four()
    for look in range(1, 4):
        shares.demanded("2", "acme", 5, look * ROUND)
        shares.rebalance(look * ROUND)
    assert lent(shares)["2"] == pytest.approx(0.94)
    assert sum(lent(shares).values()) == pytest.approx(1)


def test_a_loss_is_told_one_round_before_the_gain():
    shares = shares_of_four()
    shares.demanded("0", "acme", 5, ROUND)
    assert shares.rebalance(ROUND)
    assert lent(shares)["0"] == 0.25
    assert lent(shares)["1"] == pytest.approx(0.02, abs=0.001)
    assert shares.rebalance(2 * ROUND)
    assert lent(shares)["0"] == pytest.approx(0.94, abs=0.001)


def test_shares_follow_the_demand_in_proportion():
    shares = shares_of_four()
    for look in range(1, 20):
        shares.demanded("0", "acme", 30, look * ROUND)
        shares.demanded("1", "acme", 10, look * ROUND)
        shares.rebalance(look * ROUND)
    settled = lent(shares)
    assert settled["0"] == pytest.approx(0.02 + 0.92 * 0.75, abs=0.01)
    assert settled["1"] == pytest.approx(0.02 + 0.92 * 0.25, abs=0.01)
    assert settled["2"] == settled["3"] == pytest.approx(0.02)


def test_small_moves_are_not_worth_a_frame():
    shares = shares_of_four()
    moves = 0
    for look in range(1, 100):
        for gateway in GATEWAYS:
            shares.demanded(gateway, "acme", 10 + (look % 2), look * ROUND)
        moves += shares.rebalance(look * ROUND)
    assert moves == 0


def test_a_tenant_that_comes_rarely_is_remembered_where_it_came():
    shares = shares_of_four()
    for look in range(1, 300):
        if look % 100 == 1:  # every ten seconds
            shares.demanded("3", "acme", 1, look * ROUND)
        shares.rebalance(look * ROUND)
    assert lent(shares)["3"] > 0.9


def test_long_after_the_last_request_everybody_has_the_same_again():
    shares = shares_of_four()
    shares.demanded("3", "acme", 10, ROUND)
    for look in range(1, 10):
        shares.rebalance(look * ROUND)
    hours = 3_600 * SECOND
    shares.rebalance(hours)
    shares.rebalance(hours + ROUND)
    assert lent(shares)["0"] == pytest.approx(0.25, abs=0.001)


def test_the_share_of_a_gateway_that_died_goes_to_the_others_after_the_hold():
    shares = shares_of_four()
    now = 0
    for look in range(1, 6):
        now = look * ROUND
        for gateway in ("0", "1"):
            shares.demanded(gateway, "acme", 10, now)
        shares.rebalance(now)
    held = lent(shares)["1"]
    shares.went("1", now)
    died = now
    while now < died + nanos(1.9):
        now += ROUND
        shares.demanded("0", "acme", 10, now)
        shares.rebalance(now)
    assert lent(shares)["1"] == held
    for _ in range(5):
        now += ROUND
        shares.demanded("0", "acme", 10, now)
        shares.rebalance(now)
    assert lent(shares)["1"] == pytest.approx(0.02)
    assert lent(shares)["0"] == pytest.approx(0.94)
    shares.came("1")
    assert lent(shares)["1"] > 0  # its successor can serve at once


def test_with_nobody_there_the_shares_stay():
    shares = shares_of_four()
    for gateway in GATEWAYS:
        shares.went(gateway, 0)
    shares.went("a stranger", 0)
    assert not shares.rebalance(60 * SECOND)


def test_one_gateway_has_everything():
    shares = Shares(LeaseConfig(), ["0"], 0)
    shares.declare(["acme"], 0)
    shares.came("0")
    shares.demanded("0", "acme", 7, ROUND)
    assert not shares.rebalance(ROUND)
    assert shares.of("0") == {"acme": pytest.approx(1)}


def test_what_was_not_declared_is_ignored_and_what_is_declared_again_keeps_its_shares():
    shares = shares_of_four()
    shares.demanded("0", "stranger", 5, ROUND)
    shares.demanded("stranger", "acme", 5, ROUND)
    assert not shares.rebalance(ROUND)
    shares.demanded("0", "acme", 5, ROUND)
    shares.rebalance(ROUND)
    shares.rebalance(2 * ROUND)
    before = lent(shares)
    shares.declare(["acme", "other"], 2 * ROUND)
    assert lent(shares) == before
    assert lent(shares, "other") == dict.fromkeys(GATEWAYS, 0.25)
    shares.declare(["other"], 2 * ROUND)
    assert shares.of("0") == {"other": 0.25}


def test_what_a_gateway_holds_stays_with_it_whatever_the_others_ask_for():
    shares = shares_of_four()
    shares.holds("0", "acme", 0.75)
    shares.holds("a stranger", "acme", 1.0)
    shares.holds("0", "stranger", 1.0)
    for look in range(1, 20):
        shares.demanded("1", "acme", 1_000, look * ROUND)
        shares.rebalance(look * ROUND)
        assert sum(lent(shares).values()) <= 1 + 1e-9
    assert lent(shares)["0"] >= 0.75
    assert lent(shares)["1"] == pytest.approx(0.25, abs=0.1)
    shares.holds("0", "acme", 0.0)  # its requests ended
    for look in range(20, 40):
        shares.demanded("1", "acme", 1_000, look * ROUND)
        shares.rebalance(look * ROUND)
    assert lent(shares)["1"] == pytest.approx(0.94, abs=0.01)


def test_more_held_than_there_is_is_divided_and_ends_with_its_process():
    shares = shares_of_four()
    for gateway in ("0", "1"):
        shares.holds(gateway, "acme", 1.0)
    for look in range(1, 10):
        shares.rebalance(look * ROUND)
    assert lent(shares)["0"] == pytest.approx(0.5)
    assert sum(lent(shares).values()) == pytest.approx(1)
    shares.came("0")  # another process in its place
    for look in range(10, 20):
        shares.rebalance(look * ROUND)
    assert lent(shares)["1"] == pytest.approx(1)


@given(data=st.data())
@settings(max_examples=examples(100))
def test_requests_at_once_over_all_gateways_keep_their_bound(data):
    """Each gateway begins and ends requests by its lease, and reports every round."""
    limit = data.draw(st.integers(1, 20))
    shares = shares_of_four()
    quotas = {gateway: Quota(QuotaConfig(requests_at_once=limit)) for gateway in GATEWAYS}
    running = {gateway: [] for gateway in GATEWAYS}
    for gateway, quota in quotas.items():
        quota.lease(shares.of(gateway)["acme"])
    for look in range(1, 30):
        for gateway in GATEWAYS:
            ends = data.draw(st.integers(0, len(running[gateway])))
            for _ in range(ends):
                quotas[gateway].settle(running[gateway].pop(), 0)
            asks = data.draw(st.sampled_from([0, 0, 1, 30]))
            got = [quotas[gateway].reserve(1, 1, look * ROUND) for _ in range(asks)]
            running[gateway] += [one for one in got if isinstance(one, Reservation)]
            shares.demanded(gateway, "acme", asks, look * ROUND)
            shares.holds(gateway, "acme", quotas[gateway].running / limit)
        shares.rebalance(look * ROUND)
        for gateway, quota in quotas.items():
            quota.lease(shares.of(gateway)["acme"])
        assert sum(map(len, running.values())) <= limit + len(GATEWAYS) - 1


def test_many_gateways_do_not_eat_the_whole_with_their_floors():
    names = [str(number) for number in range(100)]
    shares = Shares(LeaseConfig(), names, 0)
    shares.declare(["acme"], 0)
    for name in names:
        shares.came(name)
    for look in range(1, 5):
        shares.demanded("7", "acme", 10, look * ROUND)
        shares.rebalance(look * ROUND)
    assert shares.of("7")["acme"] > 0.7


class Bucket:
    """A tenant's bucket at one gateway, which has a share of its rate and of its burst."""

    def __init__(self, rate, burst, share):
        self.rate, self.burst, self.share = rate, burst, share
        self.level, self.seen = burst * share, 0

    def take(self, now):
        self.fill(now)
        if self.level < 1:
            return False
        self.level -= 1
        return True

    def fill(self, now):
        grown = self.level + (now - self.seen) / SECOND * self.rate * self.share
        self.level, self.seen = min(grown, self.burst * self.share), now

    def lend(self, share, now):
        self.fill(now)
        self.share = share
        self.level = min(self.level, self.burst * share)


def simulate(choose, *, seconds_long, delay_max, rate=200.0, burst=20.0, seed=1):
    """Four gateways, one tenant asking for more than it has; what it got in all."""
    rng, step = Random(seed), 5 * MILLISECOND
    shares = shares_of_four()
    buckets = {gateway: Bucket(rate, burst, 0.25) for gateway in GATEWAYS}
    post: list[tuple[int, str, float]] = []
    asked = dict.fromkeys(GATEWAYS, 0)
    got = late = 0
    for now in range(0, seconds_long * SECOND, step):
        due = [letter for letter in post if letter[0] <= now]
        post = [letter for letter in post if letter[0] > now]
        for _, gateway, share in due:
            buckets[gateway].lend(share, now)
        gateway = choose(now, rng)
        for _ in range(4):  # 800 a second, four times the quota
            asked[gateway] += 1
            served = buckets[gateway].take(now)
            got += served
            late += served and now > seconds_long * SECOND // 2
        if now % ROUND == 0:
            for name, amount in asked.items():
                shares.demanded(name, "acme", amount, now)
                asked[name] = 0
            if shares.rebalance(now):
                post += [(now + rng.randrange(delay_max), g, lent(shares)[g]) for g in GATEWAYS]
            assert sum(lent(shares).values()) <= 1 + 1e-6
    return got, late


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("stay_s", [0.005, 0.3, 1.0, 100.0])
def test_a_tenant_never_gets_more_than_its_quota_from_four_gateways(stay_s, seed):
    def wander(now, rng):
        return GATEWAYS[now // nanos(stay_s) % 4]

    got, _ = simulate(wander, seconds_long=10, delay_max=ROUND // 2, seed=seed)
    assert got <= 20 + 200 * 10


def test_a_single_keep_alive_client_gets_nine_tenths_of_its_quota():
    _, late = simulate(lambda now, rng: "2", seconds_long=10, delay_max=ROUND // 2)
    assert late >= 0.9 * 200 * 5


def test_frames_that_come_late_cost_no_more_than_stated():
    delay = 5 * ROUND

    def wander(now, rng):
        return GATEWAYS[now // SECOND % 4]

    got, _ = simulate(wander, seconds_long=10, delay_max=delay)
    moves = 10
    assert got <= 20 + 200 * 10 + moves * 200 * (delay - ROUND) / SECOND


# --- trials --------------------------------------------------------------------------------------


def wants(trials, gateway, now, key=REPLICA):
    return trials.told(gateway, [key], [], now)


def test_the_first_who_asks_holds_the_trial_alone():
    trials = Trials(LeaseConfig())
    assert wants(trials, "0", 0)
    assert not wants(trials, "1", 1)
    assert trials.held_by("0") == (REPLICA,)
    assert trials.held_by("1") == ()


def test_the_trial_passes_on_when_it_is_over():
    trials = Trials(LeaseConfig())
    wants(trials, "0", 0)
    wants(trials, "1", 1)
    assert trials.told("0", [], [], 2)
    assert trials.held_by("0") == ()
    assert trials.held_by("1") == (REPLICA,)


def test_a_turn_that_is_not_used_passes_on_one_round_after_it_was_taken_back():
    trials = Trials(LeaseConfig())
    wants(trials, "0", 0)
    wants(trials, "1", 1)
    assert not trials.expire(2 * SECOND - 1)
    assert trials.expire(2 * SECOND)
    assert trials.held_by("0") == trials.held_by("1") == ()
    assert not trials.expire(2 * SECOND + ROUND - 1)
    assert trials.expire(2 * SECOND + ROUND)
    assert trials.held_by("1") == (REPLICA,)
    trials.expire(5 * SECOND)
    trials.expire(5 * SECOND + ROUND)
    assert trials.held_by("0") == (REPLICA,)  # it still wanted it


def test_nobody_cuts_short_a_trial_that_runs():
    trials = Trials(LeaseConfig())
    wants(trials, "0", 0)
    wants(trials, "1", 0)
    for second in range(1, 60):
        trials.told("0", [], [REPLICA], second * SECOND)
        trials.expire(second * SECOND + 1)
    assert trials.held_by("0") == (REPLICA,)
    trials.expire(62 * SECOND)  # it has fallen silent
    trials.expire(63 * SECOND)
    assert trials.held_by("1") == (REPLICA,)


def test_alone_it_keeps_its_turn():
    trials = Trials(LeaseConfig())
    wants(trials, "0", 0)
    assert not trials.expire(60 * SECOND)
    assert trials.held_by("0") == (REPLICA,)


def test_who_waits_may_stop_waiting():
    trials = Trials(LeaseConfig())
    for gateway in ("0", "1", "2"):
        wants(trials, gateway, 0)
    assert not trials.told("1", [], [], 1)
    trials.told("0", [], [], 1)
    assert trials.held_by("2") == (REPLICA,)
    trials.told("2", [], [], 1)
    assert not any(trials.held_by(gateway) for gateway in GATEWAYS)


def test_a_gateway_that_went_keeps_its_lease_until_it_runs_out():
    trials = Trials(LeaseConfig())
    for gateway in ("0", "1", "2"):
        wants(trials, gateway, 0)
    trials.went("0", 0)
    trials.went("1", 0)
    trials.expire(SECOND)
    assert trials.held_by("2") == ()
    trials.expire(2 * SECOND)
    trials.expire(3 * SECOND)
    assert trials.held_by("2") == (REPLICA,)


def test_trials_of_two_replicas_do_not_meet():
    trials = Trials(LeaseConfig())
    other = ("m", "m-2")
    wants(trials, "0", 0)
    wants(trials, "1", 0, other)
    assert trials.held_by("0") == (REPLICA,)
    assert trials.held_by("1") == (other,)


def test_there_are_only_so_many_trials():
    trials = Trials(LeaseConfig(wanting_max=1))
    assert trials.told("0", [REPLICA, ("m", "m-2")], [], 0)
    assert trials.refused == 1
    assert trials.held_by("0") == (REPLICA,)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_at_most_one_gateway_holds_a_trial(seed):
    rng, trials, now = Random(seed), Trials(LeaseConfig()), 0
    held, lost_at, holder = 0, -SECOND, ""
    for _ in range(500):
        now += rng.randrange(SECOND)
        gateway = rng.choice(GATEWAYS)
        does = rng.choice(["want", "want", "run", "content", "went", "expire"])
        gave_up = does == "content" and gateway == holder
        if does == "went":
            trials.went(gateway, now)
        elif does == "expire":
            trials.expire(now)
        else:
            running = [REPLICA] if does == "run" else []
            trials.told(gateway, [] if does == "content" else [REPLICA], running, now)
        holders = [name for name in GATEWAYS if trials.held_by(name)]
        assert len(holders) <= 1
        follower = holders[0] if holders else ""
        if follower != holder:
            if holder and not gave_up:
                lost_at = now
            if follower and not gave_up:
                assert now - lost_at >= ROUND
        holder = follower
        held += len(holders)
    assert held > 100


@pytest.mark.parametrize(
    "wrong",
    [{"round_s": 0}, {"floor": 0.5}, {"step_min": 0}, {"long_s": 0.1}, {"wanting_max": 0}],
)
def test_a_config_that_cannot_work_is_refused(wrong):
    with pytest.raises(ConfigError, match="lease"):
        LeaseConfig(**wrong)
