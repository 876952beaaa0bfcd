"""The OpenAPI 3.1 description of the admin port, written out as plain data.

Rejected: a framework that derives it from signatures. It would bring its own rules for parsing and
its own errors to fifteen small paths; a test compares this with the routes that exist instead.
"""

from typing import Any, Final

from holdfast import __version__
from holdfast.control.admin.openapi_schemas import schemas
from holdfast.control.view.history import ASKED_MAX, NAMES_DEFAULT, NAMES_MAX
from holdfast.storage.recall import POINTS_MAX

_Data = dict[str, Any]


def _text(description: str, example: str) -> _Data:
    return {
        "description": description,
        "content": {"text/plain": {"schema": {"type": "string"}, "example": example}},
    }


def _json(description: str, schema: str) -> _Data:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"description": description, "content": content}


def _either(description: str, example: str) -> _Data:
    """Text, or JSON where a replica was named."""
    content = _text(description, example)["content"] | _json("", "ReplicaReady")["content"]
    return {"description": description, "content": content}


def _in_path(name: str, description: str) -> _Data:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": f"{description}; it may hold slashes.",
        "schema": {"type": "string"},
    }


def _in_query(name: str, description: str, **schema: Any) -> _Data:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_REPLICA: Final = _in_path("replica_id", "The id of a replica, as in /status")
_MODEL: Final = _in_path("model", "The name of a model, as in the fleet file")
_READY_REPLICA: Final[_Data] = {
    "name": "replica",
    "in": "query",
    "required": False,
    "schema": {"type": "string"},
    "description": "A replica of it: what its platform's readiness probe is to be told, as JSON; "
    "404 where there is none.",
}
_REFUSED: Final[_Data] = {
    "401": {"$ref": "#/components/responses/NoToken"},
    "403": {"$ref": "#/components/responses/NoRole"},
    "421": {"$ref": "#/components/responses/OtherHost"},
    "429": {"$ref": "#/components/responses/TooManyTries"},
}
_TOKEN: Final[list[_Data]] = [{"token": []}]  # of an operation that is never open
_OPEN: Final[list[_Data]] = []
_ORDER_REFUSED: Final[_Data] = _REFUSED | {
    "403": {"$ref": "#/components/responses/OtherPage"},
    "415": {"$ref": "#/components/responses/NotJson"},
}


def _get(name: str, summary: str, responses: _Data, *parameters: _Data) -> _Data:
    refused = _REFUSED | responses
    operation: _Data = {"operationId": name, "summary": summary, "responses": refused}
    if parameters:
        operation["parameters"] = list(parameters)
    return {"get": operation}


def _post(name: str, summary: str, responses: _Data, *parameters: _Data, **more: Any) -> _Data:
    refused = _ORDER_REFUSED | responses  # an order's own reasons for a status come first
    operation: _Data = {"operationId": name, "summary": summary, "responses": refused}
    if parameters:
        operation["parameters"] = list(parameters)
    return {"post": operation | {"security": _TOKEN} | more}


def _order(name: str, summary: str, cannot: str, more: _Data | None = None, **said: Any) -> _Data:
    responses = {
        "202": _json("Taken on; /status and /events tell how it goes on.", "Taken"),
        "404": _json("No replica has this id.", "Error"),
        "409": _json(cannot, "Error"),
    }
    return _post(name, summary, responses | (more or {}), _REPLICA, **said)


def _body(schema: str) -> _Data:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"required": True, "content": content}


def _probes() -> _Data:
    """Signs of life and of readiness, which need no token."""
    alive = _get("livez", "Does this process run?", {"200": _text("It does.", "alive")})
    alive["get"] |= {"security": _OPEN}
    ready = _get(
        "readyz",
        "Are clients served?",
        {
            "200": _text(
                "Some gateway accepts requests; processes of Holdfast that are late or stopped are "
                "named behind it.",
                "ready",
            ),
            "503": _text("None does; the text says why.", "no gateway is connected"),
        },
    )
    ready["get"] |= {"security": _OPEN}
    ready_model = _get(
        "readyzModel",
        "Does somebody serve this model?",
        {
            "200": _either("A replica of it is ready, or the one that was named.", "ready"),
            "404": _json("The model has no replica of this id.", "ReplicaReady"),
            "503": _either("None is, or no model has this name.", "no replica is ready"),
        },
        _MODEL,
        _READY_REPLICA,
    )
    ready_model["get"] |= {"security": _OPEN}
    return {
        "/livez": alive,
        "/readyz": ready,
        "/readyz/{model}": ready_model,
    }


