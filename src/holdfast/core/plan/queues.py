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
    """Return the probability that a request waits before ``servers`` that share one queue (M/M/c).

    ``offered`` is the load in servers: rate times service time. Assumes exponential service times.
    1 from ``offered >= servers`` on.
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
    """Return the mean wait before ``servers`` that share one queue (M/M/c), in service times.

    Raises ``ConfigError`` unless ``offered`` is below ``servers``.
    """
    require(offered < servers, "queueing.offered", f"is {offered:g}", f"use less than {servers}")
    return erlang_c(servers, offered) / (servers - offered)


def erlang_wait_exceeds(servers: int, offered: float, wait: float) -> float:
    """Return the probability of waiting longer than ``wait`` service times (M/M/c).

    1 where ``offered`` is not below ``servers``.
    """
    if offered >= servers:
        return 1.0
    return erlang_c(servers, offered) * exp(-(servers - offered) * wait)


def servers_for(offered: float, wait: float, share: float, utilisation: float = 1.0) -> int:
    """Return the fewest servers before which at most ``share`` wait longer than ``wait``.

    ``wait`` is in service times, ``offered`` the load in servers; they share one queue (M/M/c).
    ``utilisation`` bounds how busy they may be on average.
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
    """Return the mean wait, in service times, where requests go to servers at random (M/G/1).

    ``load`` is of one server. ``variation`` is the squared coefficient of variation of service
    times: 0 for equal ones, 1 for exponential ones. Breaks for servers that share their time among
    requests: see ``shared_sojourn``.
    """
    _load(load)
    require(variation >= 0, "queueing.variation", f"is {variation:g}", "use 0 or more")
    return load * (1.0 + variation) / (2.0 * (1.0 - load))


def shared_sojourn(load: float) -> float:
    """Return the mean time in a server that shares its work among requests (M/G/1-PS).

    In service times; ``load`` is of one server, below 1.
    """
    _load(load)
    return 1.0 / (1.0 - load)


def sojourn_quantile(load: float, quantile: float) -> float:
    """Return a quantile of wait plus service in one exponential server (M/M/1).

    In service times; ``load`` is below 1.
    """
    _load(load)
    require(0 < quantile < 1, "queueing.quantile", f"is {quantile:g}", "use a share such as 0.99")
    return -log(1.0 - quantile) / (1.0 - load)


def two_choices_sojourn(load: float) -> float:
    """Return the mean wait plus service if requests join the shorter of two random queues.

    In service times. The limit of many servers: ``sum of load^(2^i - 2)``. For 64 servers it is
    some 3 % more.
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
    """Return the share of servers with ``length`` requests or more, under the two-choices rule.

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
