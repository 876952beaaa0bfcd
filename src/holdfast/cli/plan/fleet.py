"""Reads how fast a model of the running fleet is, for ``plan capacity --from-fleet MODEL``."""

from collections.abc import Mapping
from typing import Any, Final

import click

from holdfast.cli.admin_port import Admin, admin_of
from holdfast.cli.plan.history import ADMIN_OPTIONS
from holdfast.core.near_names import fix_of_name
from holdfast.ui.terminal.untrusted_text import escape

OPTIONS: Final = (
    click.Option(
        ["--from-fleet"], help="A model of the fleet that runs: its rate, lengths and speed."
    ),
    *ADMIN_OPTIONS,
)


def figures_of_fleet(options: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a capacity question that the joined view of a running fleet answers."""
    admin = admin_of(
        options["url"],
        options["token_env"],
        options["config"],
        options["state_dir"],
        options["ca"],
    )
    found = read_speed(admin, options["from_fleet"])
    told = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
    click.echo(f"{options['from_fleet']} now: {told}", err=True)
    return {name: value for name, value in found.items() if given.get(name) is None}


def read_speed(admin: Admin, model: str) -> dict[str, float]:
    """Time of a token, requests at once on a replica, and the rate, as measured now.

    The time of a token is measured with others' prompts in between, so none is added for them.
    What is not known is left out; a fleet without traffic has no speed.
    """
    view = admin.told("/view")
    rows = [row for row in view.get("replicas", ()) if row.get("model") == model]
    if not rows:
        known = [str(row["name"]) for row in view.get("models", ()) if "name" in row]
        told = f"no replica of {model} is in the view of this fleet"
        raise click.ClickException(f"{told}; {escape(fix_of_name(model, known, 'models'))}")
    timed = [row for row in rows if row.get("tpot_s")]
    if not timed:
        raise click.ClickException(f"no replica of {model} has answered lately: give --speed")
    held = [row["inflight"] for row in timed if row.get("inflight")]
    found = {
        "step_ms": 1000.0 * sum(row["tpot_s"] for row in timed) / len(timed),
        "batch": float(max(1, round(max(held)))) if held else 1.0,
    }
    for row in view.get("models", ()):
        if row.get("name") == model and row.get("requests_s"):
            found["rate"] = float(row["requests_s"])
            if row.get("tokens_s"):
                found["output"] = max(1.0, row["tokens_s"] / row["requests_s"])
    return found


__all__ = ["OPTIONS", "figures_of_fleet", "read_speed"]
