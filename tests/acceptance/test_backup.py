"""Backup and restore as an operator does them: beside a running daemon, and on a host that lost everything."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from client_sdk import Cornerman
from tests.support.real_daemon import RealDaemon


def test_a_host_that_lost_its_state_comes_back(new_daemon: Callable[..., RealDaemon]) -> None:
    """A backup made while a lease runs; after the loss of everything, restore and start, and the strings that were handed out lease again."""
    daemon = new_daemon("--runtime", "process", "--max-engines", "2", "--min-ready", "1")
    daemon.start()
    file, url = daemon.folder.with_name(f"{daemon.folder.name}.backup"), daemon.url
    try:
        with Cornerman(url).lease(envs=1):
            done = daemon.run("backup", "--dir", str(daemon.folder), str(file))
            assert (done.returncode, "It is a secret." in done.stdout) == (0, True), done.stderr
            running = daemon.run("restore", "--dir", str(daemon.folder), "--replace", str(file))
            assert (running.returncode, "stop it first" in running.stderr) == (1, True)
        assert daemon.stop() == 0
        for path in (daemon.folder / "state", daemon.folder / "cornerman.toml", daemon.folder / "admin.url"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        done = daemon.run("restore", "--dir", str(daemon.folder), str(file))
        assert (done.returncode, done.stderr) == (0, "")
        daemon.start()
        with Cornerman(url).lease(envs=1) as lease:
            assert len(lease.diambra_envs.split()) == 1
        assert daemon.run("status", "--dir", str(daemon.folder)).returncode == 0
    finally:
        file.unlink(missing_ok=True)
