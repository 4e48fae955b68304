"""An AWS account of a test's own, played by moto: nothing leaves this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import boto3
import botocore.loaders
import pytest
import yaml
from moto import mock_aws
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ssm.models import ssm_backends

from client_sdk._progress import Progress
from client_sdk.ec2.stack import Stack, template

REGION: Final = "eu-central-1"
PARAMETERS = {
    "AllowedCidr": "203.0.113.7/32",
    "Source": "https://example.org/cornerman.tar.gz",
    "WithCredentials": "no",
}


class Loader(yaml.SafeLoader):
    """Reads a template; CloudFormation's short forms become what they stand for."""


def _long_form(loader: Loader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        value: Any = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        assert isinstance(node, yaml.MappingNode)
        value = loader.construct_mapping(node, deep=True)
    return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}


Loader.add_multi_constructor("!", _long_form)


def read_template() -> dict[str, Any]:
    """The template as data."""
    loaded: dict[str, Any] = yaml.load(template(), Loader)
    return loaded


@pytest.fixture(scope="session")
def descriptions() -> botocore.loaders.Loader:
    """AWS's descriptions of its services, read once: they are megabytes, and every login would read them anew."""
    return botocore.loaders.create_loader()


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, descriptions: botocore.loaders.Loader) -> Iterator[boto3.Session]:
    """A login to an empty account that has the machine image."""
    for name in ("AWS_PROFILE", "AWS_CA_BUNDLE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr("botocore.session.create_loader", lambda _path=None: descriptions)
    with mock_aws():
        session = boto3.Session()
        session.client("ssm").put_parameter(Name="/images/ubuntu", Value="ami-0123456789abcdef0", Type="String")
        known = ssm_backends[DEFAULT_ACCOUNT_ID][REGION]._parameters
        # Names below /aws are AWS's own to make.
        known[read_template()["Parameters"]["ImageId"]["Default"]] = known["/images/ubuntu"]
        yield session


@pytest.fixture
def new_stack(aws: boto3.Session) -> Callable[..., Stack]:
    """``new_stack(name)`` is a stack that waits for nobody."""

    def make(name: str = "cornerman", **options: Any) -> Stack:
        return Stack(aws, name, progress=Progress(), pause=lambda _: None, **options)

    return make
