"""Errors of calls to AWS, with texts that say what to do.

    anything that botocore raises ─► failure_of(service, error) ─► CallError

Errors are recognised by the names of their classes and by the codes of answers, not by the classes
themselves: botocore is an extra and is imported only in ``calls``. The texts leave the service
out where only the part that asked can be meant: its name always stands beside them.
"""

from collections.abc import Mapping
from enum import Enum, unique
from types import MappingProxyType
from typing import Any, Final

TEXT_MAX: Final = 300  # characters; AWS can explain itself for a screenful


@unique
class CallFailure(Enum):
    """The kind of a failed call; parts of the source handle the kinds differently."""

    CREDENTIALS = "credentials"  # nothing can be asked until somebody logs in
    DENIED = "denied"  # this question is not allowed; others may be
    MISSING = "missing"  # what was asked about is not there
    THROTTLED = "throttled"  # asked too often, retries included
    UNREACHABLE = "unreachable"  # no answer at all
    OTHER = "other"


class CallError(Exception):
    """A call to AWS that failed: ``why`` is its kind for programs, the text is for people."""

    def __init__(
        self,
        text: str,
        why: CallFailure = CallFailure.OTHER,
        *,
        log_group_missing: bool = False,
    ) -> None:
        super().__init__(text)
        self.why = why
        self.log_group_missing = log_group_missing  # the whole group, not one of its streams


_NEEDS_LOGIN: Final = "log in again (or renew the keys); reading goes on by itself then"
_LOOK_FOR: Final = (
    "set a profile, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this host a role"
)

_CODES: Final[Mapping[str, tuple[CallFailure, str]]] = MappingProxyType(
    {
        "ExpiredToken": (CallFailure.CREDENTIALS, f"the credentials have expired: {_NEEDS_LOGIN}"),
        "ExpiredTokenException": (
            CallFailure.CREDENTIALS,
            f"the credentials have expired: {_NEEDS_LOGIN}",
        ),
        "RequestExpired": (
            CallFailure.CREDENTIALS,
            f"the credentials have expired: {_NEEDS_LOGIN}",
        ),
        "InvalidClientTokenId": (
            CallFailure.CREDENTIALS,
            f"AWS does not know the key: {_LOOK_FOR}",
        ),
        "UnrecognizedClientException": (
            CallFailure.CREDENTIALS,
            f"AWS does not know the key: {_LOOK_FOR}",
        ),
        "AuthFailure": (CallFailure.CREDENTIALS, f"AWS does not know the key: {_LOOK_FOR}"),
        "InvalidAccessKeyId": (CallFailure.CREDENTIALS, f"AWS does not know the key: {_LOOK_FOR}"),
        "SignatureDoesNotMatch": (
            CallFailure.CREDENTIALS,
            "the secret key is wrong: renew the keys",
        ),
        "InvalidSignatureException": (
            CallFailure.CREDENTIALS,
            "the signature is not accepted: check the secret key and this host's clock",
        ),
        "RequestTimeTooSkewed": (CallFailure.CREDENTIALS, "this host's clock is wrong: set it"),
        "Throttling": (CallFailure.THROTTLED, ""),
        "ThrottlingException": (CallFailure.THROTTLED, ""),
        "ThrottledException": (CallFailure.THROTTLED, ""),
        "RequestLimitExceeded": (CallFailure.THROTTLED, ""),
        "RequestThrottled": (CallFailure.THROTTLED, ""),
        "TooManyRequestsException": (CallFailure.THROTTLED, ""),
        "AccessDenied": (CallFailure.DENIED, ""),
        "AccessDeniedException": (CallFailure.DENIED, ""),
        "UnauthorizedOperation": (CallFailure.DENIED, ""),
        "AuthorizationError": (CallFailure.DENIED, ""),
        "ResourceNotFoundException": (CallFailure.MISSING, ""),
        "ClusterNotFoundException": (
            CallFailure.OTHER,
            "there is no such cluster here: check 'cluster' and 'region'",
        ),
        "QueueDoesNotExist": (CallFailure.MISSING, ""),
        "AWS.SimpleQueueService.NonExistentQueue": (CallFailure.MISSING, ""),
    }
)

