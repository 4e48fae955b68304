"""What the user chose for a host on EC2, looked at before anything is made: a wrong choice would be found minutes later."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from client_sdk.ec2.faults import CloudFault

_TIME = re.compile(r"[1-9][0-9]+s|[1-9][0-9]*[mhd]")
_ROMS = re.compile(r"s3://[a-z0-9.-]{3,63}(/[A-Za-z0-9._-]+)*")


def addresses(text: str, option: str) -> str:
    """A range of IPv4 addresses as AWS wants it; a single address is a range of one."""
    try:
        return str(ipaddress.IPv4Network(text.strip(), strict=False))
    except ValueError as fault:
        raise CloudFault(
            f"{option} {text!r} is no IPv4 address or range: say for example 203.0.113.7, or 203.0.113.0/24."
        ) from fault


def parameters(chosen: Mapping[str, Any]) -> dict[str, str]:
    """The template's parameters for what was chosen, where None is the template's own default."""
    given = {name: value for name, value in chosen.items() if value is not None}
    if given["MinReady"] > given["MaxEngines"]:
        raise CloudFault(
            f"--min-ready {given['MinReady']} is above --max-engines {given['MaxEngines']}: say more with --max-engines."
        )
    if not _TIME.fullmatch(given["IdleAfter"]):
        raise CloudFault(f"--idle-after {given['IdleAfter']} is no time of 10 s or more: say for example 45m.")
    for one, other, options in (
        ("VpcId", "SubnetId", "--vpc and --subnet"),
        ("KeyName", "SshCidr", "--key-name and --ssh-from"),
    ):
        if (one in given) != (other in given):
            raise CloudFault(f"{options} go together: name both, or neither.")
    if "SshCidr" in given:
        given["SshCidr"] = addresses(given["SshCidr"], "--ssh-from")
    if "RomsUri" in given:
        given["RomsUri"] = given["RomsUri"].rstrip("/")
        if not _ROMS.fullmatch(given["RomsUri"]):
            raise CloudFault(f"--roms {given['RomsUri']} is no folder in S3: say s3://BUCKET/FOLDER.")
    return {name: _as_text(value) for name, value in given.items()}


def _as_text(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
