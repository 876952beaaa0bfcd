"""Counts tokens by tenant, model, route and use; control computes costs from the counts.

There is one list for each (tenant, model, route) and two places in it for each use, the useful one
first: an ordinary answer costs two additions. All three names come from the config; the number of
rows is bounded all the same.

The tokens of an attempt are counted when it ends, by how it ended (``core.plan.cost.Use``). An
engine's own count is used where there is one, the gateway's estimate elsewhere. An attempt that no
engine accepted has cost nothing.
"""

from typing import Final

from holdfast.core.failure import Kind
from holdfast.core.plan.cost import DIRECT, NOBODY, Use
from holdfast.gateway.telemetry.observed_request import ObservedAttempt

ROWS_MAX: Final = 2_048  # of (tenant, model, route); further ones are booked as nobody's

_USES: Final = tuple(Use)
_PLACE: Final = {use: 2 * number for number, use in enumerate(_USES)}
_USEFUL: Final = _PLACE[Use.USEFUL]
_RETRY: Final = _PLACE[Use.RETRY]
_HEDGE: Final = _PLACE[Use.HEDGE]
_CONTINUATION: Final = _PLACE[Use.CONTINUATION]
_ESCALATION: Final = _PLACE[Use.ESCALATION]
_ABANDONED: Final = _PLACE[Use.ABANDONED]

# No engine has begun to read these.
_NO_WORK: Final = frozenset(
    {
        Kind.REFUSED,
        Kind.CONNECT_TIMEOUT,
        Kind.GATEWAY_SHORTAGE,
        Kind.STALE_SOCKET,
        Kind.OVERLOADED,
        Kind.BAD_REQUEST,
        Kind.NOT_SERVED,
    }
)

Row = tuple[str, str, str]  # tenant, model, route


class TokenLedger:
    """All tokens of one gateway since its start, by tenant, model, route and use; no prices.

    Route: the virtual name that was asked for, or ``DIRECT``. At most 2,048 rows; further ones are
    counted together as nobody's.
    """

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[Row, list[int]] = {}

    def ended(
        self, attempt: ObservedAttempt, kind: Kind | None, input_tokens: int, output_tokens: int
    ) -> None:
        """Count the tokens of an attempt that failed, was cancelled or continued another.

        Text that the client saw is useful unless degenerate; the rest is retry, hedge or abandoned,
        and the prompt of a continuing attempt is continuation. Nothing if no engine began to work.
        """
        if kind in _NO_WORK and not attempt.begun:
            return
        proxied = attempt.proxied
        row = self.row(proxied.tenant.name, attempt.target.model, proxied.via)
        place = _place(kind, begun=attempt.begun)
        row[_CONTINUATION if attempt.continues else place] += input_tokens
        row[place + 1] += output_tokens

    def escalated(
        self, tenant: str, model: str, route: str, input_tokens: int, output_tokens: int
    ) -> None:
        """Move an answer's tokens from useful to escalation: another model is asked instead.

        They must have been counted as useful before.
        """
        row = self.row(tenant, model, route)
        row[_USEFUL] -= input_tokens
        row[_USEFUL + 1] -= output_tokens
        row[_ESCALATION] += input_tokens
        row[_ESCALATION + 1] += output_tokens

    def ours(self, model: str, use: Use, input_tokens: int, output_tokens: int) -> None:
        """Count tokens of a request that Holdfast made itself; no tenant pays for them."""
        row = self.row(NOBODY, model, DIRECT)
        row[_PLACE[use]] += input_tokens
        row[_PLACE[use] + 1] += output_tokens

    def read(self, told: dict[str, int | float]) -> None:
        """Write all counts that are not 0 into ``told``, as ``tokens_total`` series with labels."""
        for (tenant, model, route), row in self._rows.items():
            labels = f'tenant="{tenant}",model="{model}",route="{route}"'
            for number, use in enumerate(_USES):
                for place, kind in ((2 * number, "input"), (2 * number + 1, "output")):
                    if row[place]:
                        name = f'tokens_total{{{labels},use="{use.value}",type="{kind}"}}'
                        told[name] = row[place]

    def row(self, tenant: str, model: str, route: str) -> list[int]:
        """Return the live list of counts of (tenant, model, route), to add to in place.

        Two places for each use, input and output; useful ones first. Made on first use; beyond
        2,048 rows a common one.
        """
        key = (tenant, model, route)
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= ROWS_MAX:
                key = (NOBODY, NOBODY, NOBODY)
            row = self._rows.setdefault(key, [0] * (2 * len(_USES)))
        return row


def _place(kind: Kind | None, *, begun: bool) -> int:
    """What became of it. Text that somebody was shown was of use, unless it was rubbish."""
    if kind is None or (begun and kind is not Kind.DEGENERATE):
        return _USEFUL
    if kind is Kind.SUPERSEDED:
        return _HEDGE
    if kind is Kind.CLIENT_GONE:
        return _ABANDONED
    return _RETRY


__all__ = ["ROWS_MAX", "TokenLedger"]
