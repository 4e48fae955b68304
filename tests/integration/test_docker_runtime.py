"""What only a real Docker Engine can show: faults, lost answers, races, logs on disk, networks, images."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import pytest

from orchestrator import diagnosis
from orchestrator.config import DockerHostConfig
from orchestrator.errors import FaultKind, RuntimeFault
from orchestrator.interfaces import HostEvent
from orchestrator.runtimes import cgroups, docker_network
from orchestrator.runtimes.docker import DockerRuntime
from orchestrator.runtimes.docker_network import EngineNetwork
from tests.support.engine_hosts import DockerHost, Specs, launch, tell_stub, wait_ended, wait_ready
from tests.support.lossy_docker import LossyDocker
from tests.support.waiting import wait_until


def _fault(call: object, *args: object) -> RuntimeFault:
    with pytest.raises(RuntimeFault) as caught:
        call(*args)  # type: ignore[operator]
    return caught.value


# ------------------------------------------------------------ a host that does not answer


def test_docker_that_is_not_there(state_dir: Path) -> None:
    """A Docker that does not run is UNREACHABLE at every call, and the sentence says how to start it."""
    runtime = DockerRuntime(DockerHostConfig(url=f"unix://{state_dir}/none.sock"), "i")
    for call in (runtime.check, runtime.list, runtime.taken_ports, runtime.events):
        fault = _fault(call)
        assert fault.kind is FaultKind.UNREACHABLE
        assert "systemctl start docker" in str(fault)
    runtime.close()


def test_docker_that_stalls(state_dir: Path) -> None:
    """Report 26: a Docker that accepts and never answers costs a call its timeout, not for ever."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(state_dir / "stalled.sock"))
        listener.listen()
        url = f"unix://{state_dir}/stalled.sock"
        runtime = DockerRuntime(DockerHostConfig(url=url, timeout_s=0.3), "i")
        began = time.monotonic()
        assert _fault(runtime.list).kind is FaultKind.TIMEOUT
        fault = _fault(runtime.check)
        assert fault.kind is FaultKind.UNREACHABLE
        assert "too long" in str(fault)
        assert time.monotonic() - began < 5
        runtime.close()


def test_a_runtime_outlives_the_absence_of_docker(state_dir: Path, docker_host: str) -> None:
    """A daemon that starts before Docker does finds it as soon as it is there."""
    path = state_dir / "later.sock"
    runtime = DockerRuntime(DockerHostConfig(url=f"unix://{path}"), "i")
    assert _fault(runtime.check).kind is FaultKind.UNREACHABLE
    path.symlink_to(docker_host.removeprefix("unix://"))
    runtime.check()
    runtime.close()


# ------------------------------------------------------------ lost answers


@pytest.fixture
def lossy(state_dir: Path, docker_host: str) -> Iterator[LossyDocker]:
    """A way to the Docker Engine that can lose answers."""
    proxy = LossyDocker(state_dir, docker_host)
    yield proxy
    proxy.close()


def test_a_create_that_timed_out_is_looked_up(host: DockerHost, new_spec: Specs, lossy: LossyDocker) -> None:
    """Report 12: when the answer to a create is lost, the engine that was made is found by its name; there is one."""
    runtime = DockerRuntime(DockerHostConfig(url=lossy.url, timeout_s=2), host.instance)
    runtime.check()
    spec = new_spec()
    host.runtime.remove(host.runtime.create(new_spec()))  # the network is there
    lossy.lose("/containers/create")
    handle = runtime.create(spec)
    assert lossy.lost == 1
    assert [seen.handle for seen in host.runtime.list()] == [handle]
    runtime.close()


def test_a_start_that_timed_out_can_be_repeated(host: DockerHost, new_spec: Specs, lossy: LossyDocker) -> None:
    """Report 12: when the answer to a start is lost it is a TIMEOUT, and starting again is success."""
    runtime = DockerRuntime(DockerHostConfig(url=lossy.url, timeout_s=3), host.instance)
    spec = new_spec()
    handle = runtime.create(spec)
    lossy.lose("/start")
    assert _fault(runtime.start, handle).kind is FaultKind.TIMEOUT
    runtime.start(handle)
    wait_ready(host, spec)
    runtime.close()


