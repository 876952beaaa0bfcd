"""Divides what may run at once between those who want it: batches, and queues that others fill.

Equal shares, and what one does not want goes to the others (max-min fairness). Rejected: shares by
the length of the backlog. A producer that floods its queue would starve everybody else's.
"""

from collections.abc import Mapping


def fair_shares(total: int, wants: Mapping[str, int], turn: int = 0) -> dict[str, int]:
    """Return how many each name may run at once: at most its want, together at most ``total``.

    Equal shares; what one does not want goes to the others. Every name of ``wants`` is in the dict,
    with 0 if it gets none. ``turn`` (any counter) says who gets a remainder that cannot be divided.
    """
    left = max(0, total)
    shares = dict.fromkeys(wants, 0)
    open_names = sorted(name for name, want in wants.items() if want > 0)
    while left and open_names:
        each = left // len(open_names)
        if not each:
            begin = turn % len(open_names)
            for name in (open_names[begin:] + open_names[:begin])[:left]:
                shares[name] += 1
            break
        for name in open_names:
            given = min(each, wants[name] - shares[name])
            shares[name] += given
            left -= given
        open_names = [name for name in open_names if shares[name] < wants[name]]
    return shares


__all__ = ["fair_shares"]
