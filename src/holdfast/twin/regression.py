"""Estimates an engine's step time by least squares, straight from the times of measured answers.

From its first token to its last, an answer lives through one step per token, and each step takes

    a + c·B + b·KV + p·prefill

Who else was in the batch, what they held and whose prompts were read meanwhile is known from their
own first and last tokens. So each answer gives one linear equation for a, c, b and p, and a few
hundred answers give a good estimate, without any model of a queue. A search by replays begins here:
from a bad beginning it ends in a bad place.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import combinations
from math import fsum
from typing import Final

from holdfast.twin.measurement import MeasuredRequest

_TERMS: Final = 4
_ROBUST: Final = 8  # passes in which answers that fit badly lose weight
_FAR: Final = 0.02  # of the usual time: beyond, a miss counts by its size, not by its square

Row = tuple[tuple[float, float, float, float], float]
"""Steps, Σ B, Σ KV and prompt tokens of one answer; and how long it took after its first token."""


def step_coefficients(
    requests: Sequence[MeasuredRequest],
    hosts: Mapping[str, str] | None = None,
    *,
    room: int = 1,
    share: float = 0.0,
) -> tuple[tuple[float, float, float, float], float]:
    """The coefficients a, c, b and p in seconds, none negative, and the mean relative residual.

    With ``share`` each busy neighbour beyond ``room`` on the host makes steps longer by it.
    """
    rows = list(_rows(requests))
    factors = _crowds(requests, hosts, room, share) if hosts and share else None
    if factors is not None:
        rows = [
            (tuple(term * factor for term in terms), took)  # type: ignore[misc]
            for (terms, took), factor in zip(rows, factors, strict=True)
        ]
    rows = [(terms, took) for terms, took in rows if took > 0 and terms[0] > 0]
    if not rows:
        return (0.0, 0.0, 0.0, 0.0), 0.0
    paces = sorted(took / terms[0] for terms, took in rows)
    pace = paces[len(paces) // 2]
    # By what such an answer usually takes, not by what it took: a burst after a pause took nothing.
    usual = [pace * terms[0] for terms, _ in rows]
    weights = [1.0 / scale for scale in usual]
    found: tuple[float, ...] = (0.0,) * _TERMS
    misses: list[float] = []
    for _ in range(_ROBUST):
        found = _least_squares(rows, weights)
        misses = [
            abs(_sum(terms, found) - took) / scale
            for (terms, took), scale in zip(rows, usual, strict=True)
        ]
        weights = [
            1.0 / scale / max(1.0, miss / _FAR) ** 0.5
            for scale, miss in zip(usual, misses, strict=True)
        ]
    return (found[0], found[1], found[2], found[3]), fsum(misses) / max(1, len(misses))


def _rows(requests: Sequence[MeasuredRequest]) -> list[Row]:
    """One equation per answer, in the order of the requests."""
    rows: list[Row] = [((0.0, 0.0, 0.0, 0.0), 0.0)] * len(requests)
    for replica in dict.fromkeys(one.replica for one in requests):
        mine = [number for number, one in enumerate(requests) if one.replica == replica]
        mine.sort(key=lambda number: requests[number].first_s)
        firsts = [requests[number].first_s for number in mine]
        longest = max(requests[number].last_s - requests[number].first_s for number in mine)
        for number in mine:
            one = requests[number]
            took = one.last_s - one.first_s
            if one.output < 2 or took <= 0:
                continue
            steps = one.output - 1
            low = bisect_left(firsts, one.first_s - longest)
            high = bisect_right(firsts, one.last_s)
            batch = held = prompts = 0.0
            for other in (requests[mine[place]] for place in range(low, high)):
                begins, ends = max(one.first_s, other.first_s), min(one.last_s, other.last_s)
                if other.first_s > one.first_s:  # it was in the batch while its prompt was read
                    prompts += other.prompt
                    batch += 1.0
                    held += other.prompt
                if ends <= begins:
                    continue
                together = steps * (ends - begins) / took
                life = other.last_s - other.first_s
                done = ((begins + ends) / 2 - other.first_s) / life if life > 0 else 1.0
                batch += together
                held += together * (other.prompt + done * other.output)
            rows[number] = ((float(steps), batch, held, prompts), took)
    return rows


def _crowds(
    requests: Sequence[MeasuredRequest], hosts: Mapping[str, str], room: int, share: float
) -> list[float]:
    """By how much neighbours made each answer's steps longer, on average over its life."""
    edges: dict[str, dict[str, list[tuple[float, int]]]] = {}
    for one in requests:
        host = hosts.get(one.replica)
        if host is not None:
            mine = edges.setdefault(host, {}).setdefault(one.replica, [])
            mine += [(one.first_s, 1), (one.last_s, -1)]
    curves = {host: _integral(replicas, room) for host, replicas in edges.items()}
    factors = []
    for one in requests:
        curve = curves.get(hosts.get(one.replica, ""))
        took = one.last_s - one.first_s
        beyond = 0.0
        if curve is not None and took > 0:
            beyond = (_at(curve, one.last_s) - _at(curve, one.first_s)) / took
        factors.append(1.0 + share * beyond)
    return factors