def test_events_go_on_after_a_cut(host: DockerHost, new_spec: Specs, lossy: LossyDocker) -> None:
    """Report 14: an event stream that is cut ends quietly, and the next one tells what happened in between."""
    runtime = DockerRuntime(DockerHostConfig(url=lossy.url), host.instance)
    heard: list[HostEvent] = []
    events = runtime.events()
    follower = threading.Thread(target=lambda: heard.extend(events), daemon=True)
    follower.start()
    first, second = new_spec(), new_spec()
    host.runtime.create(first)
    host.runtime.start(host.runtime.create(second))
    wait_until(lambda: HostEvent(second.engine_id, "start") in heard, 10)
    lossy.cut()
    follower.join(10)
    assert not follower.is_alive()
    host.kill(second)
    wait_ended(host, second)
    assert HostEvent(second.engine_id, "die", 137) in _until_death(runtime)
    runtime.close()


def _until_death(runtime: DockerRuntime) -> list[HostEvent]:
    heard = []
    for event in runtime.events():
        heard.append(event)
        if event.kind == "die":
            break
    return heard


def test_closing_ends_a_quiet_event_stream(host: DockerHost) -> None:
    """A runtime that is closed lets go of its event stream although nothing happens on it."""
    events = host.runtime.events()
    follower = threading.Thread(target=lambda: list(events), daemon=True)
    follower.start()
    host.runtime.close()
    follower.join(5)
    assert not follower.is_alive()


# ------------------------------------------------------------ ports


def test_a_stopped_container_of_others_keeps_its_port(host: DockerHost, docker_client: docker.DockerClient) -> None:
    """Report 2: ports that other people's containers, running or stopped, have asked for are known as taken."""
    port = Specs(host)().port
    foreign = docker_client.containers.create(host.image, ports={"50051/tcp": ("127.0.0.1", port)})
    try:
        assert port in host.runtime.taken_ports()
        foreign.start()
        assert port in host.runtime.taken_ports()
    finally:
        foreign.remove(force=True)
    assert port not in host.runtime.taken_ports()


