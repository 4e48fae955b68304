"""Waiting for a host until it can lease, with a real daemon in the place of the one on EC2."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import boto3
import pytest

from client_sdk import models
from client_sdk._progress import Progress
from client_sdk._url import parse
from client_sdk.ec2 import host
from client_sdk.ec2.connecting import await_leasable
from client_sdk.ec2.faults import CloudFault
from client_sdk.ec2.stack import Stack
from tests.support.real_daemon import RealDaemon
from tests.support.waiting import wait_until
from tests.unit.ec2.conftest import PARAMETERS, REGION

pytestmark = pytest.mark.filterwarnings("ignore:Tried to parse AWS..CloudFormation..WaitCondition")


def test_it_is_waited_for_until_it_can_lease(aws: boto3.Session, new_daemon: Callable[..., RealDaemon]) -> None:
    """``connect`` returns when an engine is ready, and says after its time why none is and who may reach the host."""
    stack = Stack(aws, "cornerman", progress=Progress(quiet=True), pause=lambda _: time.sleep(0.1))
    stack.create(PARAMETERS)
    daemon = new_daemon("--runtime", "process", "--min-ready", "1")
    target = parse(daemon.url)
    with pytest.raises(CloudFault, match=r"cannot lease after 1 s: .*203\.0\.113\.7/32"):
        await_leasable(stack, target, within_s=1)
    daemon.start()
    await_leasable(stack, target, within_s=60)
    with daemon.admin() as (_, api):
        assert any(engine.state.value == "ready" for engine in api.engines())


def test_a_host_that_is_in_use_or_keeps_none_ready_can_lease(
    aws: boto3.Session, new_daemon: Callable[..., RealDaemon]
) -> None:
    """``connect`` does not wait for an engine in reserve where all are leased, by the same person perhaps, or none is kept."""
    stack = Stack(aws, "cornerman", progress=Progress(quiet=True), pause=lambda _: time.sleep(0.1))
    stack.create(PARAMETERS)
    daemon = new_daemon("--runtime", "process", "--min-ready", "0", "--max-engines", "1")
    daemon.start()
    assert await_leasable(stack, parse(daemon.url), within_s=30)
    with daemon.admin() as (admin, api):
        assert not admin.pools()[0].counts.get(models.EngineState.READY)
        lease = api.create(models.LeaseRequest(envs=1, wait=True), key="k" * 16)
        wait_until(lambda: api.show(lease.id).state is models.LeaseState.ACTIVE, 60, what="the only engine")
        admin.change_pool("default", models.PoolPatch(min_ready=1))
        assert await_leasable(stack, parse(daemon.url), within_s=30)
        api.release(lease.id)


def test_an_empty_folder_of_roms(aws: boto3.Session, tmp_path: Path) -> None:
    """A folder of ROMs without a file is said on the instance in one sentence."""
    aws.client("s3").create_bucket(Bucket="my-roms", CreateBucketConfiguration={"LocationConstraint": REGION})
    with pytest.raises(CloudFault, match="There is no file below s3://my-roms/diambra"):
        host.roms.callback("s3://my-roms/diambra", tmp_path)  # type: ignore[misc]
    with pytest.raises(CloudFault, match="NoSuchBucket"):
        host.roms.callback("s3://nowhere-at-all/diambra", tmp_path)  # type: ignore[misc]


def test_roms_of_that_folder_alone(aws: boto3.Session, tmp_path: Path) -> None:
    """What lies in a folder whose name begins alike is not copied, with or without a slash at the end."""
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="my-roms", CreateBucketConfiguration={"LocationConstraint": REGION})
    for key in ("roms/doapp.zip", "roms-private/diary.txt"):
        s3.put_object(Bucket="my-roms", Key=key, Body=b"an archive")
    for uri in ("s3://my-roms/roms", "s3://my-roms/roms/"):
        host.roms.callback(uri, tmp_path)  # type: ignore[misc]
        assert [path.name for path in tmp_path.iterdir()] == ["doapp.zip"]


def test_a_host_that_goes_down_meanwhile_is_turned_on_again(
    aws: boto3.Session, new_daemon: Callable[..., RealDaemon]
) -> None:
    """``connect`` at the moment of the idle stop waits for nobody who has gone: it turns the machine on again."""
    daemon = new_daemon("--runtime", "process", "--min-ready", "1")
    ec2 = aws.client("ec2")
    stack = Stack(aws, "cornerman", progress=Progress(quiet=True), pause=lambda _: time.sleep(0.1))
    stack.create(PARAMETERS)
    view = stack.view()
    assert view is not None
    assert view.instance is not None
    ec2.stop_instances(InstanceIds=[view.instance])
    assert await_leasable(stack, parse(daemon.url), within_s=30) is False
