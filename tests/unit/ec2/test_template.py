"""The CloudFormation template, read as data: what moto does not look at."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.left_out import leave_out
from tests.unit.ec2.conftest import read_template

FILE = Path(__file__).resolve().parents[3] / "deploy" / "ec2.cloudformation.yaml"


@pytest.fixture(scope="module")
def template() -> dict[str, Any]:
    """The template as data."""
    return read_template()


def _launched(template: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = template["Resources"]["Machine"]["Properties"]["LaunchTemplateData"]
    return data


def test_cfn_lint_finds_nothing() -> None:
    """cfn-lint, which knows AWS's own schemas, has nothing to say about the template."""
    linter = Path(sys.executable).with_name("cfn-lint")
    done = subprocess.run([linter, FILE], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_two_ports_and_no_ssh(template: dict[str, Any]) -> None:
    """Only the two TLS ports are open, to the given addresses; SSH only if somebody asks for it."""
    rules = template["Resources"]["Ports"]["Properties"]["SecurityGroupIngress"]
    assert [(rule["FromPort"], rule["ToPort"], rule["CidrIp"]) for rule in rules] == [
        (8443, 8443, {"Ref": "AllowedCidr"}),
        (8444, 8444, {"Ref": "AllowedCidr"}),
    ]
    assert "Default" not in template["Parameters"]["AllowedCidr"]
    assert template["Resources"]["Ssh"]["Condition"] == "HasSsh"
    assert template["Parameters"]["SshCidr"]["Default"] == ""


def _rights(template: dict[str, Any]) -> dict[str, str]:
    """What the instance may do, and to what."""
    rights: dict[str, str] = {}
    for policy in template["Resources"]["Role"]["Properties"]["Policies"]:
        for statement in policy["PolicyDocument"]["Statement"]:
            allowed = statement["Fn::If"][1] if "Fn::If" in statement else statement
            actions = allowed["Action"] if isinstance(allowed["Action"], list) else [allowed["Action"]]
            rights |= dict.fromkeys(actions, _text(allowed["Resource"]))
    return rights


def _text(value: Any) -> str:
    """An intrinsic function of CloudFormation's as text, for s3://bucket/roms."""
    if not isinstance(value, dict):
        return str(value)
    (((kind, inner)),) = value.items()
    if kind == "Ref":
        assert inner == "RomsUri"
        return "s3://bucket/roms"
    if kind == "Fn::Sub":
        return str(inner).replace("${RomsUri}", "s3://bucket/roms")
    if kind == "Fn::Join":
        return str(inner[0]).join(_text(part) for part in inner[1])
    assert kind == "Fn::Select"
    delimiter, text = inner[1]["Fn::Split"]
    return _text(text).split(str(delimiter))[int(inner[0])]


def test_the_instance_may_do_what_it_must_and_nothing_else(template: dict[str, Any]) -> None:
    """Its role reads no parameters but its own stack's, and of S3 only that folder: not those whose names begin alike."""
    assert "ManagedPolicyArns" not in template["Resources"]["Role"]["Properties"]
    rights = _rights(template)
    own = "arn:${AWS::Partition}:ssm:${AWS::Region}:${AWS::AccountId}:parameter/cornerman/${AWS::StackName}/*"
    assert {action: where for action, where in rights.items() if where != "*"} == {
        "ssm:PutParameter": own,
        "ssm:GetParameter": own,
        "s3:GetObject": "arn:${AWS::Partition}:s3:::bucket/roms/*",
        "s3:ListBucket": "arn:${AWS::Partition}:s3:::bucket",
    }
    shell = {action for action, where in rights.items() if where == "*"}
    channels = {f"ssmmessages:{verb}{what}Channel" for verb in ("Create", "Open") for what in ("Control", "Data")}
    assert shell == {"ssm:UpdateInstanceInformation", *channels}


def test_no_container_gets_the_instances_credentials(template: dict[str, Any]) -> None:
    """The metadata service takes tokens only, which do not reach beyond the host itself."""
    assert _launched(template)["MetadataOptions"] == {
        "HttpEndpoint": "enabled",
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 1,
    }


def test_power_off_stops(template: dict[str, Any]) -> None:
    """Turning the machine off stops it, on demand and as spot, and never ends it."""
    data = _launched(template)
    assert data["InstanceInitiatedShutdownBehavior"] == "stop"
    condition, spot, _ = data["InstanceMarketOptions"]["Fn::If"]
    assert condition == "IsSpot"
    assert spot["SpotOptions"] == {"SpotInstanceType": "persistent", "InstanceInterruptionBehavior": "stop"}


def test_the_disk_is_encrypted(template: dict[str, Any]) -> None:
    """The volume is encrypted and goes with the instance."""
    disk = _launched(template)["BlockDeviceMappings"][0]["Ebs"]
    assert (disk["Encrypted"], disk["DeleteOnTermination"]) == (True, True)


def test_no_secret_is_a_parameter_or_an_output(template: dict[str, Any]) -> None:
    """The stack tells the place of the connection string, and no secret goes through it."""
    assert set(template["Outputs"]) == {"InstanceId", "ConnectionStringParameter"}
    assert not re.search("(?i)token|password|secret", " ".join(template["Parameters"]))


def test_what_is_typed_cannot_break_out_of_the_script(template: dict[str, Any]) -> None:
    """Every text that ends up in the user data has a pattern, and none lets a quote or a blank through."""
    script = template["Resources"]["Instance"]["Properties"]["UserData"]["Fn::Base64"]["Fn::Sub"]
    used = set(re.findall(r"\$\{([A-Za-z]+)\}", script)) & set(template["Parameters"])
    assert {"Source", "IdleAfter", "EngineImage", "RomsUri"} <= used
    for name in used:
        parameter = template["Parameters"][name]
        if parameter["Type"] == "Number" or "AllowedValues" in parameter:
            continue
        pattern = re.compile(parameter["AllowedPattern"])
        for evil in ("'", '"', "$(id)", "`id`", " ", "\n", ";"):
            assert not pattern.fullmatch("https://example.org/a.tar.gz" + evil), (name, evil)
            assert not pattern.fullmatch("s3://bucket/roms" + evil), (name, evil)
            assert not pattern.fullmatch("45m" + evil), (name, evil)


def test_user_data_fits(template: dict[str, Any]) -> None:
    """The user data is below EC2's limit of 16 KB by far, so that long parameters fit in."""
    script = template["Resources"]["Instance"]["Properties"]["UserData"]["Fn::Base64"]["Fn::Sub"]
    assert len(script.encode()) < 12_000


def test_shellcheck_finds_nothing(template: dict[str, Any], tmp_path: Path) -> None:
    """The user data is a script that shellcheck has nothing to say about."""
    checker = shutil.which("shellcheck")
    if checker is None:
        leave_out("there is no shellcheck here")
    text: str = template["Resources"]["Instance"]["Properties"]["UserData"]["Fn::Base64"]["Fn::Sub"]
    script = tmp_path / "user-data"
    # A comparison of two constants is what CloudFormation makes of a parameter, so these stay variables.
    script.write_text(re.sub(r"'([^'$\n]*)\$\{[A-Za-z:]+\}'", r'"\1$GIVEN"', text).replace("${!", "${"))
    done = subprocess.run(
        [checker, "--exclude=SC1003,SC2153,SC2154", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout
