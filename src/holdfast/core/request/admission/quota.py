"""Quotas of tenants: requests and tokens per minute, and requests at once.

A bucket fills at the tenant's rate and holds at most one burst. A request takes its worst case when
it comes (prompt + max_tokens of each choice) and gives back what it did not use when it ends, so a
tenant cannot promise itself more than it has by asking for many long answers at once. What it used
is the engine's own count, where the engine gives one. What it used beyond its reservation is
debited too: the bucket may go below zero, and the tenant waits until it has filled.

Requests at once are counted from arrival to end, those that wait in a queue included. With several
gateways each allows its share of them, and one at least: a tenant whose share has not followed its
demand yet is not turned away while it runs nothing. So ``n`` gateways allow at most ``n - 1`` more
than the bound, and for a moment what they begin before they hear that their share has shrunk.

Rejected: fixed windows of a minute; a tenant may spend two quotas within a second, at the seam.
Rejected: charging only what was used, when it is known; a hundred requests in flight then all see
the same full bucket.
"""

from dataclasses import dataclass
from math import ceil, floor
from typing import Final

from holdfast.core.request.admission import refusals
from holdfast.core.request.admission.refusals import Refusal
from holdfast.core.types import SECOND, require, seconds

NEVER: Final = 2**63 - 1  # nanoseconds; the amount is more than the bucket can hold
_LEASE_MOVES_S: Final = 1.0  # control follows demand within a few hundred milliseconds
_SHARE_MIN: Final = 1e-3  # a gateway without demand keeps a trickle, or it could never show any
_ROUNDING: Final = 1e-6  # tokens; forgives float rounding, so that waiting ``until`` is enough


class TokenBucket:
    """A token bucket: its level rises with time up to ``burst``; it starts full.

    It may hold a gateway's share of a tenant's quota only. Amounts given back or debited carry no
    time: they count as of the last ``now`` seen.
    """

    __slots__ = ("_level", "_per_ns", "_rate_whole", "_seen", "burst", "burst_whole", "rate_per_s")

    def __init__(self, rate_per_s: float, burst: float) -> None:
        require(0 < rate_per_s < 1e12, "bucket.rate_per_s", f"is {rate_per_s}", "use more than 0")
        require(0 < burst < 1e12, "bucket.burst", f"is {burst}", "use more than 0")
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._rate_whole, self.burst_whole = rate_per_s, burst  # of all gateways together
        self._per_ns = rate_per_s / SECOND
        self._level = burst  # of one gateway that has not heard of others
        self._seen = -(2**63)  # before any clock: it starts full, so the first refill is harmless

    def take(self, amount: float, now: int) -> bool:
        """Take ``amount`` if the level allows it; return whether it did. Hot."""
        level = self.level(now)
        if amount > level + _ROUNDING:
            return False
        self._level = level - amount
        return True

    def lease(self, share: float) -> None:
        """Set this gateway's share (0 to 1) of the tenant's whole rate and burst.

        A larger share fills faster and holds more, but brings nothing along; a smaller one keeps
        what still fits.
        """
        self.rate_per_s = self._rate_whole * share
        self.burst = self.burst_whole * share
        self._per_ns = self.rate_per_s / SECOND
        self._level = min(self._level, self.burst)

    def give_back(self, amount: float) -> None:
        """Add an amount that was taken and not used; the level stays at most ``burst``."""
        level = self._level + amount
        self._level = level if level < self.burst else self.burst

    def debit(self, amount: float) -> None:
        """Subtract an amount that was already used; the level may fall below zero."""
        self._level -= amount

    def until(self, amount: float, now: int) -> int:
        """Nanoseconds until ``take(amount)`` succeeds if nobody else takes.

        0 if now; ``NEVER`` if it is more than the burst.
        """
        if amount > self.burst:
            return NEVER
        missing = amount - self.level(now)
        return ceil(missing / self._per_ns) if missing > _ROUNDING else 0

    @property
    def per_minute(self) -> float:
        """The tenant's whole rate per minute, over all gateways."""
        return self._rate_whole * 60.0

    def wait_s(self, amount: float, now: int) -> float:
        """Seconds until ``amount`` may be available, for Retry-After.

        1 s where it is more than this gateway's share can hold, as the share grows with demand.
        """
        wait = self.until(amount, now)
        return seconds(wait) if wait < NEVER else _LEASE_MOVES_S

    def level(self, now: int) -> float:
        """The amount available at ``now``; below zero while a debit is being paid off."""
        if now > self._seen:
            level = self._level + (now - self._seen) * self._per_ns
            self._level = level if level < self.burst else self.burst
            self._seen = now
        return self._level


@dataclass(slots=True, frozen=True)
class QuotaConfig:
    """The limits of one tenant over all gateways; ``None`` means unlimited.

    Checked when built: raises ``ConfigError``.
    """

    requests_per_minute: float | None = None  # who has no contract is held by fairness alone
    tokens_per_minute: float | None = None  # prompt + answer
    burst_s: float = 60.0  # seconds of the rate that may be spent at once: a whole minute's quota
    output_tokens_default: int = 256  # reserved when the client gave no max_tokens; then settled
    requests_at_once: int | None = None  # under way, waiting ones included; none: no such bound

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute"):
            rate = getattr(self, name)
            if rate is not None:
                fix = "use a positive number, or leave it out for unlimited"
                require(0 < rate < 1e12, f"quota.{name}", f"is {rate}", fix)
        require(0 < self.burst_s <= 86_400, "quota.burst_s", f"is {self.burst_s}", "use 1 to 86400")
        require(
            self.output_tokens_default >= 0,
            "quota.output_tokens_default",
            f"is {self.output_tokens_default}",
            "use 0 or more",
        )
        most = self.requests_at_once
        fix = "use 1 or more, or leave it out for unlimited"
        fits = most is None or 1 <= most < 1e9
        require(fits, "quota.requests_at_once", f"is {most}", fix)
        for name in ("requests_per_minute", "tokens_per_minute"):
            rate = getattr(self, name)
            require(
                rate is None or rate / 60.0 * self.burst_s >= 1.0,
                "quota.burst_s",
                f"is {self.burst_s}: the burst of {name} = {rate} would not hold a single one",
                "raise burst_s or the rate",
            )


