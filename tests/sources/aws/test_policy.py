import json

from click.testing import CliRunner

from holdfast.cli.aws import aws
from holdfast.sources.aws.policy import PolicyScope, actions, policy


def printed(*arguments):
    result = CliRunner().invoke(aws, ["iam-policy", *arguments])
    assert result.exit_code == 0, result.output
    return {one["Sid"]: one for one in json.loads(result.output)["Statement"]}


def test_without_options_everything_of_the_account_may_be_read():
    statements = printed()
    assert statements["ListTheHosts"]["Resource"] == ["arn:aws:ecs:*:*:cluster/*"]
    assert "Condition" not in statements["ReadWhatHasNoOwner"]
    assert all(one["Effect"] == "Allow" for one in statements.values())


def test_each_option_narrows_its_statement():
    statements = printed(
        *("--region", "eu-west-2", "--account", "123456789012", "--cluster", "marigold"),
        *("--queue-prefix", "llm-", "--queue", "dead", "--log-group", "/ecs/marigold"),
    )
    cluster = "arn:aws:ecs:eu-west-2:123456789012:cluster/marigold"
    assert statements["ListTheHosts"]["Resource"] == [cluster]
    assert statements["ReadTheCluster"]["Condition"] == {"ArnLike": {"ecs:cluster": cluster}}
    assert statements["ReadWhatHasNoOwner"]["Condition"] == {
        "StringEquals": {"aws:RequestedRegion": "eu-west-2"}
    }
    assert statements["CountTheQueues"]["Resource"] == [
        "arn:aws:sqs:eu-west-2:123456789012:dead",
        "arn:aws:sqs:eu-west-2:123456789012:llm-*",
    ]
    assert statements["HearTheReplicas"]["Resource"] == [
        "arn:aws:logs:eu-west-2:123456789012:log-group:/ecs/marigold:*"
    ]


def test_without_logs_nothing_of_them_is_granted():
    assert "HearTheReplicas" not in printed("--no-logs")
    result = CliRunner().invoke(aws, ["iam-policy", "--no-logs", "--log-group", "g"])
    assert result.exit_code == 2
    assert "exclude each other" in result.output


def test_other_partitions_have_other_names():
    assert printed("--partition", "aws-cn")["ListTheHosts"]["Resource"] == [
        "arn:aws-cn:ecs:*:*:cluster/*"
    ]


def test_nothing_that_changes_anything_is_granted():
    verbs = ("Describe", "List", "Get", "Filter")
    allowed = actions(policy(PolicyScope()))
    assert allowed
    assert all(action.partition(":")[2].startswith(verbs) for action in allowed)
    assert not any("*" in action for action in allowed)
