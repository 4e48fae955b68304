"""What AWS says when it says no, in plain words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from client_sdk._errors import CornermanError


class CloudFault(CornermanError):
    """AWS refused, or could not be asked; the text says what to do."""


class Unreached(CloudFault):
    """AWS did not answer; it may a moment later."""


_NO_CREDENTIALS = "AWS does not know you: run `aws configure` (or `aws sso login`), or name a profile with --profile."
_BY_CODE = {
    "ExpiredToken": "Your AWS login has expired: log in again (`aws sso login`, or new keys).",
    "ExpiredTokenException": "Your AWS login has expired: log in again (`aws sso login`, or new keys).",
    "RequestExpired": "Your AWS login has expired, or this machine's clock is wrong: log in again, or set the clock.",
    "InvalidClientTokenId": "AWS does not know these keys: check `aws sts get-caller-identity`, and --profile.",
    "UnrecognizedClientException": "AWS does not know these keys: check `aws sts get-caller-identity`, and --profile.",
    "AuthFailure": "AWS does not accept these keys in this region: check `aws sts get-caller-identity`, and --region.",
    "SignatureDoesNotMatch": "The secret key does not belong to the access key: run `aws configure` again.",
    "OptInRequired": "This AWS account may not use this region or service yet: enable it in the AWS console.",
    "Throttling": "AWS is asked too often just now: try again in a minute.",
    "InsufficientCapabilitiesException": "Your AWS user may not create roles: ask for CAPABILITY_IAM.",
}
_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}
_BY_WORDS = (
    (
        r"VcpuLimitExceeded|vCPU limit|more vCPU capacity",
        "Your AWS account may not run so many cores: ask for more under Service Quotas (EC2, 'Running On-Demand Standard "
        "instances', in vCPUs), or take a smaller --type.",
    ),
    (
        r"MaxSpotInstanceCountExceeded|spot.{0,40}(limit|quota)",
        "Your AWS account may not run so many spot instances: ask for more under Service Quotas (EC2, 'All Standard Spot "
        "Instance Requests'), or leave out --spot.",
    ),
    (
        r"InsufficientInstanceCapacity|UnfulfillableCapacity|capacity-not-available|no Spot capacity",
        "AWS has no free machine of this --type here just now: try later, another --type or another --region.",
    ),
    (r"SpotMaxPriceTooLow", "The spot price is above what is allowed: try later, or leave out --spot."),
    (r"AddressLimitExceeded", "Your AWS account has no fixed address left: release one, or leave out --fixed-address."),
    (r"(Unsupported|not supported).{0,80}(instance type|Availability Zone)", "This --type is not offered there: take another --type or --region."),
    (r"No default VPC|no default VPC|VPCIdNotSpecified", "This region has no default network: name one with --vpc and --subnet."),
    (r"(WaitCondition|Installed).{0,40}(timed out|Timed out)|WaitCondition timed out",
     "The instance did not report within 30 minutes: can it reach the internet from its subnet?"),
    (r"Unable to fetch parameters|ssm:.*ParameterNotFound", "The machine image is not found in this region: name another with --image-id."),
)  # fmt: skip
_RECEIVED = re.compile(r"WaitCondition received failed message: '(.*?)'(?: for uniqueId.*)?$", re.DOTALL)


def in_words(text: str) -> str:
    """What AWS's own text means to somebody who wants a host; the text itself where nothing better is known."""
    said = _RECEIVED.search(text)
    if said:
        return f"Installing on the instance failed: {said[1]}"
    for pattern, words in _BY_WORDS:
        if re.search(pattern, text, re.IGNORECASE | re.DOTALL):
            return words
    return text.strip()


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Turns what boto3 raises into one sentence that says what to do."""
    from botocore import exceptions as aws

    try:
        yield
    except aws.ClientError as fault:
        raise CloudFault(_client_fault(fault.response.get("Error", {}), fault.operation_name)) from fault
    except (aws.NoCredentialsError, aws.PartialCredentialsError) as fault:
        raise CloudFault(_NO_CREDENTIALS) from fault
    except (aws.TokenRetrievalError, aws.SSOTokenLoadError, aws.UnauthorizedSSOTokenError) as fault:
        raise CloudFault("Your AWS login has expired: run `aws sso login`.") from fault
    except aws.ProfileNotFound as fault:
        raise CloudFault(f"{fault}: see ~/.aws/config, or leave out --profile.") from fault
    except aws.NoRegionError as fault:
        raise CloudFault("No AWS region is chosen: name one with --region, or run `aws configure`.") from fault
    except aws.InvalidRegionError as fault:
        raise CloudFault(f"{fault}: name another with --region.") from fault
    except (aws.HTTPClientError, aws.ConnectionError) as fault:
        raise Unreached(
            f"AWS is not reached ({type(fault).__name__}): check this machine's network and --region."
        ) from fault
    except aws.BotoCoreError as fault:
        raise CloudFault(f"AWS could not be asked: {fault}") from fault


def _client_fault(error: Mapping[str, Any], operation: str) -> str:
    code, message = error.get("Code", ""), error.get("Message", "")
    if code in _DENIED:
        return f"Your AWS user may not do {operation}: ask for that permission, or name another profile with --profile."
    if code in _BY_CODE:
        return _BY_CODE[code]
    return in_words(f"{code}: {message}" if message else code)
