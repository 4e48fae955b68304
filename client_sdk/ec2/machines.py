"""The machines of a stack, and what of them would go on costing money after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from client_sdk.ec2.faults import plainly

TAG = "cornerman-stack"
PORTS = {8443: "leases", 8444: "steps"}


class Machines:
    """EC2's side of the stack ``name``; everything that the template makes carries its tag."""

    def __init__(self, ec2: Any, name: str) -> None:
        self._ec2 = ec2
        self._name = name

    def find(self, instance: str | None) -> dict[str, Any] | None:
        """What EC2 knows of a machine, by its id or by the tag; None when it is forgotten already."""
        with plainly():
            if instance is None:
                return next(iter(self._tagged()), None)
            try:
                for group in self._ec2.describe_instances(InstanceIds=[instance])["Reservations"]:
                    return dict(group["Instances"][0])
            except self._ec2.exceptions.ClientError as fault:
                if not fault.response["Error"]["Code"].startswith("InvalidInstanceID"):
                    raise
        return None

    def start(self, instance: str) -> None:
        """Turn a machine on."""
        with plainly():
            self._ec2.start_instances(InstanceIds=[instance])

    def allowed(self) -> tuple[str, ...]:
        """Ranges of addresses that may reach the host; none where there is no security group of its."""
        group = self._group()
        return () if group is None else tuple(sorted({one for port in PORTS for one in _ranges(group, port)}))

    def allow(self, wanted: Sequence[str]) -> bool:
        """Let these ranges reach the host and no others; False without a security group. First those that come, then those that go."""
        group = self._group()
        if group is None:
            return False
        with plainly():
            for port, what in PORTS.items():
                there = _ranges(group, port)
                if come := [{"CidrIp": one, "Description": what} for one in wanted if one not in there]:
                    self._ec2.authorize_security_group_ingress(
                        GroupId=group["GroupId"], IpPermissions=[_rule(port, come)]
                    )
                if go := [{"CidrIp": one} for one in there if one not in wanted]:
                    self._ec2.revoke_security_group_ingress(GroupId=group["GroupId"], IpPermissions=[_rule(port, go)])
        return True

    def _group(self) -> dict[str, Any] | None:
        with plainly():
            mine = [{"Name": f"tag:{TAG}", "Values": [self._name]}]
            found = self._ec2.describe_security_groups(Filters=mine)["SecurityGroups"]
        return next(iter(found), None)

    def _tagged(self) -> Iterator[dict[str, Any]]:
        """Machines of this stack that are not gone."""
        wanted = [
            {"Name": f"tag:{TAG}", "Values": [self._name]},
            {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]},
        ]
        for page in self._ec2.get_paginator("describe_instances").paginate(Filters=wanted):
            for group in page["Reservations"]:
                yield from group["Instances"]

    def sweep(self) -> None:
        """End spot requests first, because a persistent one makes a new machine for each that is terminated."""
        with plainly():
            asked = self._ec2.describe_spot_instance_requests(Filters=[{"Name": f"tag:{TAG}", "Values": [self._name]}])
            open_ones = [
                one["SpotInstanceRequestId"]
                for one in asked["SpotInstanceRequests"]
                if one["State"] in ("open", "active", "disabled")
            ]
            if open_ones:
                self._ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=open_ones)
            machines = [machine["InstanceId"] for machine in self._tagged()]
            if machines:
                self._ec2.terminate_instances(InstanceIds=machines)

    def addresses(self) -> set[str]:
        """Fixed addresses of this stack's machines."""
        with plainly():
            machines = [machine["InstanceId"] for machine in self._tagged()]
            return {
                address["AllocationId"]
                for address in self._ec2.describe_addresses()["Addresses"]
                if address.get("InstanceId") in machines and address.get("AllocationId")
            }

    def release(self, addresses: set[str]) -> None:
        """A fixed address that outlived its stack would go on costing money."""
        with plainly():
            for address in self._ec2.describe_addresses()["Addresses"]:
                if address.get("AllocationId") in addresses:
                    self._ec2.release_address(AllocationId=address["AllocationId"])


def _ranges(group: dict[str, Any], port: int) -> list[str]:
    rules = [rule for rule in group["IpPermissions"] if rule.get("FromPort") == port]
    return [one["CidrIp"] for rule in rules for one in rule["IpRanges"]]


def _rule(port: int, ranges: list[dict[str, str]]) -> dict[str, Any]:
    return {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, "IpRanges": ranges}
