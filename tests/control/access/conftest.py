"""A clock that stands until a test moves it, for everything here that ends or recovers by time."""

import pytest


class Clock:
    """Seconds, as ``time.monotonic`` has them."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture(scope="session")
def new_clock():
    """Makes a clock, for tests that need one for each of many examples."""
    return Clock


@pytest.fixture
def clock(new_clock):
    return new_clock()