def _questions() -> _Data:
    return {
        "/metrics": _get(
            "metrics",
            "All that is counted, for Prometheus.",
            {"200": _text("The exposition format 0.0.4.", "holdfast_config_epoch 1")},
        ),
        "/status": _get(
            "status",
            "How everything stands.",
            {"200": _json("Gateways, replicas, the config that runs.", "Status")},
        ),
        "/gpus": _get(
            "gpus",
            "The GPUs of this machine, or why none can be seen.",
            {"200": _json("As they were read last.", "Gpus")},
        ),
        "/versions": _get(
            "versions",
            "What each replica runs on: driver, CUDA, NCCL, engine, weights and image.",
            {"200": _json("With what differs in a deployment, and warnings.", "Versions")},
        ),
        "/cost": _get(
            "cost",
            "GPU-seconds, tokens and their price, by tenant, model, route and use.",
            {"200": _json("Since this control began.", "Cost")},
        ),
        "/keys": _get(
            "keys",
            "The API keys of tenants: id, end and last use, never the key.",
            {"200": _json("In the order of the fleet file.", "Keys")},
        ),
        "/audit": _get(
            "audit",
            "Who gave which orders, from where, when, and what became of them.",
            {
                "200": _json("The newest, the oldest of them first.", "Audit"),
                "400": _json("The limit is no such number.", "Error"),
            },
            _in_query(
                "limit", "How many at most.", type="integer", minimum=0, maximum=1000, default=100
            ),
        ),
        "/openapi.json": _get(
            "openapi",
            "This description.",
            {
                "200": {
                    "description": "OpenAPI 3.1.",
                    "content": {"application/json": {"schema": {"type": "object"}}},
                }
            },
        ),
        "/explain/{request_id}": _get(
            "explain",
            "What happened to one request, and why.",
            {
                "200": {
                    "description": "Its story.",
                    "content": {"application/json": {"schema": {"type": "object"}}},
                },
                "404": _json("No gateway knows it; only recent ones are kept.", "Error"),
            },
            _in_path("request_id", "The id that the answer carried"),
        ),
    }


def _views() -> _Data:
    return {
        "/view": _get(
            "view",
            "All layers joined: groups, hosts, replicas, models, queues, filesystems, incidents.",
            {"200": _json("As it was at most a second ago.", "View")},
        ),
        "/view/stream": _get(
            "viewStream",
            "The same whenever something in it changes, at most once a second; with only=changes "
            "what differs from the view before.",
            {
                "200": {
                    "description": "Server-sent events. view: the data is a View. changes: the "
                    "data has since (the version it builds upon), head (what of the View is no "
                    "table), rows (by table and place, the fields that differ) and whole (tables "
                    "whose length differs).",
                    "content": {"text/event-stream": {"schema": {"type": "string"}}},
                },
                "400": _json("only is neither left out nor changes.", "Error"),
                "503": _json("Too many clients follow already.", "Error"),
            },
            _in_query("only", "Send the whole only once, then what differs.", enum=["changes"]),
        ),
    }


_INCIDENT: Final[_Data] = {
    "name": "incident_id",
    "in": "path",
    "required": True,
    "description": "The id of an incident, such as inc-000123.",
    "schema": {"type": "string"},
}


def _incidents() -> _Data:
    unknown = {"404": _json("No incident has this id, or it is not kept any more.", "Error")}
    return {
        "/incidents": _get(
            "incidents",
            "Failures that were found: their cause, what was done, what to do.",
            {
                "200": _json("The latest, the oldest of them first.", "Incidents"),
                "400": _json("The limit is no such number, or there is no such stage.", "Error"),
            },
            _in_query(
                "limit", "How many at most.", type="integer", minimum=0, maximum=1000, default=100
            ),
            _in_query(
                "stage",
                "open: all that are not over; mending: those of them that something is done about.",
                type="string",
                enum=["open", "mending", "closed"],
            ),
        ),
        "/incidents/{incident_id}": _get(
            "incident",
            "One incident with its evidence and its timeline.",
            {"200": _json("The incident.", "Incident"), **unknown},
            _INCIDENT,
        ),
        "/incidents/{incident_id}/export": _get(
            "exportIncident",
            "The incident and the facts behind it, to be replayed elsewhere.",
            {
                "200": {
                    "description": "Lines of JSON: the incident, then facts in core time.",
                    "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
                },
                **unknown,
            },
            _INCIDENT,
        ),
        "/incidents/{incident_id}/close": _post(
            "closeIncident",
            "Say that it is over; who was taken out for it is judged by its canaries again.",
            {
                "202": _json("It is closed.", "Taken"),
                "409": _json("It is closed already.", "Error"),
                **unknown,
            },
            _INCIDENT,
        ),
    }


