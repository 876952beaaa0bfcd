"""``holdfast readiness``: tell a pod's readiness probe what control says of its replica."""

import os
import sys

import click
import msgspec

from holdfast.agent.readiness import PERIOD_S, ReadinessSettings
from holdfast.core.deploy.pod_readiness import VerdictHoldConfig

_HOLD = VerdictHoldConfig()


@click.command()
@click.option("--url", required=True, help="Control's admin port.")
@click.option("--model", required=True, help="The model's name in the fleet file.")
@click.option("--replica", required=True, help="The replica's id: the name of the pod.")
@click.option(
    "--listen",
    default="127.0.0.1:8099",
    show_default=True,
    metavar="HOST:PORT",
    help="Where GET /readyz is answered; a kubelet asks at the pod's address, so 0.0.0.0 there.",
)
@click.option("--ca", default="", help="A PEM file of certificates to trust, for own ones.")
@click.option(
    "--period", type=float, default=PERIOD_S, show_default=True, help="Seconds between questions."
)
@click.option(
    "--fresh",
    type=float,
    default=_HOLD.fresh_s,
    show_default=True,
    help="Seconds that a verdict holds; without one the answer is: ready.",
)
def readiness(
    url: str, model: str, replica: str, listen: str, ca: str, period: float, fresh: float
) -> None:
    """Answer a pod's readiness probe with control's verdict.

    It runs beside the engine, as 'holdfast render kubernetes' puts it there. While control is away
    the answer is 200: what is not known is not doubted. It has no part in liveness.

    \b
    Example:
      holdfast readiness --url http://control:8001 --model m --replica m-0
    """  # noqa: D301
    settings = ReadinessSettings(
        url=url, model=model, replica=replica, listen=listen, ca=ca, period_s=period, fresh_s=fresh
    )
    told = msgspec.json.encode(settings).decode()
    # Replaced by a process that needs none of the libraries of the command line.
    os.execv(sys.executable, [sys.executable, "-m", "holdfast.agent.readiness", told])  # noqa: S606


__all__ = ["readiness"]
