"""Sockets that outlive the processes which listen at them."""

import contextlib
import socket

import pytest
from wire_stage import connect, port_of

from holdfast.config.fleet_file import Address
from holdfast.wire.sockets import (
    AddressTakenError,
    close_steered,
    listeners_beside,
    steer_around,
    steer_away,
    stop_steering,
)


def accepted(sockets):
    """How many connections wait at each socket."""
    counts = []
    for sock in sockets:
        sock.setblocking(False)
        count = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sock.accept()[0].close()
                count += 1
        counts.append(count)
    return counts


def test_all_sockets_of_a_port_get_connections(listeners):
    sockets = listeners(number=4)
    assert len({sock.getsockname() for sock in sockets}) == 1
    clients = [connect(port_of(sockets)) for _ in range(100)]
    assert all(accepted(sockets))
    for client in clients:
        client.close()


def test_a_port_that_is_in_use_is_refused_unless_it_is_taken_over(listeners):
    first = listeners()
    address = Address("127.0.0.1", port_of(first))
    with pytest.raises(AddressTakenError, match=r"127\.0\.0\.1:\d+ is in use.*--takeover"):
        listeners(address, 2)
    assert port_of(listeners(address, takeover=True)) == address.port


def test_a_stranger_without_the_option_cannot_be_taken_over(listeners):
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        with pytest.raises(AddressTakenError):
            listeners(Address("127.0.0.1", stranger.getsockname()[1]), takeover=True)


def test_a_successor_gets_nothing_before_it_listens_and_everything_when_it_is_steered_to(listeners):
    old = listeners(number=3)
    address = Address("127.0.0.1", port_of(old))
    new = listeners(address, 2, takeover=True)
    assert not steer_away(old)  # there is nobody to steer to
    clients = [connect(address.port) for _ in range(30)]
    assert sum(accepted(old)) == 30
    for sock in new:
        sock.listen(100)
    assert listeners_beside(old) == 2
    assert steer_away(old)
    clients += [connect(address.port) for _ in range(60)]
    assert accepted(old) == [0, 0, 0]
    taken = accepted(new)
    assert sum(taken) == 60
    assert all(taken)
    close_steered(old)
    assert listeners_beside(new) == 0
    stop_steering(new)
    stop_steering(new)  # there is nothing left: harmless
    clients += [connect(address.port) for _ in range(60)]
    assert all(accepted(new))
    for client in clients:
        client.close()


@pytest.mark.parametrize("avoided", [{0}, {1}, {3}, {0, 2}, {0, 1, 2}])
def test_new_connections_are_led_past_sockets_at_which_nobody_accepts(listeners, avoided):
    sockets = listeners(number=4)
    assert steer_around(sockets, avoided)
    clients = [connect(port_of(sockets)) for _ in range(80)]
    counts = accepted(sockets)
    assert {place for place, count in enumerate(counts) if not count} == avoided
    for everybody in (set(), {0, 1, 2, 3}):  # then they are spread as ever
        assert not steer_around(sockets, everybody)
        clients += [connect(port_of(sockets)) for _ in range(80)]
        assert all(accepted(sockets))
    for client in clients:
        client.close()


def test_sockets_on_ipv6_are_counted_too(listeners):
    try:
        first = listeners(Address("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    address = Address("::1", port_of(first))
    second = listeners(address, takeover=True)
    second[0].listen(1)
    assert listeners_beside(first) == 1
