"""The stack of a host on EC2, made and taken away in an account that moto plays."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from moto.cloudformation.models import cloudformation_backends
from moto.core.models import DEFAULT_ACCOUNT_ID

from client_sdk._progress import Progress
from client_sdk.ec2.faults import CloudFault, Unreached
from client_sdk.ec2.stack import Stack, template
from tests.unit.ec2.conftest import PARAMETERS, REGION

# moto takes the signal of the installation as given.
pytestmark = pytest.mark.filterwarnings("ignore:Tried to parse AWS..CloudFormation..WaitCondition")

NewStack = Callable[..., Stack]


def _left(aws: boto3.Session) -> dict[str, list[Any]]:
    """What there is in the account that could cost money or be a secret."""
    ec2 = aws.client("ec2")
    machines = [one for group in ec2.describe_instances()["Reservations"] for one in group["Instances"]]
    groups = [one for one in ec2.describe_security_groups()["SecurityGroups"] if one["GroupName"] != "default"]
    names = [one["Name"] for one in aws.client("ssm").describe_parameters()["Parameters"]]
    left = {
        "machines": [one["InstanceId"] for one in machines if one["State"]["Name"] != "terminated"],
        "addresses": ec2.describe_addresses()["Addresses"],
        "groups": groups,
        "templates": ec2.describe_launch_templates()["LaunchTemplates"],
        "roles": aws.client("iam").list_roles()["Roles"],
        "profiles": aws.client("iam").list_instance_profiles()["InstanceProfiles"],
        "parameters": [name for name in names if name.startswith("/cornerman/")],
        "stacks": aws.client("cloudformation").describe_stacks()["Stacks"],
    }
    return {what: found for what, found in left.items() if found}


def test_up_and_down(aws: boto3.Session, new_stack: NewStack) -> None:
    """A host is made as one stack with its machine, and after its end nothing of it is in the account."""
    stack = new_stack()
    stack.create({**PARAMETERS, "WithCredentials": "yes", "FixedAddress": "yes"}, credentials="SECRET-OF-DIAMBRA")
    view = stack.view()
    assert view is not None
    assert (view.state, view.power, view.type) == ("CREATE_COMPLETE", "running", "c6i.xlarge")
    assert (view.allowed, view.fixed_address, view.spot) == ("203.0.113.7/32", True, False)
    assert set(_left(aws)) == {
        "machines", "addresses", "groups", "templates", "roles", "profiles", "parameters", "stacks",
    }  # fmt: skip
    stack.delete()
    assert _left(aws) == {}
    assert stack.view() is None


def test_a_secret_is_encrypted_and_in_no_parameter_of_the_stack(aws: boto3.Session, new_stack: NewStack) -> None:
    """DIAMBRA's credentials go to Parameter Store encrypted; neither the stack nor the machine's user data has them."""
    new_stack().create({**PARAMETERS, "WithCredentials": "yes"}, credentials="SECRET-OF-DIAMBRA")
    listed = aws.client("ssm").describe_parameters()["Parameters"]
    kinds = {one["Name"]: one["Type"] for one in listed}
    assert kinds["/cornerman/cornerman/diambra-credentials"] == "SecureString"
    formation = aws.client("cloudformation")
    assert "SECRET-OF-DIAMBRA" not in str(formation.describe_stacks()) + str(
        formation.describe_stack_events(StackName="cornerman")
    )
    machine = _left(aws)["machines"][0]
    told = aws.client("ec2").describe_instance_attribute(InstanceId=machine, Attribute="userData")
    user_data = base64.b64decode(told["UserData"]["Value"]).decode()
    assert user_data.startswith("#!/bin/bash\n")
    assert "SECRET-OF-DIAMBRA" not in user_data


class FailingStack(Stack):
    """One that CloudFormation fails to make, for a reason, after everything was made; ``keeps``: and does not remove again."""

    reason = ""

    def _await(self, stack_id: str, ends: tuple[str, ...], *, within_s: float) -> str:
        if "CREATE_COMPLETE" in ends:
            made = cloudformation_backends[DEFAULT_ACCOUNT_ID][REGION].stacks[stack_id]
            made._add_stack_event("CREATE_FAILED", resource_status_reason=self.reason)
            made.status = "CREATE_FAILED"
        return super()._await(stack_id, ends, within_s=within_s)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (
            "You have requested more vCPU capacity than your current vCPU limit of 1 allows (Service: Ec2, Status Code: 400, "
            "Request ID: 1-2-3) VcpuLimitExceeded",
            "Your AWS account may not run so many cores: ask for more under Service Quotas",
        ),
        ("Max spot instance count exceeded: MaxSpotInstanceCountExceeded", "may not run so many spot instances"),
        (
            "We currently do not have sufficient capacity. InsufficientInstanceCapacity",
            "no free machine of this --type",
        ),
        ("The maximum number of addresses has been reached. (AddressLimitExceeded)", "no fixed address left"),
        (
            "WaitCondition received failed message: 'port 8443 is taken by another program' for uniqueId: host",
            "Installing on the instance failed: port 8443 is taken by another program",
        ),
        ("WaitCondition timed out. Received 0 conditions when expecting 1", "can it reach the internet"),
        ("Something that nobody foresaw", "Something that nobody foresaw."),
    ],
)
def test_what_fails_leaves_nothing(aws: boto3.Session, reason: str, said: str) -> None:
    """When AWS fails to make the host, all that was made until then is removed, and the reason is told in plain words."""
    stack = FailingStack(aws, "cornerman", progress=Progress(), pause=lambda _: None)
    stack.reason = reason
    with pytest.raises(CloudFault, match="The host was not made") as fault:
        stack.create({**PARAMETERS, "WithCredentials": "yes", "FixedAddress": "yes"}, credentials="a login")
    assert said in str(fault.value)
    assert _left(aws) == {}


class StoppingStack(Stack):
    """One whose user presses Ctrl-C while it is made."""

    def _await(self, stack_id: str, ends: tuple[str, ...], *, within_s: float) -> str:
        if "CREATE_COMPLETE" in ends:
            raise KeyboardInterrupt
        return super()._await(stack_id, ends, within_s=within_s)


def test_ctrl_c_leaves_nothing(aws: boto3.Session) -> None:
    """Ctrl-C while a host is made takes back what there is of it."""
    stopping = StoppingStack(aws, "cornerman", progress=Progress(), pause=lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        stopping.create(PARAMETERS)
    assert _left(aws) == {}


def test_ctrl_c_before_aws_has_answered_leaves_nothing(aws: boto3.Session, new_stack: NewStack) -> None:
    """Ctrl-C after AWS was asked for the stack and before its answer is there takes the stack back too."""
    stack = new_stack()
    ask = stack._formation.create_stack

    def ask_and_stop(**asked: Any) -> None:
        ask(**asked)
        raise KeyboardInterrupt

    stack._formation.create_stack = ask_and_stop
    with pytest.raises(KeyboardInterrupt):
        stack.create({**PARAMETERS, "WithCredentials": "yes"}, credentials="a login")
    assert _left(aws) == {}


class FlickeringStack(Stack):
    """One whose user's network is away for some looks in a row."""

    away = 3

    def state(self, stack_id: str | None = None) -> str | None:
        if stack_id is not None and self.away:
            self.away -= 1
            raise Unreached("AWS is not reached (EndpointConnectionError)")
        return super().state(stack_id)


