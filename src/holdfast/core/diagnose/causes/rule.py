"""What a rule says of a cause (proofs, consequences, advice), and advice filled with numbers.

    CauseRule: signs that prove it, signs that follow from it, causes that it explains, what to do

Rules are data. The engine in ``diagnosis.py`` knows none of the causes by name, so that a new cause
is a new row, and so that the pages for people are made from the same rows that decide. Rejected:
one function for each cause. Functions look into each other's findings, and which cause explains
which can then only be found by running them.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from holdfast.core.diagnose.evidence import Remedy, Sign
from holdfast.core.failure import Cause, Class
from holdfast.core.types import require


class During(StrEnum):
    """The phase of a replica in which a proof's signs must have been seen to count."""

    LOADING = "loading"
    SERVING = "serving"
    ANY = "any"


class Scope(StrEnum):
    """What a cause is a property of: a replica, a model, a host, a filesystem or the whole fleet.

    Replicas that share that thing and have the cause share one incident.
    """

    REPLICA = "replica"
    MODEL = "model"
    HOST = "host"
    FILESYSTEM = "filesystem"
    FLEET = "fleet"  # no one of these: whoever watches all of them


@dataclass(slots=True, frozen=True)
class Proof:
    """One way to prove a cause: signs that must all be seen, and the confidence (0 to 1) they give.

    They must be seen in ``phase``, with their numbers within ``least`` and ``most``, and with none
    of the ``without`` signs present. Raises ``ConfigError`` without signs or for a confidence not
    in (0, 1).
    """

    signs: frozenset[Sign]
    confidence: float  # that the cause is this one, 0 to 1, if nothing else is known
    phase: During = During.ANY
    acts: bool = True  # False: it may name a cause, and nothing is done on its word alone
    without: frozenset[Sign] = frozenset()  # signs of a better explanation: with one it is void
    least: Mapping[str, float] = field(default_factory=dict)  # numbers that the signs must reach
    most: Mapping[str, float] = field(default_factory=dict)  # and those that, where known, are less

    def __post_init__(self) -> None:
        require(bool(self.signs), "proof.signs", "is empty", "name a sign")
        fits = 0 < self.confidence < 1
        require(fits, "proof.confidence", f"is {self.confidence}", "use a share in (0, 1)")


@dataclass(slots=True, frozen=True)
class CauseRule:
    """All that is known in advance of one cause; a constant row of the table, not a finding.

    Its proofs, each sufficient alone, the signs and causes that follow from it, texts for people,
    and the remedy. ``standing``: a lasting condition that has its own incident beside other
    failures.
    """

    failure_class: Class
    proofs: tuple[Proof, ...]
    story: str  # what it is, for somebody who is called at night
    look: str  # how to confirm it by hand
    fix: str  # what to do; ``{name:unit}`` takes a number, ``[…]`` falls away without its numbers
    remedy: Remedy
    scope: Scope = Scope.REPLICA
    consequences: frozenset[Sign] = frozenset()  # of its replicas, or of the model they serve
    explains: frozenset[Cause] = frozenset()  # that look like causes and follow from this one
    standing: bool = False  # a condition, not an event: it stands beside another failure
    shared: bool = False  # all replicas of a model have it: so it follows from one place of all
    symptom: bool = False  # whatever explains it does not thereby explain what it explains


def proof(
    *signs: Sign,
    at: float,
    during: During = During.ANY,
    acts: bool = True,
    without: Iterable[Sign] = (),
    least: Mapping[str, float] | None = None,
    most: Mapping[str, float] | None = None,
) -> Proof:
    """Return a ``Proof`` of these signs with confidence ``at``: the short form for rules."""
    return Proof(frozenset(signs), at, during, acts, frozenset(without), least or {}, most or {})


Rules = Mapping[Cause, CauseRule]


def _ends_row(rules: Rules, cause: Cause) -> bool:
    return cause in rules and rules[cause].symptom