_CLASSES: Final[Mapping[str, tuple[CallFailure, str]]] = MappingProxyType(
    {
        "NoCredentialsError": (CallFailure.CREDENTIALS, f"no credentials were found: {_LOOK_FOR}"),
        "PartialCredentialsError": (
            CallFailure.CREDENTIALS,
            f"half of a key was found: {_LOOK_FOR}",
        ),
        "ProfileNotFound": (
            CallFailure.CREDENTIALS,
            "the profile is not in ~/.aws/config: correct it",
        ),
        "CredentialRetrievalError": (
            CallFailure.CREDENTIALS,
            f"the credentials could not be renewed: {_NEEDS_LOGIN}",
        ),
        "TokenRetrievalError": (CallFailure.CREDENTIALS, f"the login has expired: {_NEEDS_LOGIN}"),
        "SSOTokenLoadError": (CallFailure.CREDENTIALS, f"nobody is logged in: {_NEEDS_LOGIN}"),
        "UnauthorizedSSOTokenError": (
            CallFailure.CREDENTIALS,
            f"the login has expired: {_NEEDS_LOGIN}",
        ),
        "NoRegionError": (CallFailure.CREDENTIALS, "no region is set: give the source a region"),
        "ConnectTimeoutError": (CallFailure.UNREACHABLE, "the endpoint does not take connections"),
        "ReadTimeoutError": (CallFailure.UNREACHABLE, "the endpoint does not answer"),
        "EndpointConnectionError": (CallFailure.UNREACHABLE, "the endpoint cannot be reached"),
        "ConnectionClosedError": (CallFailure.UNREACHABLE, "the endpoint closed the connection"),
        "SSLError": (CallFailure.UNREACHABLE, "the endpoint's certificate is not accepted"),
        "HTTPClientError": (CallFailure.UNREACHABLE, "the endpoint gave no proper answer"),
    }
)
# CloudWatch Logs has one code for a missing group and a missing stream; only its sentence differs.
_LOG_GROUP_MISSING: Final = "log group does not exist"

# Where IAM calls a service by another name than boto3 does.
_IAM_NAMES: Final = {"efs": "elasticfilesystem"}


def iam_action(service: str, operation: str) -> str:
    """The IAM action that a policy has to allow for an operation."""
    return f"{_IAM_NAMES.get(service, service)}:{operation}"


def failure_of(service: str, error: Exception) -> CallError:
    """Translate an error of botocore into a CallError; unknown errors keep botocore's text."""
    if isinstance(error, CallError):
        return error
    response = getattr(error, "response", None)
    if isinstance(response, dict) and "Error" in response:
        return _answered(service, str(getattr(error, "operation_name", "?")), response)
    for kind in type(error).__mro__:
        known = _CLASSES.get(kind.__name__)
        if known is not None:
            return CallError(known[1], known[0])
    told = str(error) or type(error).__name__
    return CallError(f"{type(error).__name__}: {told}"[:TEXT_MAX])


def _answered(service: str, operation: str, response: dict[str, Any]) -> CallError:
    code = str(response["Error"].get("Code", "?"))
    why, advice = _CODES.get(code, (CallFailure.OTHER, ""))
    told = str(response["Error"].get("Message", ""))
    if why is CallFailure.DENIED:
        action = iam_action(service, operation)
        advice = f"{action} is not allowed; 'holdfast aws iam-policy' prints what is needed"
    elif why is CallFailure.THROTTLED:
        tries = int(response.get("ResponseMetadata", {}).get("RetryAttempts", 0)) + 1
        advice = f"{operation} was throttled {tries} times; asked again at the next refresh"
    elif not advice:
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", "?")
        advice = f"{operation} failed with {code} ({status}): {told}"
        no_group = why is CallFailure.MISSING and _LOG_GROUP_MISSING in told
        return CallError(advice[:TEXT_MAX], why, log_group_missing=no_group)
    return CallError(f"{advice} ({code})"[:TEXT_MAX], why)


__all__ = ["CallError", "CallFailure", "failure_of", "iam_action"]
