import pytest

from holdfast.twin.minimum import minimise


def test_a_bowl_is_followed_to_its_bottom():
    point, value = minimise(
        lambda p: (p[0] - 3.0) ** 2 + 4 * (p[1] + 1.0) ** 2, [0.0, 0.0], [1.0, 1.0], calls_max=300
    )
    assert point == pytest.approx([3.0, -1.0], abs=0.02)
    assert value < 1e-3


def test_a_bent_valley_is_followed_too():
    def rosenbrock(p):
        return (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2

    point, _ = minimise(rosenbrock, [-1.2, 1.0], [0.5, 0.5], calls_max=600, tolerance=1e-12)
    assert point == pytest.approx([1.0, 1.0], abs=0.05)


def test_it_stops_when_its_calls_are_used_up_and_never_returns_worse_than_its_start():
    calls = []

    def rough(p):
        calls.append(p)
        return abs(p[0]) + len(calls) % 3

    _, value = minimise(rough, [5.0], [1.0], calls_max=20, tolerance=0.0)
    assert len(calls) <= 22
    assert value <= 6.0