Curve = tuple[list[float], list[float], list[int]]


def _integral(replicas: Mapping[str, list[tuple[float, int]]], room: int) -> Curve:
    """Over time: the sum so far of how many replicas beyond ``room`` were busy."""
    changes = []
    for edges in replicas.values():
        running = 0
        for time, change in sorted(edges):
            before, running = running, running + change
            if (before > 0) != (running > 0):
                changes.append((time, 1 if running else -1))
    times, sums, levels = [0.0], [0.0], [0]
    busy = 0
    for time, change in sorted(changes):
        sums.append(sums[-1] + levels[-1] * (time - times[-1]))
        busy += change
        times.append(time)
        levels.append(max(0, busy - room))
    return times, sums, levels


def _at(curve: Curve, time: float) -> float:
    times, sums, levels = curve
    place = max(0, bisect_right(times, time) - 1)
    return sums[place] + levels[place] * (time - times[place])


def _sum(terms: Sequence[float], found: Sequence[float]) -> float:
    return sum(term * value for term, value in zip(terms, found, strict=True))


def _least_squares(rows: Sequence[Row], weights: Sequence[float]) -> tuple[float, ...]:
    """The best coefficients of which none is negative: all subsets of four terms are tried."""
    matrix = [[0.0] * _TERMS for _ in range(_TERMS)]
    right = [0.0] * _TERMS
    whole = 0.0
    for (terms, took), weight in zip(rows, weights, strict=True):
        square = weight * weight
        whole += square * took * took
        for i in range(_TERMS):
            right[i] += square * terms[i] * took
            for j in range(_TERMS):
                matrix[i][j] += square * terms[i] * terms[j]
    best: tuple[float, ...] = (0.0,) * _TERMS
    least = whole
    for size in range(1, _TERMS + 1):
        for chosen in combinations(range(_TERMS), size):
            solved = _solve(
                [[matrix[i][j] for j in chosen] for i in chosen], [right[i] for i in chosen]
            )
            if solved is None or min(solved) < 0:
                continue
            # |y - Xb|² = y·y - b·Xᵀy at the minimum of a subset
            miss = whole - sum(value * right[i] for value, i in zip(solved, chosen, strict=True))
            if miss < least * (1.0 - 1e-9):
                values = dict(zip(chosen, solved, strict=True))
                best, least = tuple(values.get(i, 0.0) for i in range(_TERMS)), miss
    return best


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gauss with pivots; None where the equations do not tell the terms apart."""
    size = len(right)
    scale = [max(abs(value) for value in row) or 1.0 for row in matrix]
    rows = [[*(v / s for v in row), r / s] for row, r, s in zip(matrix, right, scale, strict=True)]
    for place in range(size):
        pivot = max(range(place, size), key=lambda row: abs(rows[row][place]))
        if abs(rows[pivot][place]) < 1e-12:
            return None
        rows[place], rows[pivot] = rows[pivot], rows[place]
        for row in range(size):
            if row != place:
                share = rows[row][place] / rows[place][place]
                rows[row] = [a - share * b for a, b in zip(rows[row], rows[place], strict=True)]
    return [rows[place][size] / rows[place][place] for place in range(size)]


__all__ = ["step_coefficients"]
