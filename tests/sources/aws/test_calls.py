import pytest
from aws_caller import Clock

from holdfast.core.types import ConfigError
from holdfast.sources.aws.calls import AwsAccount, RateBucket, batches, moment
from holdfast.sources.aws.config import AwsConfig, RateConfig
from holdfast.sources.aws.errors import CallError, CallFailure, failure_of, iam_action


def test_a_bucket_lets_a_burst_through_and_then_spaces_the_rest():
    clock = Clock()
    bucket = RateBucket(RateConfig(per_s=10.0, burst=3), clock)
    assert [bucket.delay() for _ in range(5)] == pytest.approx([0, 0, 0, 0.1, 0.2])
    clock.now += 0.2
    assert bucket.delay() == pytest.approx(0.1)
    clock.now += 100
    assert [bucket.delay() for _ in range(4)] == pytest.approx([0, 0, 0, 0.1])


def test_slices_are_no_longer_than_they_may_be():
    assert [len(one) for one in batches(range(250))] == [100, 100, 50]
    assert list(batches([])) == []


@pytest.mark.parametrize(
    "told", [1_794_754_092, 1_794_754_092.0, "2026-11-15T14:48:12Z", "2026-11-15T14:48:12.000"]
)
def test_times_are_read_in_each_way_that_services_write_them(told):
    def slowly(_):
        raise AssertionError

    assert moment(told, slowly).timestamp() == 1_794_754_092


def test_a_time_of_another_kind_is_left_to_botocore():
    assert moment("Sun, 15 Nov 2026", lambda told: ("slowly", told)) == (
        "slowly",
        "Sun, 15 Nov 2026",
    )


def answered(code, operation="ListTasks", status=400, message="told", attempts=0):
    """As botocore raises what a service answered."""
    error = Exception("botocore's own text")
    error.operation_name = operation
    error.response = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status, "RetryAttempts": attempts},
    }
    return error


@pytest.mark.parametrize(
    ("code", "why", "text"),
    [
        ("ExpiredToken", CallFailure.CREDENTIALS, "have expired: log in again"),
        ("ExpiredTokenException", CallFailure.CREDENTIALS, "have expired: log in again"),
        ("UnrecognizedClientException", CallFailure.CREDENTIALS, "AWS does not know the key"),
        ("InvalidSignatureException", CallFailure.CREDENTIALS, "this host's clock"),
        ("AccessDeniedException", CallFailure.DENIED, "ecs:ListTasks is not allowed"),
        ("ThrottlingException", CallFailure.THROTTLED, "ListTasks was throttled 4 times"),
        ("ResourceNotFoundException", CallFailure.MISSING, "ListTasks failed with Resource"),
        ("ClusterNotFoundException", CallFailure.OTHER, "there is no such cluster here"),
        ("Odd", CallFailure.OTHER, "ListTasks failed with Odd (400): told"),
    ],
)
def test_answers_become_words_that_say_what_to_do(code, why, text):
    failed = failure_of("ecs", answered(code, attempts=3))
    assert failed.why is why
    assert text in str(failed)


@pytest.mark.parametrize(("kind", "missing"), [("group", True), ("stream", False)])
def test_a_missing_log_group_is_told_from_a_missing_stream(kind, missing):
    message = f"The specified log {kind} does not exist."
    error = answered("ResourceNotFoundException", "FilterLogEvents", message=message)
    failed = failure_of("logs", error)
    assert (failed.why, failed.log_group_missing) == (CallFailure.MISSING, missing)


def test_a_screenful_of_explanation_is_cut():
    assert len(str(failure_of("ecs", answered("Odd", message="x" * 5_000)))) <= 300


@pytest.mark.parametrize(
    ("name", "why", "text"),
    [
        ("NoCredentialsError", CallFailure.CREDENTIALS, "no credentials were found: set a profile"),
        ("ProfileNotFound", CallFailure.CREDENTIALS, "the profile is not in ~/.aws/config"),
        (
            "UnauthorizedSSOTokenError",
            CallFailure.CREDENTIALS,
            "the login has expired: log in again",
        ),
        ("NoRegionError", CallFailure.CREDENTIALS, "give the source a region"),
        ("ReadTimeoutError", CallFailure.UNREACHABLE, "does not answer"),
        ("EndpointConnectionError", CallFailure.UNREACHABLE, "cannot be reached"),
        ("SomethingNew", CallFailure.OTHER, "SomethingNew: details"),
    ],
)
def test_what_botocore_raises_itself_becomes_words_as_well(name, why, text):
    error = type(name, (Exception,), {})("details")
    failed = failure_of("sqs", error)
    assert (failed.why, text in str(failed)) == (why, True)


def test_every_error_in_the_tables_is_one_that_botocore_has():
    exceptions = pytest.importorskip("botocore.exceptions")
    from holdfast.sources.aws import errors  # noqa: PLC0415 - what only this test looks into

    assert all(hasattr(exceptions, name) for name in errors._CLASSES)


def test_a_derived_error_is_known_by_what_it_derives_from():
    base = type("HTTPClientError", (Exception,), {})
    assert failure_of("sqs", type("ProxyTrouble", (base,), {})()).why is CallFailure.UNREACHABLE


def test_a_failure_that_is_named_already_stays_as_it_is():
    failed = CallError("as it was", CallFailure.DENIED)
    assert failure_of("sqs", failed) is failed


def test_iam_has_names_of_its_own_for_some_services():
    assert iam_action("efs", "DescribeFileSystems") == "elasticfilesystem:DescribeFileSystems"
    assert iam_action("sqs", "ListQueues") == "sqs:ListQueues"


def test_a_closed_account_makes_no_client():
    account = AwsAccount(AwsConfig(region="eu-west-2"))
    account.close()
    with pytest.raises(CallError, match="the source is closed"):
        account.caller("sqs").ask("list_queues")


# --- the config -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"period_s": 0}, "aws.period_s"),
        ({"part_s": -1}, "aws.part_s"),
        ({"cluster": ""}, "aws.cluster"),
        ({"attempts": 11}, "aws.attempts"),
        ({"queue_prefix": "a", "queue_names": ("a",)}, "aws.queue_names"),
    ],
)
def test_a_config_that_cannot_work_is_refused(changed, field):
    with pytest.raises(ConfigError) as refused:
        AwsConfig(**changed)
    assert refused.value.field == field


@pytest.mark.parametrize("changed", [{"per_s": 0}, {"burst": 0}])
def test_a_rate_of_nothing_is_refused(changed):
    with pytest.raises(ConfigError):
        RateConfig(**changed)


def test_services_have_rates_of_their_own_or_the_common_one():
    config = AwsConfig(rates={"sqs": RateConfig(per_s=1.0)})
    assert config.rate_of("sqs").per_s == 1.0
    assert config.rate_of("ecs") == config.rate
    assert AwsConfig().rate_of("logs").per_s < 5  # what an account has of FilterLogEvents