class Reservation:
    """The tokens that one request holds of its tenant's quota, until it is settled or released."""

    __slots__ = ("settled", "tokens")

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.settled = False


_UNLIMITED = Reservation(0)


class Quota:
    """The quota of one tenant at one gateway: reserve at arrival, settle at the end."""

    __slots__ = ("_at_once", "_requests", "_tokens", "_unlimited", "config", "running")

    def __init__(self, config: QuotaConfig) -> None:
        self.config = config
        self._requests = _bucket(config.requests_per_minute, config.burst_s)
        self._tokens = _bucket(config.tokens_per_minute, config.burst_s)
        self._at_once = config.requests_at_once  # this gateway's share of them
        self.running = 0  # requests under way, counted only for a tenant with some limit
        rates = self._requests is None and self._tokens is None
        self._unlimited = rates and self._at_once is None

    def reserve(
        self, prompt_tokens: int, max_tokens: int, now: int, choices: int = 1
    ) -> Reservation | Refusal:
        """Reserve one request and the most tokens it may use, or return the refusal.

        Each of ``choices`` answers may be ``max_tokens`` long (0: the configured default); the
        prompt is read once. Counts the request as running; a refusal takes nothing.
        """
        if self._unlimited:
            return _UNLIMITED
        if self._at_once is not None and self.running >= self._at_once:
            return refusals.too_many_at_once(self.config.requests_at_once or 0)
        asked = prompt_tokens + (max_tokens or self.config.output_tokens_default) * choices
        requests, tokens = self._requests, self._tokens
        if tokens is not None and asked > tokens.burst:
            if max_tokens:
                if asked > tokens.burst_whole:
                    return refusals.beyond_quota(asked, tokens.burst_whole)
            # The size was our guess, not the client's wish: reserve what can be reserved.
            elif prompt_tokens > tokens.burst_whole:
                return refusals.beyond_quota(prompt_tokens, tokens.burst_whole)
            else:
                asked = max(prompt_tokens, floor(tokens.burst))
        if requests is not None and not requests.take(1.0, now):
            return refusals.over_quota("requests", requests.per_minute, requests.wait_s(1.0, now))
        if tokens is not None and not tokens.take(asked, now):
            if requests is not None:
                requests.give_back(1.0)
            return refusals.over_quota("tokens", tokens.per_minute, tokens.wait_s(asked, now))
        self.running += 1
        return Reservation(asked)

    def lease(self, share: float) -> None:
        """Set this gateway's share (0 to 1) of the tenant's quota.

        At least a thousandth of the rates and one request at once stay.
        """
        least = max(share, _SHARE_MIN)
        for bucket in (self._requests, self._tokens):
            if bucket is not None:
                bucket.lease(least)
        if self.config.requests_at_once is not None:
            # One even of the smallest share, else a newcomer would be refused: so all gateways
            # together may exceed the bound by one less than their number.
            self._at_once = max(1, floor(self.config.requests_at_once * share + _ROUNDING))

    def settle(self, reservation: Reservation, used_tokens: int) -> None:
        """End a reservation: give back the unused tokens, or debit those used beyond it.

        The request counts as running no more. ``ValueError`` if it was settled before.
        """
        if reservation is _UNLIMITED:
            return
        _close(reservation)
        self.running -= 1
        self.correct(used_tokens - reservation.tokens)

    def correct(self, tokens: int) -> None:
        """Debit tokens that were used beyond what was charged; a negative number is given back."""
        if self._tokens is not None:
            if tokens <= 0:
                self._tokens.give_back(-tokens)
            else:
                self._tokens.debit(tokens)

    def release(self, reservation: Reservation) -> None:
        """End the reservation of a request that was never dispatched: all of it is given back.

        Also the request itself. ``ValueError`` if it was settled before.
        """
        if reservation is _UNLIMITED:
            return
        self.settle(reservation, 0)
        if self._requests is not None:
            self._requests.give_back(1.0)

    def headers(self, now: int) -> dict[str, float]:
        """This gateway's limit, remainder and seconds until full, for rate-limit headers.

        Keys are ``limit_``, ``remaining_`` and ``reset_…_s`` of ``requests`` and ``tokens``; only
        those that are limited.
        """
        numbers: dict[str, float] = {}
        for kind, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                numbers[f"limit_{kind}"] = floor(bucket.burst)
                numbers[f"remaining_{kind}"] = max(floor(bucket.level(now) + _ROUNDING), 0)
                numbers[f"reset_{kind}_s"] = seconds(bucket.until(bucket.burst, now))
        return numbers


def _bucket(per_minute: float | None, burst_s: float) -> TokenBucket | None:
    if per_minute is None:
        return None
    rate_per_s = per_minute / 60.0
    return TokenBucket(rate_per_s, rate_per_s * burst_s)


def _close(reservation: Reservation) -> None:
    if reservation.settled:
        raise ValueError("a reservation was settled twice: its tokens would be given back twice")
    reservation.settled = True


__all__ = ["NEVER", "Quota", "QuotaConfig", "Reservation", "TokenBucket"]
