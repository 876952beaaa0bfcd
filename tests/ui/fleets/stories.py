"""One incident of the broken fleet and one request, as control's pages tell them."""

from typing import Any

from .broken import broken
from .rows import AT, PARLER


def incident_page(name: str = PARLER) -> dict[str, Any]:
    """One incident as ``GET /incidents/ID`` tells it."""
    row = next(one for one in broken().incidents if one.id == name)
    opened = AT - row.opened_s
    who = {"replica": row.about, "model": row.about.rpartition("-")[0]}
    page: dict[str, Any] = {
        "id": row.id,
        "stage": row.stage,
        "class": row.failure_class,
        "cause": row.cause,
        "title": row.title,
        "about": who,
        "replicas": list(row.replicas),
        "opened_at": opened,
        "changed_at": opened + 60,
        "closed_at": None,
        "confidence": row.confidence,
        "other_causes": ["out_of_memory"] if name == PARLER else [],
        "remedy": "page" if name == PARLER else "drain_and_restart",
        "action": row.action,
        "fix": row.fix,
        "evidence": [],
        "consequences": [],
        "timeline": [],
    }
    if name == PARLER:
        page |= _parler_story(opened, who)
    return page


def _parler_story(opened: float, who: dict[str, str]) -> dict[str, Any]:
    killed = "killed for memory 31 s after it was ready, with 1 request on it"
    sized = "memory limit 1.0 GB, footprint at least 3.5 GB, it was killed there: set 4 GB"
    grew = "the queue of parler-tts grew from 12 to 422 in 540 s"
    dead = "37 more dead letters of parler-tts, 37 in all"
    model = {"model": "parler-tts"}
    return {
        "evidence": [
            {
                "sign": "killed_for_memory",
                "about": who,
                "at": opened,
                "source": "platform",
                "text": killed,
            },
            {
                "sign": "limit_too_low",
                "about": who,
                "at": opened + 2,
                "source": "sizing",
                "text": sized,
            },
        ],
        "consequences": [
            {
                "sign": "queue_grows",
                "about": model,
                "at": opened + 60,
                "source": "queues",
                "text": grew,
            },
            {
                "sign": "dead_letters",
                "about": model,
                "at": opened + 300,
                "source": "queues",
                "text": dead,
            },
        ],
        "timeline": [
            {
                "at": opened,
                "what": "killed_for_memory",
                "about": who["replica"],
                "text": killed,
                "source": "platform",
            },
            {
                "at": opened + 2,
                "what": "cause",
                "about": "",
                "text": "undersized, 97 % sure",
                "source": "",
            },
            {
                "at": opened + 60,
                "what": "queue_grows",
                "about": "parler-tts",
                "text": grew,
                "source": "queues",
            },
            {
                "at": opened + 61,
                "what": "action",
                "about": "",
                "text": "paged: the reservation is not ours to change",
                "source": "",
            },
        ],
    }


def request_story(name: str = "req_8f3a12c4-17") -> dict[str, Any]:
    """One request as ``GET /explain/ID`` tells it."""
    return {
        "request_id": name,
        "asked_for": "parler-tts",
        "served_by": "parler-tts",
        "tenant": "acme",
        "streamed": True,
        "replica": "parler-tts-1",
        "status": 200,
        "code": "",
        "reason": "answered",
        "attempts": 2,
        "continued": False,
        "story": [
            {"at_s": 0.0, "what": "admitted", "detail": "tenant acme, interactive"},
            {"at_s": 0.0004, "what": "chosen", "detail": "parler-tts-0: least token work of 2"},
            {"at_s": 1.204, "what": "failed", "detail": "connection reset before the first token"},
            {"at_s": 1.2101, "what": "retried", "detail": "parler-tts-1: 1 of 2 retries"},
            {"at_s": 5.91, "what": "answered", "detail": "first token after 4.7 s"},
        ],
    }