def _histories() -> _Data:
    return {
        "/events": _get(
            "events",
            "What happened to replicas, from the store that outlives restarts.",
            {
                "200": _json("The newest, the oldest of them first.", "Events"),
                "400": _json("The limit is no such number.", "Error"),
            },
            _in_query(
                "limit", "How many at most.", type="integer", minimum=0, maximum=5000, default=1000
            ),
            _in_query("replica", "Those of this replica only.", type="string"),
        ),
        "/replicas/{replica_id}/canaries": _get(
            "canaries",
            "What the last canaries of a replica found.",
            {
                "200": _json("The last 20 since control began, the newest last.", "Canaries"),
                "404": _json("No replica has this id.", "Error"),
            },
            _REPLICA,
        ),
        "/replicas/{replica_id}/logs": _get(
            "logs",
            "The end of a replica's output.",
            {
                "200": _text("At most 1 MiB. With follow, the answer has no end.", "model loaded"),
                "400": _json("A parameter is no such number.", "Error"),
                "404": _json("No such replica, or nobody who is asked has its log.", "Error"),
                "409": _json("A platform has this log; it cannot be followed here.", "Error"),
                "500": _json("The file, or the platform's log, cannot be read.", "Error"),
                "503": _json("Too many clients follow or read logs already.", "Error"),
            },
            _REPLICA,
            _in_query(
                "lines", "How many at most.", type="integer", minimum=0, maximum=10000, default=200
            ),
            _in_query(
                "follow",
                "1: then also what is added, until the client goes away.",
                type="integer",
                enum=[0, 1],
                default=0,
            ),
        ),
    }


def _series() -> _Data:
    refused = {
        "400": _json("A parameter is unknown or wrong; the error says which.", "Error"),
        "503": _json("The history cannot be read, or too many ask.", "Error"),
    }
    return {
        "/history": _get(
            "history",
            "Figures of the past, by the names of their series.",
            {"200": _json("Rows of a time and a value; null is unknown.", "Series"), **refused},
            _in_query(
                "series",
                "A name, or several by repetition.",
                type="string",
                minLength=1,
                **{"x-repeated-max": ASKED_MAX},  # an array would be another type to old readers
            )
            | {"required": True},
            _in_query("match", "How names are taken.", enum=["exact", "prefix", "pattern"]),
            _in_query("since", "Seconds since 1970.", type="number"),
            _in_query("until", "Seconds since 1970.", type="number"),
            _in_query(
                "points",
                "How many to aim at.",
                type="integer",
                minimum=2,
                maximum=POINTS_MAX,
                default=300,
            ),
            _in_query("value", "Of what was joined.", enum=["mean", "min", "max", "last"]),
            _in_query("step", "Seconds; left out: what fits.", enum=[10, 60, 900]),
        ),
        "/history/series": _get(
            "historySeries",
            "The names of series, page by page.",
            {"200": _json("Names in order, and whether there are more.", "SeriesNames"), **refused},
            _in_query("prefix", "How they begin.", type="string"),
            _in_query("after", "The last name of the page before.", type="string"),
            _in_query(
                "limit",
                "How many at most.",
                type="integer",
                minimum=1,
                maximum=NAMES_MAX,
                default=NAMES_DEFAULT,
            ),
        ),
    }