def closure(rules: Rules) -> dict[Cause, frozenset[Cause]]:
    """Return, for each cause, the set of causes it explains, directly or through others.

    Does not go on through a cause marked ``symptom``. Raises ``ConfigError`` if causes explain each
    other in a circle.
    """
    reach: dict[Cause, frozenset[Cause]] = {}

    def visit(cause: Cause, path: tuple[Cause, ...]) -> frozenset[Cause]:
        circle = " > ".join((*path, cause))
        require(cause not in path, "explains", f"goes in a circle: {circle}", "break the circle")
        if cause not in reach:
            rule = rules.get(cause)
            direct: frozenset[Cause] = rule.explains if rule is not None else frozenset()
            below = {one: visit(one, (*path, cause)) for one in sorted(direct)}
            on = [reached for one, reached in below.items() if not _ends_row(rules, one)]
            reach[cause] = direct.union(*on)
        return reach[cause]

    for cause in rules:
        visit(cause, ())
    return reach


# --- advice with numbers --------------------------------------------------------------------------

_FIELD: Final = re.compile(r"\{(\w+)(?::([\w%]+))?\}")
_OPTIONAL: Final = re.compile(r"\[([^\[\]]*)\]")
_SPACES: Final = re.compile(r"\s+")


def _spell(value: float, unit: str) -> str:
    if unit == "GB":
        return f"{value / 1e9:.1f} GB"
    if unit == "MBs":
        return f"{value / 1e6:.1f} MB/s"
    if unit == "MBmin":
        return f"{value * 60 / 1e6:.1f} MB/min"
    if unit == "%":
        return f"{value:.0%}"
    if unit == "s":
        return spell_time(value)
    if unit == "flag":
        return ""
    if unit == "n":
        return f"{value:.1f}"
    return f"{value:.6g}"


def spell_time(value: float) -> str:
    """Format seconds for people: 0.4 s, 45 s, 12 min, 3.5 h."""
    if value < 10:
        return f"{value:.1f} s"
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def fill(template: str, numbers: Mapping[str, float]) -> str:
    """Return an advice template with its ``{name:unit}`` fields replaced by these numbers.

    A part in ``[...]`` is dropped if one of its numbers is missing; outside of such parts the name
    itself is written for a missing number.
    """

    def spelled(found: re.Match[str]) -> str:
        name, unit = found.group(1), found.group(2) or ""
        return _spell(numbers[name], unit) if name in numbers else name.replace("_", " ")

    def optional(found: re.Match[str]) -> str:
        part = found.group(1)
        known = all(match.group(1) in numbers for match in _FIELD.finditer(part))
        return part if known else ""

    while _OPTIONAL.search(template):  # the innermost parts first
        template = _OPTIONAL.sub(optional, template)
    return _SPACES.sub(" ", _FIELD.sub(spelled, template)).strip()


def names_in(template: str) -> frozenset[str]:
    """Return the names of all numbers that an advice template has fields for, optional ones too."""
    return frozenset(match.group(1) for match in _FIELD.finditer(template))


def signs_of(rules: Iterable[CauseRule]) -> frozenset[Sign]:
    """Return every sign that a proof of these rules needs; ``without`` signs do not count."""
    return frozenset(sign for rule in rules for one in rule.proofs for sign in one.signs)


@dataclass(slots=True)
class Proven:
    """A finding: a cause that the signs of one subject prove now, with its confidence (0 to 1).

    ``signs`` are those of all satisfied proofs; ``acts`` is false if none of them may be acted on.
    """

    cause: Cause
    confidence: float
    acts: bool  # at least one of its proofs may be acted on
    signs: frozenset[Sign] = field(default_factory=frozenset)


__all__ = [
    "CauseRule",
    "During",
    "Proof",
    "Proven",
    "Rules",
    "Scope",
    "closure",
    "fill",
    "names_in",
    "proof",
    "signs_of",
    "spell_time",
]
