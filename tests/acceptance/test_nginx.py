"""The tunnel and the API behind nginx, with the configuration that deploy/ has."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_sdk import Cornerman
from tests.support import certificates
from tests.support.left_out import leave_out
from tests.support.play import Game, over_grpc
from tests.support.real_daemon import RealDaemon
from tests.support.waiting import wait_until

# The stock client leaves the file of its games open.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file .*integratedGames:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO.*integratedGames"),
]
ROOT = Path(__file__).resolve().parents[2]
PUBLIC = "127.0.0.2"  # another address of this machine, so that both may use the same ports
READ_TIMEOUT_S = 6


def find_nginx() -> str:
    """Debian's nginx, installed if this is a Debian-like machine and we may."""
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "nginx-light"]):
            subprocess.run(
                command,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                capture_output=True,
                timeout=300,
                check=False,
            )
        found = shutil.which("nginx", path="/usr/sbin")
    if found is None:
        leave_out("there is no nginx: apt-get install nginx-light")
    return found


def render(daemon: RealDaemon, folder: Path) -> str:
    """deploy/nginx.conf for this machine: only addresses, paths and the read timeout are other ones."""
    config = daemon.config
    text = (ROOT / "deploy" / "nginx.conf").read_text()
    changes = {
        "198.51.100.20:8443": f"{PUBLIC}:{config.server.port}",
        "198.51.100.20:8444": f"{PUBLIC}:{config.relay.port}",
        "127.0.0.1:8443": f"127.0.0.1:{config.server.port}",
        "127.0.0.1:8444": f"127.0.0.1:{config.relay.port}",
        "cornerman.example.org;": f"{PUBLIC};",
        "/etc/ssl/certs/cornerman.example.org.pem": str(folder / "server.pem"),
        "/etc/ssl/private/cornerman.example.org.key": str(folder / "server.pem"),
        "/var/lib/cornerman/": f"{config.state_dir}/",
        "proxy_buffering off;\n        proxy_read_timeout 60s;": f"proxy_buffering off;\n        proxy_read_timeout {READ_TIMEOUT_S}s;",
    }
    for old, new in changes.items():
        assert old in text, f"deploy/nginx.conf has no {old}"
        text = text.replace(old, new)
    places = "".join(
        f"    {kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return (
        f"daemon off;\nworker_processes 1;\npid {folder}/nginx.pid;\nerror_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{\n    access_log off;\n{places}{text}\n}}\n"
    )


@pytest.fixture
def behind_nginx(
    new_daemon: Callable[..., RealDaemon], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A daemon on 127.0.0.1 with nginx before it; the connection string that leads through nginx."""
    program = find_nginx()
    daemon = new_daemon(
        *("--runtime", "process", "--min-ready", "2", "--max-engines", "2", "--public-host", PUBLIC),
        environ={"CORNERMAN_PRACTICE_FPS": "unlimited"},
    )
    daemon.start()
    _, ca, _ = certificates.make(tmp_path, name=PUBLIC)
    (tmp_path / "ca.pem").write_text(ca)
    (tmp_path / "nginx.conf").write_text(render(daemon, tmp_path))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    process = subprocess.Popen([program, "-c", tmp_path / "nginx.conf"], stderr=subprocess.PIPE)
    try:
        wait_until(lambda: _listens(daemon.config.relay.port), 20, what="nginx listening")
        yield daemon.url.partition("?")[0]
    finally:
        process.terminate()
        process.communicate(timeout=20)
        print((tmp_path / "error.log").read_text())  # shown when the test fails


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((PUBLIC, port), timeout=1):
        return True
    return False


def test_behind_nginx(behind_nginx: str) -> None:
    """The tunnel works behind nginx, and its line stays open while nobody plays for longer than nginx's read timeout."""
    with Cornerman(behind_nginx, quiet=True).lease(envs=2, via="tunnel") as lease:
        begun = [Game(over_grpc(address)) for address in lease.addresses]
        for game in begun:
            game.make()
            game.reset()
            game.step()
        time.sleep(READ_TIMEOUT_S + 3)
        for game in begun:
            began = time.monotonic()
            game.step()
            assert (game.run, time.monotonic() - began < 1.0) == (2, True)
