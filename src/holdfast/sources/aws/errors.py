"""What goes wrong with a call to AWS, in words that say what to do.

    anything that botocore raises ─► failure_of(service, error) ─► CallError

Errors are known by the names of their classes and by the codes of answers, not by the classes
themselves: botocore is an extra and is imported nowhere but in ``calling``. The texts leave out the
service where only the part that asked can have meant it: its name always stands beside them.
"""

from collections.abc import Mapping
from enum import Enum, unique
from types import MappingProxyType
from typing import Any, Final

TEXT_MAX: Final = 300  # characters; AWS can explain itself for a screenful


@unique
class Why(Enum):
    """What kind of failure it is; parts treat them differently."""

    CREDENTIALS = "credentials"  # nothing can be asked until somebody logs in
    DENIED = "denied"  # this question is not allowed; others may be
    MISSING = "missing"  # what was asked about is not there
    THROTTLED = "throttled"  # asked too often, retries included
    UNREACHABLE = "unreachable"  # no answer at all
    OTHER = "other"


class CallError(Exception):
    """A call gave nothing. The text is for people."""

    def __init__(self, text: str, why: Why = Why.OTHER) -> None:
        super().__init__(text)
        self.why = why


_NEEDS_LOGIN: Final = "log in again (or renew the keys); reading goes on by itself then"
_LOOK_FOR: Final = (
    "set a profile, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this host a role"
)

_CODES: Final[Mapping[str, tuple[Why, str]]] = MappingProxyType(
    {
        "ExpiredToken": (Why.CREDENTIALS, f"the credentials have expired: {_NEEDS_LOGIN}"),
        "ExpiredTokenException": (Why.CREDENTIALS, f"the credentials have expired: {_NEEDS_LOGIN}"),
        "RequestExpired": (Why.CREDENTIALS, f"the credentials have expired: {_NEEDS_LOGIN}"),
        "InvalidClientTokenId": (Why.CREDENTIALS, f"AWS does not know the key: {_LOOK_FOR}"),
        "UnrecognizedClientException": (Why.CREDENTIALS, f"AWS does not know the key: {_LOOK_FOR}"),
        "AuthFailure": (Why.CREDENTIALS, f"AWS does not know the key: {_LOOK_FOR}"),
        "InvalidAccessKeyId": (Why.CREDENTIALS, f"AWS does not know the key: {_LOOK_FOR}"),
        "SignatureDoesNotMatch": (Why.CREDENTIALS, "the secret key is wrong: renew the keys"),
        "InvalidSignatureException": (
            Why.CREDENTIALS,
            "the signature is not accepted: check the secret key and this host's clock",
        ),
        "RequestTimeTooSkewed": (Why.CREDENTIALS, "this host's clock is wrong: set it"),
        "Throttling": (Why.THROTTLED, ""),
        "ThrottlingException": (Why.THROTTLED, ""),
        "ThrottledException": (Why.THROTTLED, ""),
        "RequestLimitExceeded": (Why.THROTTLED, ""),
        "RequestThrottled": (Why.THROTTLED, ""),
        "TooManyRequestsException": (Why.THROTTLED, ""),
        "AccessDenied": (Why.DENIED, ""),
        "AccessDeniedException": (Why.DENIED, ""),
        "UnauthorizedOperation": (Why.DENIED, ""),
        "AuthorizationError": (Why.DENIED, ""),
        "ResourceNotFoundException": (Why.MISSING, ""),
        "ClusterNotFoundException": (
            Why.OTHER,
            "there is no such cluster here: check 'cluster' and 'region'",
        ),
        "QueueDoesNotExist": (Why.MISSING, ""),
        "AWS.SimpleQueueService.NonExistentQueue": (Why.MISSING, ""),
    }
)

_CLASSES: Final[Mapping[str, tuple[Why, str]]] = MappingProxyType(
    {
        "NoCredentialsError": (Why.CREDENTIALS, f"no credentials were found: {_LOOK_FOR}"),
        "PartialCredentialsError": (Why.CREDENTIALS, f"half of a key was found: {_LOOK_FOR}"),
        "ProfileNotFound": (Why.CREDENTIALS, "the profile is not in ~/.aws/config: correct it"),
        "CredentialRetrievalError": (
            Why.CREDENTIALS,
            f"the credentials could not be renewed: {_NEEDS_LOGIN}",
        ),
        "TokenRetrievalError": (Why.CREDENTIALS, f"the login has expired: {_NEEDS_LOGIN}"),
        "SSOTokenLoadError": (Why.CREDENTIALS, f"nobody is logged in: {_NEEDS_LOGIN}"),
        "UnauthorizedSSOTokenError": (Why.CREDENTIALS, f"the login has expired: {_NEEDS_LOGIN}"),
        "NoRegionError": (Why.CREDENTIALS, "no region is set: give the source a region"),
        "ConnectTimeoutError": (Why.UNREACHABLE, "the endpoint does not take connections"),
        "ReadTimeoutError": (Why.UNREACHABLE, "the endpoint does not answer"),
        "EndpointConnectionError": (Why.UNREACHABLE, "the endpoint cannot be reached"),
        "ConnectionClosedError": (Why.UNREACHABLE, "the endpoint closed the connection"),
        "SSLError": (Why.UNREACHABLE, "the endpoint's certificate is not accepted"),
        "HTTPClientError": (Why.UNREACHABLE, "the endpoint gave no proper answer"),
    }
)
# Where IAM calls a service by another name than boto3 does.
_IAM_NAMES: Final = {"efs": "elasticfilesystem"}


def iam_action(service: str, operation: str) -> str:
    """What a policy has to allow for an operation."""
    return f"{_IAM_NAMES.get(service, service)}:{operation}"


def failure_of(service: str, error: Exception) -> CallError:
    """The same failure, named; what is not known is told as botocore tells it."""
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
    why, advice = _CODES.get(code, (Why.OTHER, ""))
    told = str(response["Error"].get("Message", ""))
    if why is Why.DENIED:
        action = iam_action(service, operation)
        advice = f"{action} is not allowed; 'holdfast aws iam-policy' prints what is needed"
    elif why is Why.THROTTLED:
        tries = int(response.get("ResponseMetadata", {}).get("RetryAttempts", 0)) + 1
        advice = f"{operation} was throttled {tries} times; asked again at the next refresh"
    elif not advice:
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", "?")
        advice = f"{operation} failed with {code} ({status}): {told}"
        return CallError(advice[:TEXT_MAX], why)
    return CallError(f"{advice} ({code})"[:TEXT_MAX], why)


__all__ = ["CallError", "Why", "failure_of", "iam_action"]
