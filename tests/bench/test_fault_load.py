"""Chats of the fault benchmarks, streamed or in one piece, against a stand-in on loopback."""

import asyncio

import pytest

from holdfast.testing.standin import Options, StandIn, fault

TOKENS = 12


@pytest.fixture
def load(bench):
    return bench("fault_load")


def asked(load, *, stream, ailment=None):
    """A few requests to a stand-in, which may be ill; what became of them."""

    async def run():
        replica = await StandIn(Options(ttft_ms=0.0, tpot_ms=0.0, tokens=TOKENS)).start()
        try:
            if ailment is not None:
                replica.set_fault(ailment)
            clients = load.Load("127.0.0.1", replica.port, keep_alive=True)
            begin = asyncio.get_running_loop().time()
            how = {"lengths": load.short_prompts, "tokens": TOKENS, "stream": stream}
            await clients.run(load.poisson(1, 200.0, begin, 0.05, **how))
            await clients.settle(20.0)
            return clients.shots
        finally:
            await replica.stop()

    shots = asyncio.run(run())
    assert shots
    return shots


@pytest.mark.parametrize("stream", [True, False])
def test_a_well_replica_harms_nobody_in_either_shape(load, stream):
    shots = asked(load, stream=stream)
    assert [shot.harm(late_s=60.0) for shot in shots] == [""] * len(shots)
    assert load.summary(shots, late_s=60.0)["silently_short"] == 0


@pytest.mark.parametrize("stream", [True, False])
def test_wrong_words_are_harm_in_either_shape(load, stream):
    shots = asked(load, stream=stream, ailment=fault("wrong_output"))
    assert {shot.harm(late_s=60.0) for shot in shots} == {"wrong text"}
    assert not any(shot.silently_short() for shot in shots)


@pytest.mark.parametrize("stream", [True, False])
def test_an_error_is_harm_and_no_silence(load, stream):
    shots = asked(load, stream=stream, ailment=fault("status", code=500, instant=True))
    assert {shot.harm() for shot in shots} == {"status 500"}
    assert not any(shot.silently_short() for shot in shots)


def test_a_stream_that_ends_early_in_good_order_is_short_without_saying_so(load):
    shots = asked(load, stream=True, ailment=fault("close", tokens=4))
    assert {shot.harm() for shot in shots} == {"missing text"}
    assert load.summary(shots)["silently_short"] == len(shots)


def test_a_stream_that_breaks_off_has_said_so(load):
    shots = asked(load, stream=True, ailment=fault("cut", tokens=4))
    assert all(shot.harm() for shot in shots)
    assert not any(shot.silently_short() for shot in shots)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"id": "a", "choices": []}', b'{"id": 1}'])
def test_a_whole_answer_that_cannot_be_read_is_harm(load, body):
    shot = load.Shot(0.0, "m", "hello", TOKENS, stream=False)
    shot.status = 200
    shot.read_whole(body, 1.0)
    assert shot.harm() == "malformed"


def test_an_error_in_a_whole_answer_is_harm(load):
    shot = load.Shot(0.0, "m", "hello", TOKENS, stream=False)
    shot.status = 200
    shot.read_whole(b'{"error": {"message": "no"}}', 1.0)
    assert shot.harm() == "error event"
