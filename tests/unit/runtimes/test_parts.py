"""The pure parts of the runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from orchestrator.config import DockerOptions, ProcessOptions
from orchestrator.errors import FaultKind
from orchestrator.interfaces import LABEL_ENGINE, EngineSpec, HostEvent
from orchestrator.runtimes.cgroups import CpuMeter, Usage, read_usage
from orchestrator.runtimes.docker_faults import as_fault, classify
from orchestrator.runtimes.docker_spec import engine_args
from orchestrator.runtimes.docker_view import asked_ports, host_event, pinned, repository, seen_from_inspect
from orchestrator.runtimes.loglines import MAX_LINE, LogRing, tidy
from orchestrator.runtimes.seeds import derived_seed


def _spec(**changes: Any) -> EngineSpec:
    values: dict[str, Any] = {
        "engine_id": "e1",
        "name": "n",
        "instance": "i",
        "pool": "p",
        "image": "image",
        "host": "127.0.0.1",
        "port": 32000,
        **changes,
    }
    return EngineSpec(**values)


# ------------------------------------------------------------ logs


def test_log_lines_are_readable() -> None:
    """Colours, window titles, overwritten progress and broken UTF-8 do not reach whoever reads a log."""
    raw = b"\x1b[31mred\x1b[0m\r\n10 %\r50 %\rdone\r\n\x1b]0;title\x07plain\x00\n\xff\n"
    assert tidy(raw, 10) == ["red", "done", "plain", "�"]


def test_log_lines_have_a_greatest_length() -> None:
    """One endless line cannot fill a page, an event or the database."""
    (line,) = tidy(b"x" * 100_000, 5)
    assert len(line) == MAX_LINE
    assert line.endswith("…")


def test_the_tail_is_the_end() -> None:
    """A tail gives the last lines; the unfinished last line counts, the empty end of the file does not."""
    assert tidy(b"a\nb\nc\n", 2) == ["b", "c"]
    assert tidy(b"a\nUsername: ", 1) == ["Username:"]
    assert tidy(b"", 5) == []
    assert tidy(b"a\n", 0) == []


def test_a_log_in_memory_is_capped() -> None:
    """Report 28: the log of a child process keeps its end and no more than its limit."""
    ring = LogRing(limit_bytes=1000)
    for number in range(10_000):
        ring.write(b"line %d\n" % number)
    lines = ring.lines(10_000)
    assert lines[-1] == "line 9999"
    assert len(lines) < 150


# ------------------------------------------------------------ usage


def _write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.mark.parametrize("group", ["docker/abc", "system.slice/docker-abc.scope"])
def test_usage_from_cgroup_v2(tmp_path: Path, group: str) -> None:
    """CPU and memory are read under cgroup v2, with either cgroup driver of Docker, page cache not counted."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    _write(tmp_path / group, cpu__stat="usage_usec 2500000\nuser_usec 1", memory__current="3000")
    (tmp_path / group / "memory.stat").write_text("anon 5\ninactive_file 1000\n")
    assert read_usage("abc", tmp_path) == Usage(2.5, 2000)


def test_usage_from_cgroup_v1(tmp_path: Path) -> None:
    """CPU and memory are read under cgroup v1 too."""
    _write(tmp_path / "cpuacct/docker/abc", cpuacct__usage="1500000000\n")
    _write(tmp_path / "memory/docker/abc", memory__usage_in_bytes="5000\n", memory__stat="total_inactive_file 1000\n")
    assert read_usage("abc", tmp_path) == Usage(1.5, 4000)


def test_usage_of_what_is_not_here(tmp_path: Path) -> None:
    """A container of another machine, or one that ended, has no usage here, and that is no error."""
    assert read_usage("abc", tmp_path) is None


def test_cpu_percent_is_since_the_last_look() -> None:
    """CPU is given in percent of one core since the last look at the same engine; a first look, or a restart, gives none."""
    meter = CpuMeter()
    assert meter.percent("a", 10.0, at=100.0) is None
    assert meter.percent("a", 12.0, at=104.0) == 50.0
    assert meter.percent("b", 1.0, at=104.0) is None
    assert meter.percent("a", 0.5, at=110.0) is None
    meter.forget("a")
    assert meter.percent("a", 20.0, at=120.0) is None


# ------------------------------------------------------------ what Docker says


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (500, "driver failed programming external connectivity: Bind for 127.0.0.1:1 failed: port is already allocated",
         FaultKind.PORT_TAKEN),
        (500, "listen tcp4 127.0.0.1:1: bind: address already in use", FaultKind.PORT_TAKEN),
        (500, "write /var/lib/docker/tmp: no space left on device", FaultKind.DISK_FULL),
        (404, "No such image: nowhere:1", FaultKind.IMAGE_MISSING),
        (404, "pull access denied for x, repository does not exist", FaultKind.IMAGE_MISSING),
        (400, 'invalid mount config for type "bind": bind source path does not exist: /nowhere', FaultKind.BAD_SPEC),
        (400, "unable to find user nobody2: no matching entries in passwd file", FaultKind.BAD_SPEC),
        (404, "network nowhere not found", FaultKind.BAD_SPEC),
        (500, "OCI runtime create failed: exec: \"x\": executable file not found in $PATH", FaultKind.BAD_SPEC),
        (500, "listen tcp4 203.0.113.9:1: bind: cannot assign requested address", FaultKind.BAD_SPEC),
        (404, "No such container: abc", FaultKind.NOT_FOUND),
        (500, "could not find bridge br-1: no such network interface", FaultKind.OTHER),
        (409, "Conflict", FaultKind.OTHER),
    ],
)  # fmt: skip
def test_answers_of_docker_are_classified(status: int, text: str, kind: FaultKind) -> None:
    """Each refusal of Docker becomes the kind of fault the pool decides by."""
    assert classify(status, text) is kind


