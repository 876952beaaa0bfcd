"""The shapes of what the operators' port answers and reads, for its description.

Apart from the paths, because the two grow for different reasons: a path with each order, a shape
with each thing that is told of.
"""

from typing import Any

from holdfast.control.incidents.reported import FACTS_MAX, KINDS
from holdfast.core.canary import CanaryVerdict

_Data = dict[str, Any]


def _whole(description: str, **more: Any) -> _Data:
    return {"type": "integer", "description": description, **more}


def _perhaps(kind: str, description: str) -> _Data:
    return {"type": [kind, "null"], "description": description}


def _object(required: list[str], **properties: _Data) -> _Data:
    return {"type": "object", "required": required, "properties": properties}


def _list(items: _Data) -> _Data:
    return {"type": "array", "items": items}


def _incident_schemas() -> _Data:
    string: _Data = {"type": "string"}
    time: _Data = {"type": "number", "description": "Seconds since 1970."}
    about = _object(
        ["replica", "model", "revision", "host", "filesystem"],
        replica=string,
        model=string,
        revision=string,
        host=string,
        filesystem=string,
    )
    evidence = _object(
        ["sign", "about", "at", "source", "text"],
        sign=string,
        about=about,
        at=time,
        source=string,
        text=string,
        numbers={"type": "object"},
    )
    entry = _object(
        ["at", "what", "about", "text"], at=time, what=string, about=string, text=string
    )
    said: _Data = {
        "id": string,
        "cause": string,
        "class": {"type": "string", "enum": ["loading", "runtime", "routing"]},
        "title": string,
        "stage": {"type": "string", "enum": ["open", "mending", "closed"]},
        "about": about,
        "replicas": _list(string),
        "opened_at": time,
        "changed_at": time,
        "closed_at": _perhaps("number", "Seconds since 1970."),
        "confidence": {"type": "number", "description": "0 to 1."},
        "other_causes": _list(string),
        "remedy": string,
        "action": {"type": "string", "description": "What was done, or why nothing was."},
        "fix": {"type": "string", "description": "What people should do."},
    }
    parts = {
        "evidence": _list(evidence),
        "consequences": _list(evidence),
        "timeline": _list(entry),
    }
    counts = {f"{name}_count": _whole("How many the whole one has.") for name in parts}
    return {
        "Incidents": _object(["incidents"], incidents=_list(_object(list(said), **said, **counts))),
        "Incident": _object([*said, *parts], **said, **parts),
    }


def schemas() -> _Data:
    """All of them, by name."""
    string: _Data = {"type": "string"}
    flag: _Data = {"type": "boolean"}
    replica = _object(
        ["id", "model", "revision", "state", "reason", "zone"],
        id=string,
        model=string,
        revision=string,
        state={"type": "string", "description": "Where in its life it is."},
        reason={"type": "string", "description": "Why it is there."},
        zone=string,
        endpoint=string,
        pid=_perhaps("integer", "Where Holdfast started it."),
    )
    return {
        "Error": _object(["error"], error=string),
        "Taken": _object(["accepted", "reason"], accepted=flag, reason=string),
        "Scale": _object(
            ["replicas"], replicas=_whole("How many are wanted.", minimum=0, maximum=256)
        )
        | {"additionalProperties": False},
        "Reloaded": _object(
            ["accepted", "epoch", "problems"],
            accepted=flag,
            epoch=_whole("The number of the config that runs."),
            problems=_list(string),
        ),
        "Status": _object(
            ["control", "epoch", "config_problems", "gateways", "replicas"],
            control=string,
            epoch=_whole("The number of the config that runs."),
            config_problems=_list(string),
            gateways=_list({"type": "object"}),
            replicas=_list(replica),
            incidents_open=_whole("Incidents that are not over."),
        ),
        **_incident_schemas(),
        "Events": _object(["events"], events=_list({"$ref": "#/components/schemas/Event"})),
        "Canaries": _object(
            ["canaries"],
            canaries=_list(
                _object(
                    ["at", "verdict", "detail", "latency_s"],
                    at={"type": "number", "description": "Seconds since 1970."},
                    verdict={
                        "type": "string",
                        "enum": [verdict.value for verdict in CanaryVerdict],
                    },
                    detail={"type": "string", "description": "Why; never the answer itself."},
                    latency_s=_perhaps("number", "Null where no answer was measured."),
                )
            ),
        ),
        "Event": _object(
            ["at", "model", "replica", "what", "reason"],
            at={"type": "number", "description": "Seconds since 1970."},
            model=string,
            replica=string,
            what=string,
            reason=string,
        ),
        **_gpu_schemas(),
        **_report_schemas(),
        "View": _view_schema(),
    }