def _agents() -> _Data:
    body = {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
    name = _in_path("name", "The agent's own name") | {"description": "The agent's own name."}
    return {
        "/agents": _get(
            "agents",
            "The agents that report from other hosts.",
            {
                "200": _json("Each with the age of its last report.", "Agents"),
                "404": _json("The fleet file takes no agents.", "Error"),
            },
        ),
        "/agents/{name}": _post(
            "agentReport",
            "What an agent saw on its host; its own token opens this path and no other.",
            {
                "202": _json("It is taken.", "AgentReportTaken"),
                "400": _json("It is not taken: the error names the first bad field.", "Error"),
                "404": _json("The fleet file takes no agents.", "Error"),
                "409": _json("Another agent reports under this name.", "Error"),
                "413": _json("The body is too large.", "Error"),
                "429": _json("Too many; Retry-After says when.", "Error"),
            },
            name,
            requestBody=body,
        ),
    }


def _orders() -> _Data:
    return {
        "/reload": _post(
            "reload",
            "Read the fleet file again, now.",
            {
                "200": _json("It is what runs.", "Reloaded"),
                "422": _json("It has mistakes; the one before runs on.", "Reloaded"),
            },
        ),
        "/replicas/{replica_id}/drain": _order(
            "drain",
            "Send it nothing new and let it finish what it has.",
            "It cannot be drained as things stand; the error says why.",
        ),
        "/replicas/{replica_id}/undrain": _order(
            "undrain", "Take a drained replica back.", "It was not drained by an operator."
        ),
        "/replicas/{replica_id}/restart": _order(
            "restart",
            "Drain it and start it anew.",
            "Holdfast did not start it, or it is being restarted already.",
        ),
        "/replicas/{replica_id}/disturb": _order(
            "disturb",
            "Make trouble on purpose, for so many seconds, as 'holdfast chaos' does.",
            "It is disturbed already, or this cannot be done; the error says why.",
            {
                "400": _json("The body is not what it should be.", "Error"),
                "403": _json(
                    "The fleet file does not enable chaos (chaos.enabled), the token has not the "
                    "role chaos, or the order comes from a page of another host.",
                    "Error",
                ),
                "413": _json("The body is too large.", "Error"),
            },
            requestBody=_body("Disturb"),
        ),
        "/replicas/{replica_id}/undisturb": _order(
            "undisturb", "End that before its time.", "It is not disturbed."
        ),
        "/models/{model}/scale": _post(
            "scale",
            "Want so many replicas of a model from now on.",
            {
                "202": _json("Taken on; /status tells how it goes on.", "Taken"),
                "400": _json("The body is not what it should be.", "Error"),
                "404": _json("No model has this name.", "Error"),
                "409": _json("Holdfast does not start this model's replicas.", "Error"),
                "413": _json("The body is too large.", "Error"),
            },
            _MODEL,
            requestBody=_body("Scale"),
        ),
    }


def _baselines() -> _Data:
    orders = {
        "accept": "Take the model's latest answers for its baselines.",
        "reset": "Drop the model's baselines and learn them anew.",
    }
    path = "/models/{model}/baseline"
    return {
        path: _get(
            "baselines",
            "What a model's answers are compared with, beside its latest answers.",
            {"200": _json("Empty where no answer was measured.", "Baselines")},
            _MODEL,
        ),
        **{
            f"{path}/{what}": _post(
                f"{what}_baselines",
                told,
                {
                    "202": _json("Done; it stands in the audit trail.", "Taken"),
                    "400": _json("The reason is missing or too long.", "Error"),
                    "409": _json("There is no such baseline, or too few answers.", "Error"),
                    "413": _json("The body is too large.", "Error"),
                },
                _MODEL,
                requestBody=_body("BaselineOrder"),
            )
            for what, told in orders.items()
        },
    }


def _reports() -> _Data:
    return {
        "/facts": _post(
            "report",
            "Tell what another source saw of hosts, filesystems, queues and replicas.",
            {
                "202": _json("All of them are taken, and judged soon.", "ReportTaken"),
                "400": _json("None is taken: the error names the first bad one.", "Error"),
                "413": _json("The body is too large.", "Error"),
                "429": _json("More than are taken in a second; Retry-After says when.", "Error"),
            },
            requestBody=_body("Report"),
        ),
    }


def openapi_document() -> dict[str, Any]:
    """Build the OpenAPI 3.1 document of the admin port as plain data, for ``/openapi.json``."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast, the operators' port",
            "version": __version__,
            "description": "What a fleet does, and the orders that people may give it.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:8001"}],
        "security": [{}, {"token": []}],
        "paths": _probes()
        | _questions()
        | _views()
        | _histories()
        | _series()
        | _incidents()
        | _orders()
        | _baselines()
        | _reports()
        | _agents(),
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of the fleet file (admin.token, admin.tokens), or that "
                    "of the state directory, from the same machine. Questions need the role read, "
                    "orders the role operate, disturb the role chaos. On loopback questions need "
                    "none unless the fleet file sets a token or admin.open_read: false.",
                }
            },
            "responses": {
                "NoToken": _json("The admin token is missing or wrong.", "Error"),
                "NoRole": _json("The token has not the role that this needs.", "Error"),
                "TooManyTries": _json("Too many wrong tokens; Retry-After says when.", "Error"),
                "OtherHost": _json("The Host of the request is not this machine.", "Error"),
                "OtherPage": _json(
                    "The order comes from a page of another host, or its token has not the role.",
                    "Error",
                ),
                "NotJson": _json("The body of an order is JSON, and says so.", "Error"),
            },
            "schemas": schemas(),
        },
    }


__all__ = ["openapi_document"]
