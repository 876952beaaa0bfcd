"""What a limit on open files carries, and whose fault an error is."""

import errno

import pytest

from holdfast.core.intake.descriptors import (
    OwnResource,
    connections_carried,
    descriptors_needed,
    is_scarce,
    own_shortage,
)


@pytest.mark.parametrize("connections", [0, 1, 20, 10_000])
def test_what_connections_need_carries_them(connections: int) -> None:
    assert connections_carried(descriptors_needed(connections)) == connections


def test_a_limit_that_is_a_little_below_is_not_scarce() -> None:
    assert not is_scarce(descriptors_needed(10_000), 10_000)
    assert not is_scarce(20_000, 10_000)
    assert is_scarce(4_096, 10_000)


def test_a_limit_below_what_a_process_itself_needs_carries_nothing() -> None:
    assert connections_carried(0) == connections_carried(24) == 0


@pytest.mark.parametrize(
    ("number", "resource"),
    [
        (errno.EMFILE, OwnResource.DESCRIPTORS),
        (errno.ENFILE, OwnResource.DESCRIPTORS),
        (errno.ENOMEM, OwnResource.MEMORY),
        (errno.ENOBUFS, OwnResource.MEMORY),
        (errno.EADDRNOTAVAIL, OwnResource.PORTS),
        (errno.ECONNREFUSED, None),
        (errno.EHOSTUNREACH, None),
        (0, None),
        (None, None),
    ],
)
def test_whose_fault_an_error_is(number: int | None, resource: OwnResource | None) -> None:
    assert own_shortage(number) is resource
