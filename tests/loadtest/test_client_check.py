"""The client judges itself: what must be refused, and what must not."""

import resource

import pytest

from holdfast.core.types import ConfigError
from holdfast.loadtest.client_check import ClientLimits, descriptors_for, why_refused
from holdfast.loadtest.records import BenchRecord, ClientState

LIMITS = ClientLimits()


def records(ttft_s):
    return [BenchRecord(step=0, arrived_s=float(i), first_s=i + ttft_s) for i in range(10)]


def judged(ttft_s=0.05, **state):
    return why_refused(ClientState(**state), LIMITS, records(ttft_s), 200.0, "requests/s")


def test_a_client_with_room_reports():
    assert not judged(cpu_share=0.85, late_p99_s=0.009, sent_late_p99_s=0.009)


def test_a_client_at_the_end_of_its_core_says_which_rate_it_carries():
    told = judged(cpu_share=1.0)
    assert "100% of its core" in told
    assert "about 180 requests/s" in told  # nine tenths of what took all of it


@pytest.mark.parametrize("state", [{"late_p99_s": 0.02}, {"sent_late_p99_s": 0.02}])
def test_a_late_client_is_refused_and_says_what_it_carries(state):
    told = judged(**state)
    assert "20 ms late at its p99, of 10 ms allowed" in told
    assert "less than 100 requests/s" in told


def test_what_others_took_of_the_core_is_their_fault():
    assert "other processes had its core 30%" in judged(late_p99_s=0.02, waited_share=0.3)


def test_slow_engines_forgive_more_lateness():
    assert judged(ttft_s=0.05, late_p99_s=0.05)
    assert not judged(ttft_s=2.0, late_p99_s=0.05)  # a fortieth of the first token


def test_requests_that_were_not_sent_are_never_forgiven():
    assert "3 requests were not sent" in judged(unsent=3)


def test_more_streams_than_files_may_be_open_are_refused_with_the_number():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        pytest.skip("files are unlimited here")
    told = descriptors_for(hard + 1)
    assert f"this process may open {hard:,}" in told
    assert f"use at most {hard - 64:,}" in told
    assert not descriptors_for(10)


@pytest.mark.parametrize(
    "field",
    [{"cpu_share_max": 0}, {"late_s_max": 0}, {"late_share_max": 1}, {"streams_max": 0}],
)
def test_limits_without_a_meaning_are_refused(field):
    with pytest.raises(ConfigError, match="use"):
        ClientLimits(**field)
