"""Finds the minimum of a function of a few numbers without derivatives: Nelder and Mead's simplex.

Written out here because it is forty lines and the alternative is a dependency on a numerical
library. The function may be rough, as a replay of a queue is; the simplex only compares values.
"""

from collections.abc import Callable, Sequence
from typing import Final

_REFLECT: Final = 1.0
_EXPAND: Final = 2.0
_CONTRACT: Final = 0.5
_SHRINK: Final = 0.5

Point = list[float]


def minimise(
    function: Callable[[Sequence[float]], float],
    start: Sequence[float],
    step: Sequence[float],
    *,
    calls_max: int,
    tolerance: float = 1e-4,
) -> tuple[Point, float]:
    """The point with the smallest value found from ``start``, and that value.

    ``step`` is the size of the first simplex along each axis. Ends after ``calls_max`` calls of
    ``function``, or when all corners have the same value within ``tolerance`` of it.
    """
    corners = [(function(start), list(start))]
    for axis, length in enumerate(step):
        point = list(start)
        point[axis] += length
        corners.append((function(point), point))
    calls = len(corners)
    while calls < calls_max:
        corners.sort(key=_value)
        best, worst = corners[0][0], corners[-1][0]
        if worst - best <= tolerance * (abs(best) + 1e-12):
            break
        centre = _mean([point for _, point in corners[:-1]])
        reflected = _towards(centre, corners[-1][1], -_REFLECT)
        value = function(reflected)
        calls += 1
        if value < best:
            expanded = _towards(centre, corners[-1][1], -_EXPAND)
            further = function(expanded)
            calls += 1
            corners[-1] = (further, expanded) if further < value else (value, reflected)
        elif value < corners[-2][0]:
            corners[-1] = (value, reflected)
        else:
            outside = value < worst
            near = _towards(centre, reflected if outside else corners[-1][1], _CONTRACT)
            closer = function(near)
            calls += 1
            if closer < min(value, worst):
                corners[-1] = (closer, near)
            else:
                kept = corners[0][1]
                shrunk = [_towards(kept, point, _SHRINK) for _, point in corners[1:]]
                corners = [corners[0], *((function(point), point) for point in shrunk)]
                calls += len(shrunk)
    value, point = min(corners, key=_value)
    return point, value


def _value(corner: tuple[float, Point]) -> float:
    return corner[0]


def _mean(points: Sequence[Point]) -> Point:
    return [sum(axis) / len(points) for axis in zip(*points, strict=True)]


def _towards(start: Point, end: Point, share: float) -> Point:
    return [a + share * (b - a) for a, b in zip(start, end, strict=True)]


__all__ = ["minimise"]
