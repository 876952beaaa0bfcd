"""Waiting times of textbook queues, in units of one mean service time unless said otherwise.

They share one assumption: requests arrive at random (Poisson) and independently. Bursts wait
longer, and a trace should then be simulated. None of them knows timeouts, retries or failures.
"""

from math import exp, log
from typing import Final

from holdfast.core.types import require

_TERMS_MAX: Final = 60  # of a doubly exponential series: far past the last digit


def _servers(value: int) -> None:
    require(value >= 1, "queueing.servers", f"is {value}", "use 1 or more")


def _load(value: float) -> None:
    require(
        0.0 <= value < 1.0, "queueing.load", f"is {value:g}", "use 0 to below 1: above, queues grow"
    )


def erlang_c(servers: int, offered: float) -> float:
    """Probability that a request waits before ``servers`` that share one queue (M/M/c).

    ``offered`` is the load in servers: rate times service time. Assumes exponential service times,
    which is nearly right for answers of varying length. From ``offered >= servers`` on all wait.
    """
    _servers(servers)
    require(offered >= 0, "queueing.offered", f"is {offered:g}", "use 0 or more")
    if offered >= servers:
        return 1.0
    blocked = 1.0
    for number in range(1, servers + 1):  # Erlang B, by its recursion: no factorials
        blocked = offered * blocked / (number + offered * blocked)
    return blocked / (1.0 - offered / servers * (1.0 - blocked))


def erlang_wait(servers: int, offered: float) -> float:
    """Mean wait before ``servers`` that share one queue, in service times."""
    require(offered < servers, "queueing.offered", f"is {offered:g}", f"use less than {servers}")
    return erlang_c(servers, offered) / (servers - offered)


def erlang_wait_exceeds(servers: int, offered: float, wait: float) -> float:
    """Probability of waiting for longer than ``wait`` service times."""
    if offered >= servers:
        return 1.0
    return erlang_c(servers, offered) * exp(-(servers - offered) * wait)


def servers_for(offered: float, wait: float, share: float, utilisation: float = 1.0) -> int:
    """Fewest servers before which at most ``share`` wait longer than ``wait`` service times.

    ``utilisation`` bounds how busy they may be on average. Found by doubling and halving: one more
    server never makes anybody wait longer.
    """
    good = 0.0 < share < 1.0
    require(good, "queueing.share", f"is {share:g}", "use a share between 0 and 1")
    good = 0.0 < utilisation <= 1.0
    require(good, "queueing.utilisation", f"is {utilisation:g}", "use a share above 0, up to 1")

    def enough(servers: int) -> bool:
        if offered > servers * utilisation or offered >= servers:
            return False
        return erlang_wait_exceeds(servers, offered, wait) <= share

    high = max(1, int(offered / utilisation))
    while not enough(high):
        high *= 2
    low = max(1, high // 2)
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    return high


def random_choice_wait(load: float, variation: float = 1.0) -> float:
    """Mean wait, in service times, where requests go to servers at random (M/G/1).

    ``load`` is of one server. ``variation`` is the squared coefficient of variation of service
    times: 0 for equal ones, 1 for exponential ones. Breaks for servers that share their time among
    requests: see ``shared_sojourn``.
    """
    _load(load)
    require(variation >= 0, "queueing.variation", f"is {variation:g}", "use 0 or more")
    return load * (1.0 + variation) / (2.0 * (1.0 - load))


def shared_sojourn(load: float) -> float:
    """Mean time, in service times, in a server that shares its work among requests (M/G/1-PS)."""
    _load(load)
    return 1.0 / (1.0 - load)


def sojourn_quantile(load: float, quantile: float) -> float:
    """Quantile of wait plus service in one exponential server (M/M/1), in service times."""
    _load(load)
    require(0 < quantile < 1, "queueing.quantile", f"is {quantile:g}", "use a share such as 0.99")
    return -log(1.0 - quantile) / (1.0 - load)


def two_choices_sojourn(load: float) -> float:
    """Mean time, in service times, if requests join the shorter of two random queues.

    The limit of many servers: ``sum of load^(2^i - 2)``. For 64 servers it is some 3 % more.
    """
    _load(load)
    total = 0.0
    for number in range(1, _TERMS_MAX):
        power = 2.0**number - 2.0
        term = load**power if power < 1e6 else 0.0
        total += term
        if term < 1e-16:
            break
    return total


def two_choices_tail(load: float, length: int) -> float:
    """Share of servers with ``length`` requests or more, under the two-choices rule.

    Each request joins the shorter of two queues chosen at random; ``load`` is of one server.
    """
    _load(load)
    require(length >= 0, "queueing.length", f"is {length}", "use 0 or more")
    return float(load ** (2.0**length - 1.0))


__all__ = [
    "erlang_c",
    "erlang_wait",
    "erlang_wait_exceeds",
    "random_choice_wait",
    "servers_for",
    "shared_sojourn",
    "sojourn_quantile",
    "two_choices_sojourn",
    "two_choices_tail",
]
