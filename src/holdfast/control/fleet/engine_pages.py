"""Reads what an engine publishes of itself: its load, and the counts of one model.

    metrics page (every second)  ─► Load, and counts of inference servers ┐
    page of statistics (seldom)  ─► what the metrics page does not count   ├─► EngineReport

A metrics page stands where the file says, else where the engine's dialect has it: at the replica's
own URL, on the usual second port beside the usual first, or on the port that its recipe chose. The
engine's token goes to the replica's own URL alone: a metrics page on another port asks for none,
and whoever listens there is not necessarily the engine.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlsplit

from holdfast.config.fleet_file import Deployed
from holdfast.control.fetch import FetchError, fetch
from holdfast.control.fleet.canaries import bearer
from holdfast.engines import Load, dialect
from holdfast.engines.dialect import Dialect, InferenceCounts
from holdfast.engines.launch_command import beside

_PORTS: Final = {"http": 80, "https": 443}


@dataclass(slots=True, frozen=True)
class EngineReport:
    """One reading of an engine's pages: its load, and one model's inference counts.

    Fields that could not be read are None; ``counts`` as a whole is None for engines that count no
    inferences.
    """

    load: Load = field(default_factory=Load)
    counts: InferenceCounts | None = None  # None: this engine counts no inferences


def metrics_page(deployed: Deployed, known: Dialect) -> str | None:
    """The absolute URL of a replica's metrics page; None where none is known. Reads nothing.

    The fleet file's ``metrics_url`` comes first, then the template of its launch recipe, the usual
    metrics port of its engine, and last the engine's path below the replica's own URL.
    """
    parts = urlsplit(deployed.url)
    port = parts.port or _PORTS[parts.scheme]
    template = deployed.metrics_url or ""
    if not template and deployed.by_recipe:
        template = known.recipe_metrics_url
    if not template and known.metrics_ports is not None:
        usual, beside_it = known.metrics_ports
        if parts.scheme == "http" and port == usual:
            template = f"http://{{host}}:{beside_it}/metrics"
    if template:
        return beside(template, parts.hostname or "", port)
    return None if known.metrics_path is None else f"{deployed.url}{known.metrics_path}"


async def read_engine(
    deployed: Deployed,
    deadline_s: float,
    environment: Mapping[str, str],
    *,
    statistics: bool = False,
) -> EngineReport:
    """Read an engine's metrics page once; with ``statistics``, its page of statistics, too.

    Never raises: a page that is missing, late or not answered with 200 leaves its fields None.
    """
    known = dialect(deployed.engine)
    page = metrics_page(deployed, known)
    own = page is not None and page.startswith(f"{deployed.url}/")
    token = bearer(deployed, environment)
    body, more = await asyncio.gather(
        _page(deployed, page, deadline_s, token if own else None),
        _statistics(deployed, known, deadline_s, token, asked=statistics),
    )
    text = body.decode("utf-8", "replace") if body is not None else None
    load = known.read_load(text) if text is not None else Load()
    if known.read_counts is None:
        return EngineReport(load)
    counts = InferenceCounts()
    if text is not None:
        counts = known.read_counts(text, deployed.served_as)
    if counts.pending is not None:
        load = replace(load, waiting=counts.pending)  # of this model, not of all of the server
    return EngineReport(load, counts.filled_from(more))


async def _statistics(
    deployed: Deployed, known: Dialect, deadline_s: float, token: str | None, *, asked: bool
) -> InferenceCounts:
    if not asked or known.statistics_path is None or known.read_statistics is None:
        return InferenceCounts()
    path = known.statistics_path.replace("{model}", deployed.served_as)
    more = {known.token_header: token} if known.token_header and token else {}
    body = await _page(deployed, f"{deployed.url}{path}", deadline_s, token, more)
    if body is None:
        return InferenceCounts()
    return known.read_statistics(body, deployed.served_as)


async def _page(
    deployed: Deployed,
    url: str | None,
    deadline_s: float,
    token: str | None,
    headers: Mapping[str, str] | None = None,
) -> bytes | None:
    """The body of a page; None where it is not there, late or forbidden."""
    if url is None:
        return None
    parts = urlsplit(url)
    base = f"{parts.scheme}://{parts.netloc}"
    try:
        answer = await fetch(
            base, parts.path, deadline_s, bearer=token, tls=deployed.context(), headers=headers
        )
    except FetchError:
        return None
    return answer.body if answer.status == 200 else None


__all__ = ["EngineReport", "metrics_page", "read_engine"]
