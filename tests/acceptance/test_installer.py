"""The installer where it cannot install, and, slowly, on every distribution it is for with that distribution's own Docker.

Amazon Linux cannot be had as a root here: its branch is read by shellcheck and by people only.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support import roots
from tests.support.ports import free_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "/mnt/deploy/install.sh"
SERVICES = ("cornerman.service", "cornerman-relay.service")
# What programs write for themselves; and what apt keeps of its lists, which is no part of an installation.
NOT_OURS = (
    "var/log",
    "var/lib/apt",
    "var/cache",
    "run",
    "tmp",
    "var/lib/dpkg/lock",
    "var/lib/systemd",
    "etc/machine-id",
    "mnt",
    "root",
)
QUIET_DOCKER = '{"iptables": false, "ip6tables": false, "bridge": "none"}'  # the network is shared with this machine


@pytest.fixture(scope="module")
def clean() -> Iterator[roots.Machine]:
    """A clean Debian 12 that runs, with a clone of the repository in it."""
    with roots.machine(roots.base("debian-12"), binds={"/mnt": str(ROOT)}) as machine:
        machine.boot()
        yield machine


def _files(machine: roots.Machine) -> set[str]:
    """Everything that was changed or made in the machine since it was clean."""
    upper = machine.folder / "upper"
    found = (str(path.relative_to(upper)) for path in upper.rglob("*") if not path.is_dir())
    return {name for name in found if not name.startswith(NOT_OURS)}


def _refused(machine: roots.Machine, *command: str, status: int = 1, **environ: str) -> str:
    """The one sentence by which the installer refuses; nothing is changed by it."""
    before = _files(machine)
    done = machine.run(*command, check=False, environ=environ)
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert _files(machine) == before
    assert machine.run("id", "cornerman", check=False).returncode != 0
    lines = done.stderr.strip().splitlines()
    assert lines[-1].startswith("cornerman: ")
    assert len([line for line in lines if not re.match("cornerman: (fetching|installing) ", line)]) == 1, done.stderr
    return lines[-1].removeprefix("cornerman: ")


def test_not_root(clean: roots.Machine) -> None:
    """Who is not root is told to be."""
    told = _refused(clean, "setpriv", "--reuid", "nobody", "--clear-groups", SCRIPT)
    assert told == "run it as root: it installs packages, a user and services"


def test_no_systemd(clean: roots.Machine) -> None:
    """Where systemd does not run the machine, it says what to do without it."""
    told = _refused(clean, "unshare", "-m", "sh", "-c", f"mount -t tmpfs none /run/systemd && exec {SCRIPT}")
    assert told.startswith("systemd does not run this machine")


@pytest.mark.parametrize(
    ("system", "name"),
    [
        ('ID=fedora\nVERSION_ID=41\nPRETTY_NAME="Fedora Linux 41"\n', "Fedora Linux 41"),
        ('ID=debian\nVERSION_ID=11\nPRETTY_NAME="Debian GNU/Linux 11"\n', "Debian GNU/Linux 11"),
        ('ID=ubuntu\nVERSION_ID=20.04\nPRETTY_NAME="Ubuntu 20.04.6 LTS"\n', "Ubuntu 20.04.6 LTS"),
        ('ID=amzn\nVERSION_ID=2\nPRETTY_NAME="Amazon Linux 2"\n', "Amazon Linux 2"),
    ],
)
def test_wrong_system(clean: roots.Machine, system: str, name: str) -> None:
    """A system that it is not for is named, with those that it is for."""
    clean.write("/run/os-release", system)
    told = _refused(
        clean, "unshare", "-m", "sh", "-c", f"mount --bind /run/os-release /etc/os-release && exec {SCRIPT}"
    )
    assert told == f"{name} is not supported: take Amazon Linux 2023, Debian 12 or 13, or Ubuntu 22.04 or later"


def test_no_disk(clean: roots.Machine) -> None:
    """A disk that is too small is measured before anything is put on it."""
    told = _refused(clean, "unshare", "-m", "sh", "-c", f"mount -t tmpfs -o size=50M none /opt && exec {SCRIPT}")
    assert re.fullmatch(
        r"only \d+ MB are free below /opt and 4096 MB are needed: make room or enlarge the volume", told
    )


@pytest.mark.parametrize("between", [" ", "="])
@pytest.mark.parametrize("which", ["--port", "--relay-port"])
def test_port_taken(clean: roots.Machine, which: str, between: str) -> None:
    """A port that another program holds is named before anything is installed, however the option was written."""
    port, other = free_port(), free_port()
    ports = {"--port": str(other), "--relay-port": str(other), which: str(port)}
    with closing(socket.create_server(("127.0.0.1", port))):
        told = _refused(clean, SCRIPT, "--", *" ".join(between.join(pair) for pair in ports.items()).split())
    assert told.startswith(f"port {port} is taken by another program: ")


def test_no_network(clean: roots.Machine) -> None:
    """Without a network the first fetch fails, says so, and leaves nothing."""
    clean.write("/etc/apt/apt.conf.d/99-tests", 'Acquire::Retries "0";')
    told = _refused(clean, "unshare", "-n", SCRIPT, "--", "--port", str(free_port()))
    assert told.startswith("the lists of packages cannot be fetched")
    assert told.endswith("check the network and run this again")


@pytest.fixture
def poor_docker(clean: roots.Machine) -> Iterator[roots.Machine]:
    """All packages are there, among them a Docker that never answers; ``sleep`` takes no time."""
    programs = {name: "exit 0" for name in ("dockerd", "python3.11", "sleep")} | {"docker": "exit 1"}
    files = {f"/usr/local/bin/{name}": f"#!/bin/sh\n{does}\n" for name, does in programs.items()}
    files["/etc/ssl/certs/ca-certificates.crt"] = ""
    for path, text in files.items():
        clean.write(path, text, mode=0o755)
    yield clean
    clean.run("rm", "-f", *files)


def test_no_docker(poor_docker: roots.Machine) -> None:
    """A Docker that does not start, or starts and does not answer, is told with where to look; nothing is made."""
    told = _refused(poor_docker, SCRIPT, "--", "--port", str(free_port()))
    assert told == "Docker is here and does not start: see 'systemctl status docker', then run this again"
    poor_docker.write("/run/systemd/system/docker.service", "[Service]\nExecStart=/bin/sleep infinity\n")
    poor_docker.run("systemctl", "daemon-reload")
    told = _refused(poor_docker, SCRIPT, "--", "--port", str(free_port()))
    assert told == "Docker runs and does not answer: see 'systemctl status docker', then run this again"
    poor_docker.run("systemctl", "stop", "docker.service")


def test_a_docker_that_somebody_started_is_there_after_a_boot(poor_docker: roots.Machine) -> None:
    """A Docker that runs and would not at the next boot, which the idle stop brings, is turned on for good."""
    unit = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
    poor_docker.write("/usr/local/bin/docker", "#!/bin/sh\nexit 0\n", mode=0o755)
    poor_docker.write("/etc/systemd/system/docker.service", unit)
    poor_docker.run("systemctl", "daemon-reload")
    done = poor_docker.run(SCRIPT, "--", "--port", str(free_port()), check=False)
    assert "pip cannot install Cornerman" in done.stderr, "there is no real Python here"
    assert poor_docker.run("systemctl", "is-enabled", "docker").stdout.strip() == "enabled"
    poor_docker.run("systemctl", "disable", "--quiet", "docker")
    poor_docker.run("rm", "/etc/systemd/system/docker.service")
    poor_docker.run("systemctl", "daemon-reload")


@pytest.mark.parametrize("arguments", [("--uninstall",), ("--", "--port", "18443")])
def test_one_at_a_time(poor_docker: roots.Machine, arguments: tuple[str, ...]) -> None:
    """While one run of the installer is at work another one, also one that would remove everything, does not begin."""
    lock = "/run/cornerman-install.lock"
    told = _refused(poor_docker, "flock", lock, SCRIPT, *arguments)
    assert told == "another run of this installer is at work: wait for it"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--idle-after", "soon"), "--idle-after soon is no time of 10 s or more: say for example 45m"),
        (("--idle-after", "5s"), "--idle-after 5s is no time of 10 s or more: say for example 45m"),
        (("--purge",), "--purge goes with --uninstall"),
        (("--url-file",), "option --url-file needs a value"),
    ],
)
def test_wrong_options(clean: roots.Machine, arguments: tuple[str, ...], told: str) -> None:
    """An option that cannot be meant is refused at once."""
    assert _refused(clean, SCRIPT, *arguments) == told


def test_an_unknown_option(clean: roots.Machine) -> None:
    """An option that it does not know shows how it is used."""
    done = clean.run(SCRIPT, "--frobnicate", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: ")


def test_nothing_to_remove(clean: roots.Machine) -> None:
    """--uninstall where nothing is installed changes nothing and is no failure."""
    before = _files(clean)
    assert clean.run(SCRIPT, "--uninstall").returncode == 0
    assert _files(clean) == before


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", sorted(roots.DISTRIBUTIONS))
def test_every_distribution(name: str) -> None:
    """With the distribution's own Docker and Python: a refused set-up and a killed run leave no obstacle, then it runs, twice, and goes."""
    port = free_port()
    choices: tuple[str, ...] = ("--port", str(port), "--relay-port", str(free_port()), "--public-host", "127.0.0.1")
    choices += ("--credentials", "/srv/diambra-login")
    with roots.machine(roots.base(name), binds={"/mnt": str(ROOT), **roots.pip_cache()}) as machine:
        machine.boot()
        machine.write("/etc/docker/daemon.json", QUIET_DOCKER)
        machine.write("/srv/diambra-login", "a login", mode=0o600)
        environ = roots.pip_environment()

        refused = machine.run(
            SCRIPT,
            "--",
            *choices,
            "--min-ready",
            "9",
            "--max-engines",
            "2",
            check=False,
            timeout_s=600,
            environ=environ,
        )
        assert refused.returncode == 1, refused.stderr
        assert "min_ready (9) is above max_engines (2)" in refused.stderr.splitlines()[-1]
        assert not [one for one in _files(machine) if "cornerman" in one]
        assert machine.run("id", "cornerman", check=False).returncode != 0

        upper = machine.folder / "upper"
        begun = lambda: list(upper.glob("opt/cornerman/releases/*/bin/pip"))  # noqa: E731
        _kill_in_the_middle(machine, (SCRIPT, "--", *choices), environ, when=begun)
        assert [one for one in _files(machine) if one.startswith("opt/cornerman/releases/")]
        set_up = upper / "etc/cornerman/cornerman.toml"
        _kill_in_the_middle(machine, (SCRIPT, "--", *choices), environ, when=set_up.exists)

        # Set up by the run before, whose connection string nobody has seen.
        done = machine.run(SCRIPT, "--", *choices, timeout_s=600, environ=environ)
        assert re.fullmatch(rf"cornerman://\S+@127\.0\.0\.1:{port}\?ca=sha256:[0-9a-f]{{64}}\n", done.stdout)
        assert len(machine.run("ls", "/opt/cornerman/releases").stdout.split()) == 1
        about = machine.run("stat", "-c", "%a %U %G", "/etc/cornerman/diambra-credentials").stdout.strip()
        assert about == "640 root cornerman"
        assert machine.run("docker", "info", "--format", "{{.ServerVersion}}").stdout.strip()
        for unit in SERVICES:
            assert machine.run("systemctl", "is-active", unit).stdout.strip() == "active"
        assert "default" in machine.run("cornerman", "status").stdout

        machine.run("cornerman", "backup", "/var/tmp/kept.tgz")
        machine.run("systemctl", "stop", *SERVICES)
        machine.run("cornerman", "restore", "--replace", "/var/tmp/kept.tgz")
        machine.run("systemctl", "start", *SERVICES)
        assert "default" in machine.run("cornerman", "status").stdout

        # As of a run that was killed when init had not printed yet.
        machine.write("/etc/cornerman/notebook.url", "", mode=0o600)
        again = machine.run(SCRIPT, "--idle-after", "2h", "--", "--min-ready=3", timeout_s=600, environ=environ)
        assert re.fullmatch(rf"cornerman://\S+@127\.0\.0\.1:{port}\?ca=sha256:[0-9a-f]{{64}}\n", again.stdout)
        assert "what follows -- changes nothing" in again.stderr
        config = machine.run("cat", "/etc/cornerman/cornerman.toml").stdout
        assert re.findall(r"(?m)^#?(after|min_ready) = (.*)$", config) == [("after", '"2h"'), ("min_ready", "1")]
        assert machine.run("systemctl", "is-active", "cornerman.service").stdout.strip() == "active"

        machine.run(SCRIPT, "--uninstall", "--purge", timeout_s=120)
        assert not [one for one in _files(machine) if "cornerman" in one]


def _kill_in_the_middle(
    machine: roots.Machine, command: tuple[str, ...], environ: dict[str, str], *, when: Callable[[], object]
) -> None:
    """kill -9 of a run of the installer as soon as it is so far."""
    running = subprocess.Popen(
        ["nsenter", "-t", str(machine.init), "-m", "-p", "-u", "-i", "-C", "-r", "-w", "env", "-i"]
        + [
            f"{key}={value}"
            for key, value in {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **environ}.items()
        ]
        + list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(when, 300, what="the moment to kill it")
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait(30)
