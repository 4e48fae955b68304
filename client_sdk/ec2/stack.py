"""One host on EC2 as a CloudFormation stack: made, looked at, and taken away without a rest."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from typing import Any

from client_sdk._errors import CornermanError
from client_sdk._progress import Progress
from client_sdk.ec2.faults import CloudFault, Unreached, in_words, plainly
from client_sdk.ec2.machines import TAG, Machines

POLL_S = 4.0
MADE_WITHIN_S, GONE_WITHIN_S = 2400.0, 1200.0
GONE = ("DELETE_COMPLETE",)
WELL = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")
_CREATED = (
    "CREATE_COMPLETE",
    "CREATE_FAILED",
    "ROLLBACK_COMPLETE",
    "ROLLBACK_FAILED",
    "DELETE_COMPLETE",
    "DELETE_FAILED",
)
_DELETED = ("DELETE_COMPLETE", "DELETE_FAILED")
_RUN_TAG = "cornerman-run"
_DESCRIPTION = "A Cornerman host"  # how the template's begins, also where somebody made the stack in the console
_PARTS = {
    "Ports": "security group",
    "Role": "role",
    "Profile": "role for the instance",
    "Machine": "launch template",
    "Instance": "instance",
    "Address": "fixed address",
    "Ready": "signal",
    "Installed": "installation on the instance, which takes some minutes",
}
# An update of the stack must not replace the machine, and with it everything that is on it.
_POLICY = {
    "Statement": [
        {"Effect": "Allow", "Action": "Update:*", "Principal": "*", "Resource": "*"},
        {
            "Effect": "Deny",
            "Action": ["Update:Replace", "Update:Delete"],
            "Principal": "*",
            "Resource": "LogicalResourceId/Instance",
        },
    ]
}


@dataclass(frozen=True)
class View:
    """How a host stands; ``instance`` is None while there is no machine."""

    name: str
    state: str
    instance: str | None = None
    power: str = "none"
    type: str = ""
    spot: bool = False
    address: str | None = None
    allowed: str = ""
    fixed_address: bool = False


class Stack:
    """The stack ``name`` of one account and region; ``pause`` and ``clock`` are the time."""

    def __init__(
        self,
        session: Any,
        name: str,
        *,
        progress: Progress,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.progress = progress
        self.pause, self.clock = pause, clock
        self._began = ""  # the id of the stack that this run makes
        self._run = secrets.token_hex(16)
        with plainly():
            self._formation = session.client("cloudformation")
            self.machines = Machines(session.client("ec2"), name)
            self._ssm = session.client("ssm")
            self._sts = session.client("sts")
            self.region = str(self._formation.meta.region_name)

    def check_login(self) -> None:
        """CloudFault unless AWS knows who asks; nothing is made."""
        with plainly():
            self._sts.get_caller_identity()

    def state(self, stack_id: str | None = None) -> str | None:
        """CloudFormation's word for the stack's state; None without a stack."""
        found = self._describe(stack_id or self.name)
        return None if found is None else str(found["StackStatus"])

    def create(self, parameters: Mapping[str, str], *, credentials: str | None = None) -> None:
        """Make it and wait until the host is installed; after a failure, or Ctrl-C, nothing of it is left."""
        with self._taking_back():
            with plainly():
                if credentials is not None:
                    self._ssm.put_parameter(
                        Name=self._parameter("diambra-credentials"),
                        Value=credentials,
                        Type="SecureString",
                        Overwrite=True,
                    )
                self._began = self._formation.create_stack(
                    StackName=self.name,
                    TemplateBody=template(),
                    Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
                    Capabilities=["CAPABILITY_IAM"],
                    OnFailure="DELETE",
                    StackPolicyBody=json.dumps(_POLICY),
                    # Sent again because an answer was lost, it makes no second one; and it tells whose the stack is.
                    ClientRequestToken=self._run,
                    Tags=[{"Key": TAG, "Value": self.name}, {"Key": _RUN_TAG, "Value": self._run}],
                )["StackId"]
            end = self._await(self._began, _CREATED, within_s=MADE_WITHIN_S)
            if end not in WELL:
                raise CloudFault(f"The host was not made. {self._why(self._began)}")

    def delete(self) -> None:
        """Take everything away: machine, disk, addresses, role, parameters and a spot request that would bring it back."""
        found = self._describe(self.name)
        if found is not None and not _is_a_host(found):
            raise CloudFault(
                f"The stack {self.name} in {self.region} is no host of Cornerman's, and nothing was changed: choose another --name."
            )
        addresses = self.machines.addresses()
        self.machines.sweep()
        if found is not None:
            with plainly():
                self._formation.delete_stack(StackName=found["StackId"])
            end = self._await(found["StackId"], _DELETED, within_s=GONE_WITHIN_S)
            if end not in GONE:
                raise CloudFault(
                    f"Not everything could be removed: {self._why(found['StackId'])} Remove that in the AWS console, then "
                    "run `cornerman ec2 down` again."
                )
        self.machines.sweep()
        self.machines.release(addresses)
        self._forget()

    def view(self) -> View | None:
        """How it stands; None without a stack."""
        found = self._describe(self.name)
        if found is None:
            return None
        given = {item["ParameterKey"]: item["ParameterValue"] for item in found.get("Parameters", [])}
        view = View(
            self.name,
            str(found["StackStatus"]),
            allowed=", ".join(self.machines.allowed()) or given.get("AllowedCidr", ""),
            fixed_address=given.get("FixedAddress") == "yes",
            spot=given.get("Spot") == "yes",
        )
        outputs = {item["OutputKey"]: item["OutputValue"] for item in found.get("Outputs", [])}
        machine = self.machines.find(outputs.get("InstanceId"))
        if machine is None:
            return view
        return View(
            view.name,
            view.state,
            instance=machine["InstanceId"],
            power=machine["State"]["Name"],
            type=machine["InstanceType"],
            spot=view.spot,
            address=machine.get("PublicIpAddress"),
            allowed=view.allowed,
            fixed_address=view.fixed_address,
        )

    def connection_string(self) -> str:
        """What the host has published; a secret."""
        name = self._parameter("connection-string")
        with plainly():
            try:
                return str(self._ssm.get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"])
            except self._ssm.exceptions.ParameterNotFound:
                raise CloudFault(
                    f"The host has not published its connection string ({name}): `cornerman ec2 down`, then `up` again."
                ) from None

    def _parameter(self, name: str) -> str:
        return f"/cornerman/{self.name}/{name}"

    def _describe(self, name: str) -> dict[str, Any] | None:
        with plainly():
            try:
                found: dict[str, Any] = self._formation.describe_stacks(StackName=name)["Stacks"][0]
            except self._formation.exceptions.ClientError as fault:
                if "does not exist" in fault.response["Error"]["Message"]:
                    return None
                raise
        return found

    def _forget(self) -> None:
        with plainly():
            for name in ("connection-string", "diambra-credentials"):
                with suppress(self._ssm.exceptions.ParameterNotFound):
                    self._ssm.delete_parameter(Name=self._parameter(name))

    @contextmanager
    def _taking_back(self) -> Iterator[None]:
        try:
            yield
        except BaseException as fault:
            self._began = self._began or self._made_unheard()
            if not self._began:  # nothing was made, and what there is under that name is not ours
                if self.state() is None:
                    self._forget()
                raise
            self.progress.tell("Removing what was made, which takes a few minutes.")
            try:
                self.delete()
            except (CornermanError, KeyboardInterrupt) as second:
                raise CloudFault(
                    f"{fault or 'Interrupted.'} And not everything could be removed, so it may cost money: run `cornerman "
                    f"ec2 down --name {self.name} --region {self.region}` ({second or 'interrupted'})."
                ) from fault
            raise

    def _made_unheard(self) -> str:
        """The id of the stack that AWS began to make for this run without its answer being heard, as after a Ctrl-C; or ""."""
        with suppress(CornermanError):
            found = self._describe(self.name)
            if found is not None and {"Key": _RUN_TAG, "Value": self._run} in found.get("Tags", []):
                return str(found["StackId"])
        return ""

    def _await(self, stack_id: str, ends: tuple[str, ...], *, within_s: float) -> str:
        """Wait for one of ``ends``; a network that fails meanwhile, as of a laptop that sleeps, is waited for too."""
        began, state, doing = self.clock(), "being made or removed", ""
        while True:
            try:
                state = self.state(stack_id) or GONE[0]
                if state in ends:
                    self.progress.done()
                    return state
                doing = self._doing(stack_id)
            except Unreached:
                doing = "AWS is not reached just now; trying again"
            if self.clock() - began > within_s:
                raise CloudFault(f"The stack {self.name} is still {state} after {within_s / 60:.0f} minutes.")
            self.progress.show(doing, elapsed_s=self.clock() - began)
            self.pause(POLL_S)

    def _doing(self, stack_id: str) -> str:
        """What CloudFormation is at, from its newest event."""
        with plainly():
            events = self._formation.describe_stack_events(StackName=stack_id)["StackEvents"]
        for event in events:
            part = _PARTS.get(event["LogicalResourceId"])
            if part is not None and event["ResourceStatus"].endswith("_IN_PROGRESS"):
                verb = "Removing" if event["ResourceStatus"].startswith("DELETE") else "Making"
                return f"{verb} the {part}"
        return f"Waiting for the stack {self.name}"

    def _why(self, stack_id: str) -> str:
        """The first failure that CloudFormation gives a reason for, in plain words."""
        with plainly():
            pages = self._formation.get_paginator("describe_stack_events").paginate(StackName=stack_id)
            events = [event for page in pages for event in page["StackEvents"]]
        for event in reversed(events):
            reason = event.get("ResourceStatusReason", "")
            if event["ResourceStatus"].endswith("_FAILED") and reason and "cancelled" not in reason:
                text = in_words(reason)
                return text if text.endswith((".", "?", "!")) else f"{text}."
        return "CloudFormation gives no reason."


def _is_a_host(found: Mapping[str, Any]) -> bool:
    """Whether a stack is one of ours, made by the command or in the console."""
    tagged = any(tag["Key"] == TAG for tag in found.get("Tags", []))
    return tagged or str(found.get("Description", "")).startswith(_DESCRIPTION)


def template() -> str:
    """The text of the CloudFormation template."""
    return resources.files("client_sdk.ec2").joinpath("template.yaml").read_text("utf-8")
