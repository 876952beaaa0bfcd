"""Label and field selectors of requests, read as an API server reads them; nonsense is a 400."""

import re
from typing import Any

Json = dict[str, Any]

_WORD = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_NAME = rf"(?:[a-z0-9](?:[-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_WORD}"
_VALUE = rf"(?:{_WORD})?"
_TERM = re.compile(r"([^,(]+\([^)]*\)|[^,]+)")
_SET = re.compile(rf"({_NAME})\s+(in|notin)\s*\(([^()]*)\)")
_PAIR = re.compile(rf"({_NAME})\s*(==?|!=)\s*({_VALUE})")
_ONE = re.compile(rf"(!?)\s*({_NAME})")

# Other fields of an object cannot be selected by; those of its name always can.
FIELDS = {
    "pods": (
        *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"),
        *("spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName"),
    ),
    "nodes": ("spec.unschedulable",),
    "events": (
        *("involvedObject.kind", "involvedObject.namespace", "involvedObject.name"),
        *("involvedObject.uid", "involvedObject.apiVersion", "involvedObject.resourceVersion"),
        *("involvedObject.fieldPath", "reason", "reportingComponent", "source", "type"),
    ),
}
_ALWAYS = ("metadata.name", "metadata.namespace")


class BadSelectorError(Exception):
    """What the server says of a selector that it cannot read."""


def check(resource: str, query: dict[str, str]) -> None:
    """Refuse selectors that a real server refuses."""
    text = query.get("labelSelector", "")
    if text.strip().endswith(",") or text.strip().startswith(","):
        raise BadSelectorError("unable to parse requirement: found ',', expected: identifier")
    for term in _terms(text):
        among = _SET.fullmatch(term)
        if among:
            values = [one.strip() for one in among[3].split(",")]
            if all(re.fullmatch(_VALUE, one) for one in values):
                continue
        elif _PAIR.fullmatch(term) or _ONE.fullmatch(term):
            continue
        raise BadSelectorError(f'unable to parse requirement: invalid label key or value "{term}"')
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        if "=" not in term:
            raise BadSelectorError(f"invalid selector: '{term}'; can't understand '{term}'")
        name = re.split("!?==?", term)[0]
        if name not in (*_ALWAYS, *FIELDS.get(resource, ())):
            raise BadSelectorError(f"field label not supported: {name}")


def fits(thing: Json, query: dict[str, str]) -> bool:
    """Whether the label and field selectors of a request choose an object."""
    labels = thing["metadata"].get("labels") or {}
    return all(_fits_label(labels, term) for term in _terms(query.get("labelSelector", ""))) and (
        all(_fits_field(thing, term) for term in query.get("fieldSelector", "").split(",") if term)
    )


def _terms(text: str) -> list[str]:
    return [term.strip() for term in _TERM.findall(text)]


def _fits_label(labels: dict[str, str], term: str) -> bool:
    if among := _SET.fullmatch(term):
        inside = labels.get(among[1]) in {one.strip() for one in among[3].split(",")}
        return inside if among[2] == "in" else not inside
    if pair := _PAIR.fullmatch(term):
        same = labels.get(pair[1]) == pair[3]
        return not same if pair[2] == "!=" else same
    one = _ONE.fullmatch(term)
    assert one is not None, "it was checked before"
    return (one[2] in labels) is not bool(one[1])


def _fits_field(thing: Json, term: str) -> bool:
    unequal = "!=" in term
    path, wanted = term.split("!=", 1) if unequal else term.replace("==", "=").split("=", 1)
    found: Any = thing
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    same = (found or "") == wanted
    return not same if unequal else same


__all__ = ["FIELDS", "BadSelectorError", "check", "fits"]
