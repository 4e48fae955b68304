"""The private Docker Engine of scripts/private-dockerd, which the tests stand on where the machine has none."""

from __future__ import annotations

import io
import subprocess
import tarfile
import uuid
from pathlib import Path

import pytest
import requests
from docker.errors import DockerException

from tests.support.docker_engine import PrivateEngine, connect
from tests.support.processes import alive


def _put_image(engine: PrivateEngine) -> None:
    """Make the image "nothing", whose containers can be made but hold no program."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    client = connect(engine.host)
    client.api.import_image_from_data(archive.getvalue(), repository="nothing", tag="latest")
    client.close()


def _containers(engine: PrivateEngine) -> list[str]:
    client = connect(engine.host)
    try:
        return [container["Names"][0] for container in client.api.containers(all=True)]
    finally:
        client.close()


def test_an_engine_that_was_killed_comes_back_with_its_containers(private_engine: PrivateEngine) -> None:
    """After SIGKILL, a start in the same folder brings the engine back at its address, with its containers."""
    _put_image(private_engine)
    client = connect(private_engine.host)
    client.api.create_container("nothing", command=["/x"], name="kept")
    client.close()
    first = private_engine.pid
    private_engine.kill()
    with pytest.raises((DockerException, requests.RequestException)):
        connect(private_engine.host)
    private_engine.start()
    assert private_engine.pid != first
    assert _containers(private_engine) == ["/kept"]


def test_a_stopped_engine_leaves_its_images_and_nothing_else(private_engine: PrivateEngine) -> None:
    """Stopping takes back processes, bridges, socket, containers and networks; images are there at the next start."""
    _put_image(private_engine)
    client = connect(private_engine.host)
    client.api.create_container("nothing", command=["/x"], name="gone")
    network = client.networks.create("gone")
    bridge = client.networks.get("bridge").attrs["Options"]["com.docker.network.bridge.name"]
    own = {bridge, f"br-{str(network.id)[:12]}"}
    client.close()
    pid = private_engine.pid
    assert own <= set(_bridges())
    private_engine.stop()
    assert not alive(pid)
    assert not Path(private_engine.host.removeprefix("unix://")).exists()
    assert not own & set(_bridges()), "its own bridge and its network's"
    private_engine.start()
    assert _containers(private_engine) == []
    client = connect(private_engine.host)
    try:
        assert client.images.list("nothing")
    finally:
        client.close()


def test_a_network_that_another_bridge_has_taken_is_left_to_it(private_engine: PrivateEngine) -> None:
    """An engine that was killed, and whose network another bridge has taken since, starts on a network of its own."""
    first = _network(private_engine)
    private_engine.kill()
    other = f"t{uuid.uuid4().hex[:8]}"
    for command in (
        ["link", "add", "name", other, "type", "bridge"],
        ["addr", "add", first, "dev", other],
        ["link", "set", other, "up"],
    ):
        subprocess.run(["ip", *command], check=True)
    try:
        private_engine.start()
        assert _network(private_engine) != first
        private_engine.stop()
        assert other in _bridges()
    finally:
        subprocess.run(["ip", "link", "del", other], check=True)


def _network(engine: PrivateEngine) -> str:
    """The address and size of its bridge, such as 10.201.0.1/17."""
    client = connect(engine.host)
    try:
        name = client.networks.get("bridge").attrs["Options"]["com.docker.network.bridge.name"]
    finally:
        client.close()
    shown = subprocess.run(["ip", "-4", "-o", "addr", "show", "dev", name], check=True, capture_output=True, text=True)
    return shown.stdout.split()[3]


def _bridges() -> list[str]:
    return [folder.parent.name for folder in Path("/sys/class/net").glob("*/bridge")]