def test_ports_are_published_on_one_address(host: DockerHost, new_spec: Specs) -> None:
    """Reports 5 and 6: an engine's port is published at the given address and number and at no other, IPv6 neither."""
    spec = new_spec()
    launch(host, spec)
    published = host.inspect(spec)["NetworkSettings"]["Ports"]
    assert published == {"50051/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(spec.port)}]}


def test_an_address_that_is_not_ours_is_a_bad_setting(host: DockerHost, new_spec: Specs) -> None:
    """Binding to an address this host does not have is BAD_SPEC, so that nobody retries it as a port conflict."""
    handle = host.runtime.create(new_spec(host="203.0.113.9"))
    assert _fault(host.runtime.start, handle).kind is FaultKind.BAD_SPEC


def test_an_open_port_with_nothing_behind_is_not_ready(host: DockerHost, new_spec: Specs) -> None:
    """Report 24: Docker's proxy accepts connections for an engine that does not listen, or not yet; it is not ready."""
    deaf, silent = new_spec(args=("--deaf",)), new_spec(args=("--silent",))
    for spec in (deaf, silent):
        host.runtime.start(host.runtime.create(spec))
    wait_until(lambda: host.runtime.logs(silent.name, 1)[-1:] == ["Server listening on 0.0.0.0:50051"], 20)
    for spec in (deaf, silent):
        with socket.create_connection(("127.0.0.1", spec.port), timeout=5):
            pass  # it accepts
        assert not host.probe("127.0.0.1", spec.port, timeout_s=0.5)


# ------------------------------------------------------------ what a spec may say wrong


def test_a_missing_mount_is_refused(host: DockerHost, new_spec: Specs, tmp_path: Path) -> None:
    """Report 33: a credentials file that does not exist is BAD_SPEC, and no folder of that name appears."""
    missing = tmp_path / "credentials"
    fault = _fault(host.runtime.create, new_spec(options={"credentials_path": missing}))
    assert fault.kind is FaultKind.BAD_SPEC
    assert str(missing) in str(fault)
    assert not missing.exists()


@pytest.mark.parametrize("options", [{"user": "nobody-here"}, {"network": "no-such-network"}])
def test_a_wrong_setting_is_refused(host: DockerHost, new_spec: Specs, options: dict[str, str]) -> None:
    """A user or a network that does not exist is BAD_SPEC, at creation or at the start."""

    def bring_up() -> None:
        host.runtime.start(host.runtime.create(new_spec(options=options)))

    fault = _fault(bring_up)
    assert fault.kind is FaultKind.BAD_SPEC
    assert "docker settings" in str(fault)


# ------------------------------------------------------------ images


def test_an_image_that_cannot_be_had(host: DockerHost) -> None:
    """An image that is nowhere is IMAGE_MISSING, in one sentence that names it, with and without leave to pull."""
    for pull in (True, False):
        with pytest.raises(RuntimeFault) as caught:
            host.runtime.resolve_image("127.0.0.1:1/nobody/nothing:1", pull=pull)
        assert caught.value.kind is FaultKind.IMAGE_MISSING
        assert "127.0.0.1:1/nobody/nothing:1" in str(caught.value)


def test_an_image_that_was_pruned(host: DockerHost, new_spec: Specs, docker_client: docker.DockerClient) -> None:
    """Report 23: creating from an image that was removed meanwhile is IMAGE_MISSING."""
    source = docker_client.images.get(host.image)
    container = docker_client.containers.create(source)
    try:
        pruned = container.commit(repository="cornerman-test/pruned", tag=host.instance)
    finally:
        container.remove(force=True)
    pinned = host.runtime.resolve_image(f"cornerman-test/pruned:{host.instance}")
    assert pruned.id is not None
    docker_client.images.remove(pruned.id, force=True)
    assert _fault(host.runtime.create, new_spec(image=pinned)).kind is FaultKind.IMAGE_MISSING


# ------------------------------------------------------------ ends


def test_out_of_memory_is_flagged(host: DockerHost, new_spec: Specs) -> None:
    """Report 27: an engine that takes more memory than it may ends as out of memory, in the list and in words."""
    spec = new_spec(options={"memory_mb": 32, "tmpfs_mb": 4})
    handle = launch(host, spec)
    heard: list[HostEvent] = []
    events = host.runtime.events()
    threading.Thread(target=lambda: heard.extend(events), daemon=True).start()
    tell_stub(spec.port, "EAT")
    wait_ended(host, spec)
    (seen,) = host.runtime.list()
    assert (seen.exit_code, seen.oom_killed) == (137, True)
    reason = diagnosis.explain(host.runtime.logs(handle, 20), seen.exit_code, oom=seen.oom_killed, killed_by_us=False)
    assert "out of memory" in reason
    wait_until(lambda: "die" in [event.kind for event in heard], 10)
    assert [event.kind for event in heard if event.kind != "start"][:2] == ["oom", "die"]


def test_an_engine_that_asks_for_credentials_is_found_out(host: DockerHost, new_spec: Specs) -> None:
    """Report 32: an engine that asks for credentials on its terminal, on a line without an end, is found out in seconds."""
    spec = new_spec(args=("--prompt",))
    handle = host.runtime.create(spec)
    host.runtime.start(handle)
    wait_until(lambda: diagnosis.asks_for_credentials(host.runtime.logs(handle, 20)), 5)


def test_the_practice_engine_asks_as_the_real_one_does(host: DockerHost, new_spec: Specs, practice_image: str) -> None:
    """Report 32: an engine without credentials is found out from its log within seconds, while its port stays closed."""
    spec = new_spec(image=practice_image, args=("--require-credentials",), options={"memory_mb": 512})
    handle = host.runtime.create(spec)
    host.runtime.start(handle)
    wait_until(lambda: diagnosis.asks_for_credentials(host.runtime.logs(handle, 20)), 20)
    assert not host.probe("127.0.0.1", spec.port, timeout_s=0.5)


def test_the_practice_engine_runs_hardened(host: DockerHost, new_spec: Specs, practice_image: str) -> None:
    """The practice engine's image answers with every hardening on, a read-only root among them."""
    spec = new_spec(image=host.runtime.resolve_image(practice_image), options={"memory_mb": 512, "read_only": True})
    handle = host.runtime.create(spec)
    host.runtime.start(handle)
    wait_until(lambda: host.probe("127.0.0.1", spec.port, timeout_s=1), 60, what="an answer of the practice engine")


# ------------------------------------------------------------ logs


def test_logs_are_capped_on_disk(host: DockerHost, new_spec: Specs) -> None:
    """Report 28: however much an engine writes, its log keeps to its cap, and its end can still be read."""
    spec = new_spec(options={"log_max_mb": 1})
    handle = launch(host, spec)
    assert tell_stub(spec.port, "FLOOD 6000", timeout_s=60) == "done"
    wait_until(
        lambda: host.runtime.logs(handle, 1)[-1:] != [] and host.runtime.logs(handle, 1)[0].startswith("00005999"), 10
    )
    log = Path(host.inspect(spec)["LogPath"])
    assert host.inspect(spec)["HostConfig"]["LogConfig"]["Config"] == {"max-size": "1m", "max-file": "2"}
    if log.parent.exists():  # the engine host is this machine, and we may look
        assert sum(file.stat().st_size for file in log.parent.glob("*.log*")) < 2.5 * 1024 * 1024


# ------------------------------------------------------------ usage


def test_usage_without_the_kernels_files(host: DockerHost, new_spec: Specs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel's files are not at hand, Docker itself is asked, and gives the same memory within a margin."""
    spec = new_spec()
    handle = launch(host, spec)
    near = host.runtime.stats(handle).memory_bytes
    monkeypatch.setattr(cgroups, "read_usage", lambda _: None)
    far = host.runtime.stats(handle).memory_bytes
    assert near is not None
    assert far is not None
    assert abs(near - far) < 4 * 1024 * 1024
    assert host.runtime.stats("no-such-engine").memory_bytes is None


def test_busy_engines_show_it(host: DockerHost, new_spec: Specs) -> None:
    """An engine that computes shows a good part of a core."""
    spec = new_spec()
    handle = launch(host, spec)
    host.runtime.stats(handle)
    tell_stub(spec.port, "BURN 0.5")
    cpu = host.runtime.stats(handle).cpu_percent
    assert cpu is not None
    assert cpu > 10


# ------------------------------------------------------------ networks


@pytest.fixture
def scratch_network(docker_client: docker.DockerClient, host: DockerHost) -> Iterator[str]:
    """A name for a network, with whatever has it removed at the end."""
    name = f"cornerman-test-{host.instance}"
    yield name
    for network in docker_client.networks.list(names=[name]):
        network.remove()


def test_creators_that_race_share_one_network(docker_client: docker.DockerClient, scratch_network: str) -> None:
    """Several daemons that make the engines' network at the same moment end up with one, and all use it."""
    barrier = threading.Barrier(4)

    def ensure(_: int) -> str:
        network = EngineNetwork(scratch_network)
        barrier.wait(10)
        return network.ensure(docker_client.api)

    with ThreadPoolExecutor(4) as threads:
        ids = set(threads.map(ensure, range(4)))
    wait_until(lambda: len(docker_client.networks.list(names=[scratch_network])) == 1, 5)
    assert ids == {docker_client.networks.list(names=[scratch_network])[0].id}


def test_of_two_networks_with_the_name_all_take_the_oldest(
    docker_client: docker.DockerClient, scratch_network: str
) -> None:
    """Docker allows a name twice: whoever comes later uses the network that was made first."""
    options = {"com.docker.network.bridge.enable_icc": "false"}
    first = docker_client.api.create_network(scratch_network, driver="bridge", options=options)["Id"]
    docker_client.api.create_network(scratch_network, driver="bridge", options=options, check_duplicate=False)
    assert EngineNetwork(scratch_network).ensure(docker_client.api) == first


def test_an_open_network_of_that_name_is_refused(docker_client: docker.DockerClient, scratch_network: str) -> None:
    """A network of the engines' name on which they could reach each other is not used, and the fault says what to do."""
    docker_client.api.create_network(scratch_network, driver="bridge")
    fault = _fault(EngineNetwork(scratch_network).ensure, docker_client.api)
    assert fault.kind is FaultKind.BAD_SPEC
    assert f"docker network rm {scratch_network}" in str(fault)


def test_the_network_is_found_again_after_it_was_removed(
    docker_client: docker.DockerClient,
    host: DockerHost,
    new_spec: Specs,
    monkeypatch: pytest.MonkeyPatch,
    scratch_network: str,
) -> None:
    """When somebody removes the engines' network, one start fails and the next engine is on a new one."""
    monkeypatch.setattr(host.runtime, "_network", EngineNetwork(scratch_network))
    doomed = host.runtime.create(new_spec())
    docker_client.networks.list(names=[scratch_network])[0].remove()
    assert _fault(host.runtime.start, doomed).kind is FaultKind.BAD_SPEC
    host.runtime.remove(doomed)
    launch(host, spec := new_spec())
    host.runtime.remove(spec.name)


def test_the_default_network_lets_no_traffic_between_engines(
    host: DockerHost, docker_client: docker.DockerClient, new_spec: Specs
) -> None:
    """The engines' own network has the option that keeps engines from each other."""
    host.runtime.create(new_spec())
    network = docker_client.networks.list(names=[docker_network.NAME])[0]
    assert network.attrs["Options"]["com.docker.network.bridge.enable_icc"] == "false"


def test_no_engine_runs_as_somebody_else(host: DockerHost, new_spec: Specs) -> None:
    """Unless configured otherwise an engine runs as the daemon's own user and group, as with the official tool."""
    spec = new_spec()
    host.runtime.create(spec)
    assert host.inspect(spec)["Config"]["User"] == f"{os.getuid()}:{os.getgid()}"
