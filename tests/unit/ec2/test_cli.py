"""``cornerman ec2`` as a user calls it, in an account that moto plays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from click.testing import CliRunner, Result

from client_sdk._errors import CornermanError
from client_sdk.cli import cli
from client_sdk.ec2 import source
from client_sdk.ec2.faults import CloudFault
from tests.unit.ec2.conftest import REGION

pytestmark = pytest.mark.filterwarnings("ignore:Tried to parse AWS..CloudFormation..WaitCondition")
STRING = f"cornerman://TOKEN@198.51.100.9:8443?ca=sha256:{'a' * 64}"
ARCHIVE = "https://example.org/cornerman.tar.gz"
UP = ("up", "--allow-from", "203.0.113.7/32", "--source", ARCHIVE, "--timeout", "0")
NAME = "/cornerman/cornerman/connection-string"

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """``run("status")`` is one command; its fault is raised."""

    def call(*arguments: str, **options: object) -> Result:
        return CliRunner().invoke(cli, ["ec2", *arguments], catch_exceptions=False, **options)  # type: ignore[arg-type]

    return call


@pytest.fixture
def published(aws: boto3.Session) -> boto3.Session:
    """An account whose next host has published its connection string."""
    aws.client("ssm").put_parameter(Name=NAME, Value=STRING, Type="SecureString")
    return aws


def test_up_prints_the_connection_string_alone(published: boto3.Session, run: Run) -> None:
    """``up`` prints the host's connection string, with its address of now, and nothing else on standard output."""
    made = run(*UP)
    assert made.exit_code == 0
    address = json.loads(run("status", "--json").stdout)["address"]
    assert made.stdout == f"cornerman://TOKEN@{address}:8443?ca=sha256:{'a' * 64}\n"
    assert "198.51.100.9" not in made.stdout
    assert "TOKEN" not in made.stderr


def test_up_again_turns_it_on(published: boto3.Session, run: Run) -> None:
    """``up`` on a host that is there changes nothing and turns it on."""
    first = run(*UP)
    machine = json.loads(run("status", "--json").stdout)["instance"]
    published.client("ec2").stop_instances(InstanceIds=[machine])
    again = run(*UP)
    assert again.exit_code == first.exit_code == 0
    assert "is there already" in again.stderr
    seen = json.loads(run("status", "--json").stdout)
    assert (seen["instance"], seen["power"]) == (machine, "running")


def test_connect_starts_a_stopped_host(published: boto3.Session, run: Run) -> None:
    """``connect`` turns a stopped host on and looks its address up again."""
    run(*UP)
    seen = json.loads(run("status", "--json").stdout)
    published.client("ec2").stop_instances(InstanceIds=[seen["instance"]])
    assert json.loads(run("status", "--json").stdout)["power"] == "stopped"
    connected = run("connect", "--timeout", "0")
    now = json.loads(run("status", "--json").stdout)
    assert now["power"] == "running"
    assert f"@{now['address']}:8443" in connected.stdout


def test_down_asks_first(published: boto3.Session, run: Run) -> None:
    """``down`` removes the host only after a yes, and its connection string with it."""
    run(*UP)
    assert run("down", input="n\n").exit_code == 1
    assert run("status").exit_code == 0
    assert "is removed" in run("down", "--yes").stdout
    with pytest.raises(
        CloudFault, match="There is no host cornerman in eu-central-1: make one with `cornerman ec2 up`"
    ):
        run("status")
    assert not [one for one in published.client("ssm").describe_parameters()["Parameters"] if one["Name"] == NAME]


def test_other_addresses_are_let_in_while_it_is_there(published: boto3.Session, run: Run) -> None:
    """Whose address has changed lets the new one in, on both ports, and nothing else changes; ``status`` shows it."""
    run(*UP, "--key-name", "mine", "--ssh-from", "203.0.113.7")
    assert "203.0.113.9/32, 198.51.100.0/24" in run("allow", "203.0.113.9", "198.51.100.7/24").stdout
    assert json.loads(run("status", "--json").stdout)["allowed"] == "198.51.100.0/24, 203.0.113.9/32"
    run("allow", "203.0.113.9")
    mine: Any = [{"Name": "tag:cornerman-stack", "Values": ["cornerman"]}]
    (group,) = published.client("ec2").describe_security_groups(Filters=mine)["SecurityGroups"]
    rules = {(rule["FromPort"], one["CidrIp"]) for rule in group["IpPermissions"] for one in rule["IpRanges"]}
    assert rules == {(22, "203.0.113.7/32"), (8443, "203.0.113.9/32"), (8444, "203.0.113.9/32")}
    with pytest.raises(CloudFault, match="'me' is no IPv4 address"):
        run("allow", "me")


def test_status_says_what_costs(published: boto3.Session, run: Run) -> None:
    """``status`` says what costs money now: a stopped host its disk only."""
    run(*UP)
    assert "costs now  the disk, the machine, the address" in run("status").stdout
    machine = json.loads(run("status", "--json").stdout)["instance"]
    published.client("ec2").stop_instances(InstanceIds=[machine])
    assert run("status").stdout.splitlines()[-1] == "costs now  the disk"
    published.client("ec2").terminate_instances(InstanceIds=[machine])
    assert run("status").stdout.splitlines()[-1] == "costs now  nothing"


