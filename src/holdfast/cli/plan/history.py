"""Reads how often replicas of a running fleet failed, for ``plan redundancy --from-history``."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import click

from holdfast.cli.admin_port import Admin, admin_of
from holdfast.planner.observed_failures import ObservedFailures, observed_failures

_POINTS: Final = 2_000  # changes of one replica in one answer
_NAMES: Final = 40  # series in one question

ADMIN_OPTIONS: Final = (
    click.Option(["--admin", "url"], help="The admin port; default: of the fleet that runs here."),
    click.Option(["--token-env"], default="HOLDFAST_ADMIN_TOKEN", help="Variable with its token."),
    click.Option(["--ca"], type=click.Path(path_type=Path, dir_okay=False), help="Its authority."),
    click.Option(["-c", "--config"], type=click.Path(path_type=Path), help="Its fleet file."),
    click.Option(
        ["--state-dir"], type=click.Path(path_type=Path, file_okay=False), help="Its state."
    ),
)

OPTIONS: Final = (
    click.Option(
        ["--from-history"],
        is_flag=True,
        help="Count the failures of the fleet that runs, instead of --availability or --mtbf.",
    ),
    click.Option(["--since"], default=7.0, type=click.FloatRange(0.01, 400), help="Days of it."),
    click.Option(["--replicas"], default="", help="Only replicas whose names begin so."),
    *ADMIN_OPTIONS,
)


def figures_of_history(options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a redundancy question that a running fleet's history answers."""
    admin = admin_of(
        options["url"],
        options["token_env"],
        options["config"],
        options["state_dir"],
        options["ca"],
    )
    seen = read_failures(admin, options["since"] * 86_400.0, options["replicas"])
    if seen.up_s <= 0:
        raise click.ClickException("the history has no replica that served; give --availability")
    click.echo(
        f"{seen.replicas} replicas were up for {seen.up_s / 3600:,.1f} h and failed "
        f"{seen.failures} times, for {seen.down_s / 3600:,.2f} h in all.",
        err=True,
    )
    return {"failures": seen.failures, "up_time": seen.up_s, "down_time": seen.down_s}


def read_failures(admin: Admin, age_s: float, replicas: str = "") -> ObservedFailures:
    """Ask the admin port for the states of replicas, and count their failures."""
    names = _series(admin, f"replica/{replicas}")
    found: dict[str, list[tuple[float, float | None]]] = {}
    until = time.time()
    for first in range(0, len(names), _NAMES):
        asked = [("series", name) for name in names[first : first + _NAMES]]
        asked += [("since", f"{until - age_s:.3f}"), ("until", f"{until:.3f}")]
        asked += [("points", str(_POINTS)), ("value", "max")]
        told = admin.told(f"/history?{urlencode(asked)}")["series"]
        found |= {name: [(at, value) for at, value in rows] for name, rows in told.items()}
    return observed_failures(found, until)


def _series(admin: Admin, prefix: str) -> list[str]:
    names: list[str] = []
    more = True
    while more:
        asked = {"prefix": prefix, "limit": 5_000, "after": names[-1] if names else ""}
        page = admin.told(f"/history/series?{urlencode(asked)}")
        names += page["series"]
        more = bool(page["more"] and page["series"])
    return [name for name in names if name.endswith("/state")]


__all__ = ["ADMIN_OPTIONS", "OPTIONS", "figures_of_history", "read_failures"]
