"""``cornerman doctor`` on hosts that are well, and on some that are not."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable
from typing import Any

from tests.support.real_daemon import RealDaemon

PRACTICE = ("--runtime", "process", "--max-engines", "4", "--min-ready", "1")
Daemons = Callable[..., RealDaemon]


def _doctor(daemon: RealDaemon) -> tuple[subprocess.CompletedProcess[str], dict[str, list[dict[str, Any]]]]:
    """How it ended, and its findings by what was checked."""
    done = daemon.run("doctor", "--json", "--dir", str(daemon.folder))
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["exit_code"] == done.returncode
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in told["findings"]:
        found.setdefault(finding["check"], []).append(finding)
    return done, found


def _levels(found: list[dict[str, Any]]) -> set[str]:
    return {finding["level"] for finding in found}


def test_a_running_host_is_well(new_daemon: Daemons) -> None:
    """On a daemon that runs doctor finds no fault, meets it at its public_host, and leaves it as it was."""
    daemon = new_daemon(*PRACTICE)
    daemon.start()
    done, found = _doctor(daemon)
    assert done.returncode in (0, 1), done.stdout  # what is warned of is this machine's: its clock, its kernel's ports
    for check in ("config", "state", "service", "pools", "tls", "ports", "engine-ports", "open-ports", "public-host"):
        assert _levels(found[check]) == {"ok"}, found[check]
    assert "docker" not in found  # no pool needs it
    assert daemon.run("status", "--dir", str(daemon.folder)).returncode == 0
    assert daemon.stop() == 0


def test_a_host_that_cannot_start_says_why(new_daemon: Daemons) -> None:
    """A port that somebody else holds is found before the start; exit code 2, and a sentence with its cure for people."""
    daemon = new_daemon(*PRACTICE)
    with socket.create_server(("127.0.0.1", daemon.port)):
        done, found = _doctor(daemon)
        text = daemon.run("doctor", "--dir", str(daemon.folder))
    assert done.returncode == text.returncode == 2
    (fault,) = (finding for finding in found["ports"] if finding["level"] == "fault")
    assert str(daemon.port) in fault["text"]
    assert "-> ss -ltnp" in text.stdout
    assert _doctor(daemon)[1]["ports"][0]["level"] == "ok"


def test_a_wrong_public_host_is_found(new_daemon: Daemons) -> None:
    """Report 40: an address that is none of this machine's, and one that only this machine reaches."""
    daemon = new_daemon(*PRACTICE, "--public-host", "10.255.255.1")
    assert _levels(_doctor(daemon)[1]["public-host"]) == {"fault"}
    text = (daemon.folder / "cornerman.toml").read_text().replace('bind = "127.0.0.1"', 'bind = "0.0.0.0"')
    (daemon.folder / "cornerman.toml").write_text(text.replace("10.255.255.1", "localhost"))
    assert _levels(_doctor(daemon)[1]["public-host"]) == {"warning"}


def test_a_host_without_configuration_is_told_to_make_one(new_daemon: Daemons) -> None:
    """Without a configuration, or with a wrong one, that is the only finding."""
    daemon = new_daemon(*PRACTICE)
    path = daemon.folder / "cornerman.toml"
    path.write_text(path.read_text().replace("[server]", "[server]\nprot = 1", 1))
    done, found = _doctor(daemon)
    assert (done.returncode, list(found)) == (2, ["config"])
    assert "server.prot" in found["config"][0]["text"]
    path.unlink()
    assert "cornerman init" in _doctor(daemon)[1]["config"][0]["text"]


def test_docker_and_the_image_are_looked_at(new_daemon: Daemons, practice_image: str, docker_host: str) -> None:
    """Docker's version and the image's digest are told; an image that is not here, and a Docker that is not there, are found."""
    environ = {"DOCKER_HOST": docker_host}
    daemon = new_daemon("--image", practice_image, environ=environ)
    _, found = _doctor(daemon)
    assert _levels(found["docker"]) == _levels(found["image"]) == {"ok"}
    assert "sha256:" in found["image"][0]["text"]
    assert "credentials" not in found  # a practice engine needs none
    daemon.environ["DOCKER_HOST"] = "unix:///nonexistent/docker.sock"
    done, found = _doctor(daemon)
    assert (done.returncode, _levels(found["docker"])) == (2, {"fault"})
    path = daemon.folder / "cornerman.toml"
    path.write_text(path.read_text().replace(practice_image, "cornerman/no-such-image:1"))
    daemon.environ["DOCKER_HOST"] = docker_host
    assert _doctor(daemon)[1]["image"][0]["cure"] == "docker pull cornerman/no-such-image:1"


def test_a_real_credentials_folder_is_found(new_daemon: Daemons) -> None:
    """Report 33: init refuses a folder at the path of the credentials, and one that Docker made afterwards doctor finds."""
    daemon = new_daemon(*PRACTICE)
    folder = daemon.folder / "credentials"
    folder.mkdir()
    refused = daemon.run("init", "--dir", str(daemon.folder / "other"), "--credentials", str(folder))
    assert (refused.returncode, "is a folder" in refused.stderr) == (1, True)
    path = daemon.folder / "cornerman.toml"
    text = path.read_text().replace('runtime = "process"', 'runtime = "docker"')
    path.write_text(
        text.replace('#credentials_path = "/home/me/.diambra/credentials"', f'credentials_path = "{folder}"')
    )
    _, found = _doctor(daemon)
    assert _levels(found["credentials"]) == {"fault"}
    assert found["credentials"][0]["cure"].startswith("rmdir ")