def test_a_network_that_comes_back_costs_no_host(aws: boto3.Session) -> None:
    """A laptop that sleeps for a moment while the host is made finds it made, and does not take it back."""
    stack = FlickeringStack(aws, "cornerman", progress=Progress(), pause=lambda _: None)
    stack.create(PARAMETERS)
    assert stack.away == 0
    view = stack.view()
    assert view is not None
    assert view.power == "running"


def test_nobody_elses_stack_is_removed(aws: boto3.Session, new_stack: NewStack) -> None:
    """``down`` and ``up`` refuse a stack of that name that is no host of ours; one that was made in the console is one."""
    formation = aws.client("cloudformation")
    other = (
        '{"Resources": {"Queue": {"Type": "AWS::EC2::SecurityGroup", "Properties": {"GroupDescription": "theirs"}}}}'
    )
    formation.create_stack(StackName="payroll", TemplateBody=other)
    with pytest.raises(CloudFault, match="The stack payroll in eu-central-1 is no host of Cornerman's"):
        new_stack("payroll").delete()
    assert formation.describe_stacks(StackName="payroll")["Stacks"][0]["StackStatus"] == "CREATE_COMPLETE"
    given: list[Any] = [{"ParameterKey": name, "ParameterValue": value} for name, value in PARAMETERS.items()]
    formation.create_stack(StackName="by-hand", TemplateBody=template(), Parameters=given)
    new_stack("by-hand").delete()
    assert new_stack("by-hand").view() is None


def test_another_stack_is_left_alone(aws: boto3.Session, new_stack: NewStack) -> None:
    """A host is made beside another one, and removed, without the other being touched."""
    new_stack("one").create(PARAMETERS)
    two = new_stack("two")
    two.create(PARAMETERS)
    two.delete()
    assert new_stack("one").view() is not None
    assert len(_left(aws)["machines"]) == 1


def test_a_name_that_is_taken(aws: boto3.Session, new_stack: NewStack) -> None:
    """A stack that is there already is not removed because making it again fails."""
    new_stack().create(PARAMETERS)
    aws.client("ssm").put_parameter(Name="/cornerman/cornerman/connection-string", Value="secret", Type="SecureString")
    with pytest.raises(CloudFault):
        new_stack().create(PARAMETERS)
    assert new_stack().view() is not None
    assert new_stack().connection_string() == "secret"


def test_down_without_a_stack_still_removes_secrets(aws: boto3.Session, new_stack: NewStack) -> None:
    """After a stack was deleted in the console, removing the host removes the secrets that it had left."""
    aws.client("ssm").put_parameter(Name="/cornerman/cornerman/connection-string", Value="secret", Type="SecureString")
    new_stack().delete()
    assert _left(aws) == {}


def test_a_spot_request_ends_before_its_machine(aws: boto3.Session, new_stack: NewStack) -> None:
    """A persistent spot request is ended too, because it would make a new machine for the one that is removed."""
    stack = new_stack()
    stack.create({**PARAMETERS, "Spot": "yes"})
    ec2 = aws.client("ec2")
    asked = ec2.request_spot_instances(
        InstanceCount=1, Type="persistent", LaunchSpecification={"ImageId": "ami-0123456789abcdef0"}
    )
    request = asked["SpotInstanceRequests"][0]["SpotInstanceRequestId"]
    ec2.create_tags(Resources=[request], Tags=[{"Key": "cornerman-stack", "Value": "cornerman"}])
    stack.delete()
    left = ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
    assert [one["State"] for one in left if one["State"] in ("open", "active")] == []