def test_a_terminated_machine_is_said(published: boto3.Session, run: Run) -> None:
    """A machine that somebody terminated in the console is not waited for."""
    run(*UP)
    machine = json.loads(run("status", "--json").stdout)["instance"]
    published.client("ec2").terminate_instances(InstanceIds=[machine])
    with pytest.raises(CloudFault, match="was terminated outside of Cornerman"):
        run("connect", "--timeout", "0")


def test_without_boto3(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Without the extra, the command says what to install; the SDK itself needs no boto3."""
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(CornermanError, match=r"pip install 'cornerman\[ec2\]'"):
        run("status")


def test_without_a_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Run) -> None:
    """Who has no AWS login is told how to get one, before anything is made."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(CloudFault, match="AWS does not know you: run `aws configure`"):
        run("status", "--region", REGION)
    with pytest.raises(CloudFault, match=r"nobody.*leave out --profile"):
        run("status", "--region", REGION, "--profile", "nobody")


def test_without_a_region(aws: boto3.Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Run) -> None:
    """Who has chosen no region is told so."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(CloudFault, match="name one with --region"):
        run("status")


def test_a_credentials_file_that_is_none(aws: boto3.Session, tmp_path: Path, run: Run) -> None:
    """A credentials file that is missing or empty is refused before anything is made."""
    for path in (tmp_path / "missing", tmp_path / "empty"):
        (tmp_path / "empty").touch()
        with pytest.raises(CloudFault, match="name the file that 'diambra user login' wrote"):
            run(*UP, "--credentials", str(path))
    assert aws.client("cloudformation").describe_stacks()["Stacks"] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--min-ready", "8"), "--min-ready 8 is above --max-engines 4"),
        (("--idle-after", "5s"), "--idle-after 5s is no time of 10 s or more"),
        (("--idle-after", "0m"), "--idle-after 0m is no time"),
        (("--allow-from", "2001:db8::1"), "is no IPv4 address or range"),
        (("--allow-from", "999.0.0.0/8"), "is no IPv4 address or range"),
        (("--vpc", "vpc-1"), "--vpc and --subnet go together"),
        (("--ssh-from", "203.0.113.7"), "--key-name and --ssh-from go together"),
        (("--roms", "my-bucket/roms"), "--roms my-bucket/roms is no folder in S3"),
    ],
)
def test_a_choice_that_cannot_be_is_refused_at_once(
    aws: boto3.Session, run: Run, options: tuple[str, ...], said: str
) -> None:
    """What the instance would refuse after five minutes is refused before anything is made."""
    with pytest.raises(CloudFault, match=said):
        run(*UP, *options)
    assert aws.client("cloudformation").describe_stacks()["Stacks"] == []


def test_what_is_chosen_arrives(published: boto3.Session, run: Run) -> None:
    """A single address is a range of one, and a slash at the end of the ROMs' folder does no harm."""
    run(*UP, "--allow-from", "203.0.113.9", "--roms", "s3://my-bucket/roms/", "--spot")
    (made,) = published.client("cloudformation").describe_stacks()["Stacks"]
    given = {one["ParameterKey"]: one["ParameterValue"] for one in made["Parameters"]}
    assert (given["AllowedCidr"], given["RomsUri"], given["Spot"]) == ("203.0.113.9/32", "s3://my-bucket/roms", "yes")


def test_where_the_instance_gets_cornerman_from() -> None:
    """By default it is the repository and commit that pip installed this one from; a folder is nothing an instance can fetch."""
    from_git = '{"url": "https://example.org/cornerman.git", "vcs_info": {"vcs": "git", "commit_id": "abc123"}}'
    assert source.of_this_installation(from_git) == "git+https://example.org/cornerman.git@abc123"
    assert source.of_this_installation('{"url": "file:///home/me/cornerman", "dir_info": {}}') is None
    assert source.of_this_installation(None) is None
    assert source.checked(ARCHIVE) == ARCHIVE
    for wrong in ("/home/me/cornerman", "http://example.org/a.tar.gz", "https://example.org/'; id"):
        with pytest.raises(CloudFault, match="cannot fetch Cornerman from"):
            source.checked(wrong)
    with pytest.raises(CloudFault, match="has a login in it") as fault:
        source.checked("git+https://me:SECRET@example.org/cornerman.git")
    assert "SECRET" not in str(fault.value)


def test_a_clone_is_fetched_from_where_it_came(tmp_path: Path) -> None:
    """Of an installation from a clone the instance gets the same commit from the clone's origin, if it was pushed there."""
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    environ |= {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

    def git(folder: Path, *words: str) -> str:
        done = subprocess.run(
            ["git", "-C", folder, *words], env=environ, capture_output=True, text=True, timeout=20, check=True
        )
        return done.stdout.strip()

    origin, clone = tmp_path / "origin", tmp_path / "my clone"
    origin.mkdir()
    git(origin, "init", "-q", "-b", "main")
    git(origin, "commit", "-q", "--allow-empty", "-m", "first")
    git(tmp_path, "clone", "-q", str(origin), str(clone))
    assert source.of_a_clone(clone) is None, "an instance does not reach a folder"
    git(clone, "remote", "set-url", "origin", "https://example.org/cornerman.git")
    written = json.dumps({"url": clone.as_uri(), "dir_info": {}})
    commit = git(clone, "rev-parse", "HEAD")
    assert source.of_this_installation(written) == f"git+https://example.org/cornerman.git@{commit}"
    git(clone, "commit", "-q", "--allow-empty", "-m", "not pushed")
    assert source.of_this_installation(written) is None