def _answer(cls: type[APIError], status: int, text: str) -> APIError:
    response = requests.Response()
    response.status_code = status
    return cls("refused", response=response, explanation=text)


def _wrapped(cause: BaseException) -> DockerException:
    error = DockerException(f"Error while fetching server API version: {cause}")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (requests.ConnectionError("refused"), FaultKind.UNREACHABLE, "systemctl start docker"),
        (_wrapped(requests.ConnectionError(ConnectionRefusedError())), FaultKind.UNREACHABLE, "systemctl start docker"),
        (_wrapped(requests.ConnectionError(PermissionError())), FaultKind.UNREACHABLE, "group 'docker'"),
        (requests.ReadTimeout("slow"), FaultKind.TIMEOUT, "docker.timeout_s"),
        (_wrapped(requests.ReadTimeout("slow")), FaultKind.TIMEOUT, "docker.timeout_s"),
        (_answer(ImageNotFound, 404, "No such image: x"), FaultKind.IMAGE_MISSING, "docker.pull"),
        (_answer(NotFound, 404, "No such container: x"), FaultKind.NOT_FOUND, "gone"),
    ],
)
def test_every_failure_says_what_to_do(error: Exception, kind: FaultKind, said: str) -> None:
    """Whatever the Docker SDK raises becomes one sentence with what happened and what to do."""
    fault = as_fault(error, doing="do it", url="unix:///x.sock")
    assert fault.kind is kind
    assert said in str(fault)
    assert str(fault).endswith(".")
    assert "\n" not in str(fault)


def test_ports_asked_for_are_read_in_every_form() -> None:
    """Report 2: ports of stopped containers are known, as numbers and as ranges; those left to Docker ask for none."""
    bindings: dict[str, Any] = {
        "1/tcp": [{"HostIp": "", "HostPort": "32000"}, {"HostIp": "::", "HostPort": "32001"}],
        "2/tcp": [{"HostPort": "32010-32012"}],
        "3/tcp": [{"HostPort": ""}],
        "4/tcp": None,
    }
    assert asked_ports({"HostConfig": {"PortBindings": bindings}}) == {32000, 32001, 32010, 32011, 32012}
    assert asked_ports({"HostConfig": {"PortBindings": None}}) == frozenset()


def test_a_failed_start_is_not_an_exit() -> None:
    """Report 2: a container that Docker could not start, to which it gives an exit code of its own, was never started."""
    seen = seen_from_inspect(
        {
            "Id": "c",
            "Name": "/n",
            "Config": {"Labels": {LABEL_ENGINE: "e1"}},
            "HostConfig": {"PortBindings": {}},
            "State": {"Status": "created", "ExitCode": 128, "OOMKilled": False},
        }
    )
    assert (seen.started, seen.running, seen.exit_code) == (False, False, None)


def test_events_of_others_are_left_out() -> None:
    """Events without an engine's label, and kinds the daemon has no use for, are ignored."""
    labels = {LABEL_ENGINE: "e1", "exitCode": "137"}
    assert host_event({"Action": "die", "Actor": {"Attributes": labels}}) == HostEvent("e1", "die", 137)
    assert host_event({"Action": "exec_start: sh", "Actor": {"Attributes": labels}}) is None
    assert host_event({"Action": "die", "Actor": {"Attributes": {}}}) is None


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("diambra/engine:v2.2", "diambra/engine"),
        ("docker.io/library/python:3.11", "python"),
        ("host:5000/a/b@sha256:1", "host:5000/a/b"),
        ("host:5000/a", "host:5000/a"),
    ],
)
def test_repositories_are_told_from_tags(image: str, name: str) -> None:
    """The repository of an image is found with tag, digest, or a registry's port."""
    assert repository(image) == name


def test_images_are_pinned() -> None:
    """An image is pinned to the digest of its own repository, or to its id when it was built here."""
    digests = ["other/engine@sha256:1", "diambra/engine@sha256:2"]
    assert pinned("diambra/engine:v2.2", {"Id": "sha256:3", "RepoDigests": digests}) == "diambra/engine@sha256:2"
    assert pinned("mine:1", {"Id": "sha256:3", "RepoDigests": []}) == "sha256:3"
    for fixed in (*digests, "sha256:3"):
        assert pinned(fixed, {"Id": "sha256:3", "RepoDigests": digests}) == fixed


# ------------------------------------------------------------ arguments


def test_every_engine_has_its_own_seed() -> None:
    """Each engine gets a seed that follows from its id, unless one is configured."""
    assert engine_args(_spec(), DockerOptions()) == ["--randomSeed", str(derived_seed("e1"))]
    assert derived_seed("e1") != derived_seed("e2")
    assert engine_args(_spec(), DockerOptions(random_seed=7, args=("--lockFps",))) == ["--lockFps", "--randomSeed", "7"]
    assert engine_args(_spec(), DockerOptions(args=("--randomSeed", "9"))) == ["--randomSeed", "9"]
    assert ProcessOptions().command == ()