def _gpu_schemas() -> _Data:
    string: _Data = {"type": "string"}
    flag: _Data = {"type": "boolean"}
    return {
        "Gpus": _object(
            ["available", "reason"],
            available=flag,
            reason=string,
            driver=_perhaps("string", "The driver's version."),
            cuda=_perhaps("string", "The newest CUDA that the driver supports."),
            gpus=_list({"$ref": "#/components/schemas/Gpu"}),
        ),
        "Cost": _object(
            ["currency", "since", "seconds", "totals", "models", "lines"],
            currency=string,
            since={"type": "number", "description": "Seconds since 1970."},
            seconds={"type": "number", "description": "How long that is ago."},
            priced=flag,
            totals={"type": "object", "description": "Of all models."},
            models=_list({"type": "object"}),
            lines=_list({"type": "object", "description": "The dearest first."}),
            left_out=_whole("Lines beyond the most that are told."),
        ),
        "Gpu": _object(
            ["index"],
            index=_whole("Its number on this machine."),
            uuid=_perhaps("string", "Its own name."),
            name=_perhaps("string", "The product."),
            memory_used=_perhaps("integer", "Bytes."),
            memory_total=_perhaps("integer", "Bytes."),
            utilisation=_perhaps("number", "0 to 1: the share of time with work."),
            temperature_c=_perhaps("integer", "Degrees Celsius."),
            power_w=_perhaps("number", "Watts."),
            ecc_uncorrected=_perhaps("integer", "Since the driver was loaded."),
            ecc_corrected=_perhaps("integer", "Since the driver was loaded."),
            xid=_list({"type": "object"}),
            problem=_perhaps("string", "What could not be asked."),
            processes=_list({"type": "array", "description": "A pid, and the bytes it holds."}),
        ),
    }


def _view_schema() -> _Data:
    """Rows as in ``holdfast.core.view.snapshot``, whose fields are written down there alone."""
    kinds: dict[str, str] = {
        "sources": "Parts of platforms that are asked, their age, and what is wrong with them.",
        "groups": "Hosts that are made alike, summed.",
        "hosts": "Machines.",
        "replicas": "Routed by Holdfast, or only seen on a platform.",
        "models": "Each over all layers.",
        "queues": "Work that waits, at gateways and in platforms.",
        "disks": "Filesystems that several hosts share.",
        "unmet": "Demands that cannot be met now.",
        "incidents": "Those that are not over.",
    }
    rows = {name: _list({"type": "object"}) | {"description": what} for name, what in kinds.items()}
    return _object(
        ["at", "version", *kinds],
        at={"type": "number", "description": "Seconds since 1970."},
        version=_whole("Grows with each that differs."),
        calls=_whole("To platforms, for the latest readings together."),
        took_s={"type": "number", "description": "Seconds that these took."},
        totals={"type": "object", "description": "Of the whole fleet."},
        notes=_list({"type": "string"}),
        **rows,
    )


def _report_schemas() -> _Data:
    fact = _object(
        ["kind"],
        kind={"type": "string", "enum": list(KINDS), "description": "And its fields beside it."},
    )
    rows = _list(fact) | {"minItems": 1, "maxItems": FACTS_MAX}
    return {
        "Report": _object(["facts"], facts=rows),
        "ReportTaken": _object(["taken"], taken=_whole("How many facts.")),
        "AgentReportTaken": _object(["taken"], taken={"type": "boolean"}),
        "Agents": _object(["agents"], agents=_list({"type": "object"})),
        "SeriesNames": _object(
            ["series", "more"], series=_list({"type": "string"}), more={"type": "boolean"}
        ),
        "Series": _object(
            ["series", "since", "until", "step_s", "left_out"],
            series={"type": "object", "description": "Rows of a time and a value, by name."},
            since={"type": "number"},
            until={"type": "number"},
            step_s={"type": "number", "description": "Between two rows."},
            left_out=_whole("Series that found no room in the answer."),
        ),
    }


__all__ = ["schemas"]
