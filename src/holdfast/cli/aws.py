"""``holdfast aws``: the permissions that an AWS source needs."""

import json

import click

from holdfast.sources.aws.policy import PolicyScope, policy


@click.group()
def aws() -> None:
    """Prepare an AWS account to be read.

    \b
    Example:
      holdfast aws iam-policy --region eu-west-2 --cluster marigold
    """  # noqa: D301


@aws.command("iam-policy")
@click.option("--region", default="*", metavar="REGION", help="Only in this region.")
@click.option("--account", default="*", metavar="ID", help="The account's number.")
@click.option("--cluster", default="*", metavar="NAME", help="Only this ECS cluster.")
@click.option(
    "--queue-prefix",
    "queue_prefixes",
    multiple=True,
    metavar="PREFIX",
    help="Only queues whose names begin so, dead letters included; may be repeated.",
)
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", help="Only this queue; may be repeated."
)
@click.option(
    "--log-group",
    "log_groups",
    multiple=True,
    metavar="NAME",
    help="Only this log group; may be repeated.",
)
@click.option("--no-logs", is_flag=True, help="Logs are not read.")
@click.option(
    "--partition",
    default="aws",
    type=click.Choice(["aws", "aws-cn", "aws-us-gov"]),
    help="For China and the US government.",
    show_default=True,
)
def iam_policy(
    *,
    region: str,
    account: str,
    cluster: str,
    queue_prefixes: tuple[str, ...],
    queues: tuple[str, ...],
    log_groups: tuple[str, ...],
    no_logs: bool,
    partition: str,
) -> None:
    """Print the policy that a source of type aws needs: it reads, and changes nothing.

    \b
    Examples:
      holdfast aws iam-policy
      holdfast aws iam-policy --region eu-west-2 --account 123456789012 \\
        --cluster marigold --queue-prefix llm- --log-group /ecs/marigold
    """  # noqa: D301
    if no_logs and log_groups:
        raise click.UsageError("--no-logs and --log-group exclude each other")
    named = (*queues, *(f"{prefix}*" for prefix in queue_prefixes))
    scope = PolicyScope(
        region=region,
        account=account,
        cluster=cluster,
        queues=named or ("*",),
        log_groups=() if no_logs else log_groups or ("*",),
        partition=partition,
    )
    click.echo(json.dumps(policy(scope), indent=2))


__all__ = ["aws"]
