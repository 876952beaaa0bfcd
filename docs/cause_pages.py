"""A page for each cause, written from the rules that decide: symptom, evidence, fix.

The pages are whole files: nobody edits them by hand, so they hold no marks. What a sign means is
its comment in the code; what is done about a cause is the rule's own remedy.
"""

# ruff: noqa: INP001 - part of a script, not a package

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from config_keys import table

from holdfast.core.diagnose.causes.rule import CauseRule, During, Proof
from holdfast.core.diagnose.causes.table import CAUSES
from holdfast.core.diagnose.evidence import Remedy, Sign
from holdfast.core.failure import Cause, Class

FOLDER: Final = "causes"
_SOURCE: Final = Path(__file__).resolve().parent.parent / "src/holdfast/core/diagnose/evidence.py"
_COMMENT: Final = re.compile(
    r'^    ([A-Z_0-9]+) = "(\w+)"(?:  # (?:noqa: \w+ ?)?(.*))?$', re.MULTILINE
)
_FLAG: Final = re.compile(r"\[[^\[\]]*\{\w+:flag\}\]")  # how a number is known
_FIELD: Final = re.compile(r"\{(\w+)(?::[\w%]+)?\}")

REMEDIES: Final[dict[Remedy, str]] = {
    Remedy.OBSERVE: "nothing beyond what the fleet does anyway: it sends work elsewhere, restarts "
    "what ended, and takes it back when it answers right",
    Remedy.TAKE_OUT: "takes the replica out of service, within half of its pool",
    Remedy.DRAIN_AND_RESTART: "lets it finish what it has and starts it anew, one replica of a "
    "model at a time, where Holdfast started it; else it pages",
    Remedy.RELOCATE: "pages: moving a replica to another host is the platform's to do",
    Remedy.STOP_ROLLOUT: "stops the rollout of that revision",
    Remedy.DEGRADE: "answers with a smaller model where a ladder is configured; else it pages",
    Remedy.PAGE: "pages: only people can mend it",
}
_WHERE: Final = {
    Class.LOADING: "before it ever served: look at the start of its log, its weights and where "
    "they are read from",
    Class.RUNTIME: "in the replica, after it had loaded: look at the process, its memory and its "
    "answers",
    Class.ROUTING: "between the parts: look at where things are placed, what waits for what, and "
    "who can reach whom",
}


def cause_pages() -> dict[str, str]:
    """Every page by its name below docs/."""
    pages = {f"{FOLDER}/{cause.value}.md": _page(cause, CAUSES[cause]) for cause in Cause}
    return {f"{FOLDER}/index.md": _index(), **pages}


def _index() -> str:
    lines = [
        "# Causes",
        "",
        "Each incident names a class (where to look) and a cause (what to mend). This is the list,",
        "written from the rules that decide; [the runbook](../runbook.md) says how to use it.",
    ]
    for failure_class in Class:
        lines += ["", f"## {failure_class.value.capitalize()}", ""]
        lines += [f"Something is wrong {_WHERE[failure_class]}.", ""]
        rows = [
            (f"[{_words(cause)}]({cause.value}.md)", _first_sentence(CAUSES[cause].story))
            for cause in Cause
            if CAUSES[cause].failure_class is failure_class
        ]
        lines.append(table(("cause", "what it is"), rows))
    return "\n".join([*lines, ""])


def _page(cause: Cause, rule: CauseRule) -> str:
    kind = f"A **{rule.failure_class.value}** failure, of a {rule.scope.value}."
    lines = [
        f"# {_words(cause).capitalize()}",
        "",
        f"{kind} `{cause.value}` in JSON, metrics and alerts. [All causes](index.md).",
        "",
        "## Symptom",
        "",
        rule.story,
        "",
        "## Evidence",
        "",
        "Any of these rows is proof; several of different sources make it surer.",
        "",
        table(("when all of these are seen", "during", "sure"), list(_proofs(rule.proofs))),
        "",
    ]
    if rule.consequences:
        told = ", ".join(f"`{sign.value}`" for sign in sorted(rule.consequences))
        lines += [f"What follows from it, and is no incident of its own: {told}.", ""]
    if rule.explains:
        named = sorted(rule.explains)
        told = ", ".join(f"[{_words(other)}]({other.value}.md)" for other in named)
        lines += [f"Where it is proven, these are its consequences: {told}.", ""]
    lines += ["To confirm it by hand:", "", rule.look, "", "## Fix", "", _advice(rule.fix), ""]
    lines += ["## What Holdfast does", "", f"It {REMEDIES[rule.remedy]}.", ""]
    return "\n".join(lines)


def _proofs(proofs: tuple[Proof, ...]) -> Iterator[tuple[str, str, str]]:
    meanings = sign_meanings()
    for one in sorted(proofs, key=lambda each: -each.confidence):
        signs = "; ".join(f"`{sign.value}`{meanings[sign]}" for sign in sorted(one.signs))
        during = "" if one.phase is During.ANY else one.phase.value
        yield signs, during, f"{one.confidence:.0%}"


def sign_meanings() -> dict[Sign, str]:
    """What each sign means, in brackets: its comment where it is defined, if it has one."""
    found = {name: comment for name, _, comment in _COMMENT.findall(_SOURCE.read_text())}
    return {sign: f" ({found[sign.name]})" if found.get(sign.name) else "" for sign in Sign}


def _advice(fix: str) -> str:
    """The template as a sentence: numbers are named, and parts that need them are kept."""
    return (
        _FIELD.sub(lambda match: f"*{_words(match.group(1))}*", fix)
        .replace("[", "")
        .replace("]", "")
    )


def _words(name: str) -> str:
    return str(name).replace("_", " ")


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".")


__all__ = ["FOLDER", "REMEDIES", "cause_pages", "sign_meanings"]
