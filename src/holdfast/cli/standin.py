"""``holdfast stand-in``: an engine without a model, for tests and demos."""

from typing import Any

import click
import orjson
import uvloop

from holdfast.testing.standin import FaultError, Like, Options, StandIn, fault
from holdfast.testing.standin.faults import Ailment
from holdfast.testing.standin.server import serve

_PORT = click.IntRange(0, 65_535)


@click.command("stand-in")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where the engine listens.")
@click.option("--port", type=_PORT, default=9501, show_default=True, help="Port; 0 picks one.")
@click.option("--side-port", type=_PORT, help="Port for faults and figures, on loopback only.")
@click.option("--model", "models", multiple=True, default=("m",), help="Name; may be repeated.")
@click.option(
    "--like",
    type=click.Choice([str(like) for like in Like]),
    default="vllm",
    show_default=True,
    help="Whose manners and metrics it has.",
)
@click.option("--ttft-ms", type=float, default=50.0, show_default=True, help="To the first token.")
@click.option("--tpot-ms", type=float, default=10.0, show_default=True, help="Between tokens.")
@click.option("--tokens", type=int, default=20, show_default=True, help="Length of an answer.")
@click.option("--tokens-per-chunk", type=int, default=1, show_default=True, help="In one event.")
@click.option(
    "--prefill-us-per-token", type=float, default=0.0, show_default=True, help="Per prompt word."
)
@click.option(
    "--step-ms",
    type=float,
    default=0.0,
    show_default=True,
    help="Above 0: answers share one batch, and each step of it takes this long.",
)
@click.option("--per-sequence-ms", type=float, default=0.0, help="More, for each in the batch.")
@click.option("--per-kv-token-ms", type=float, default=0.0, help="More, for each token held.")
@click.option("--slots", type=int, default=0, show_default=True, help="At once; 0 is unlimited.")
@click.option("--kv-tokens", type=int, default=262_144, show_default=True, help="KV cache size.")
@click.option(
    "--tied",
    type=float,
    default=0.0,
    show_default=True,
    help="Share of answers that take the other of two first words that are as likely.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the chances it takes.")
@click.option("--fault", "named", help="Begin with this fault, such as hang.")
@click.option(
    "--fault-with", "details", multiple=True, help="Its details: factor=3, tokens=5 and so on."
)
def stand_in(
    *,
    host: str,
    port: int,
    side_port: int | None,
    like: str,
    named: str | None,
    details: tuple[str, ...],
    **options: Any,
) -> None:
    """Pretend to be an inference engine, for tests and demos.

    It has the OpenAI API, known answers, and faults on demand. The answer to a prompt is the same
    on every stand-in. Faults are switched at run time on the side port: POST /fault
    {"kind": "hang"}, DELETE /fault, GET /stats.

    \b
    Examples:
      holdfast stand-in --port 9501 --side-port 9601
      holdfast stand-in --port 9502 --fault slow --fault-with factor=10
    """  # noqa: D301
    wanted = Options(like=Like(like), **options)
    ailment = _ailment(named, details)

    def ready(standin: StandIn) -> None:
        side = f", side port {standin.side_port}" if standin.side_port else ""
        click.echo(f"stand-in for {', '.join(wanted.models)} at http://{host}:{standin.port}{side}")

    try:
        uvloop.run(
            serve(wanted, host=host, port=port, side_port=side_port, ailment=ailment, ready=ready)
        )
    except OSError as error:
        raise click.ClickException(f"cannot listen: {error.strerror or error}") from error


def _ailment(named: str | None, details: tuple[str, ...]) -> Ailment | None:
    if named is None:
        if details:
            raise click.UsageError("--fault-with goes with --fault only")
        return None
    how: dict[str, Any] = {}
    for detail in details:
        name, equals, value = detail.partition("=")
        if not equals:
            raise click.UsageError(f"--fault-with {detail!r}: write name=value")
        try:
            how[name] = orjson.loads(value)
        except orjson.JSONDecodeError:
            how[name] = value  # a word, such as form=bytes
    try:
        return fault(named, **how)
    except FaultError as refused:
        raise click.UsageError(f"--fault: {refused}") from refused


__all__ = ["stand_in"]
