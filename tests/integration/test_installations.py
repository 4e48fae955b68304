"""What every other test of a daemon stands on: an installation of its own, and nothing of it left."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.docker_engine import engines_of
from tests.support.real_daemon import RealDaemon
from tests.support.waiting import wait_until


def test_practice_engines_end_with_their_daemon(new_daemon: Callable[..., RealDaemon]) -> None:
    """A daemon that is told to stop ends with code 0 and takes its API and its practice engines along."""
    daemon = new_daemon("--runtime", "process")
    daemon.start()
    wait_until(lambda: len(daemon.family()) >= 3, 30, what="the API and an engine beside the pool")
    assert daemon.stop() == 0
    wait_until(lambda: not daemon.family(), 5, what="the end of all its processes")


def test_games_in_docker_outlive_their_daemon(
    new_daemon: Callable[..., RealDaemon], docker_host: str, practice_image: str
) -> None:
    """A daemon that stops leaves its containers running, and finds them again when it starts."""
    daemon = new_daemon("--runtime", "docker", "--image", practice_image, environ={"DOCKER_HOST": docker_host})
    daemon.start()
    wait_until(lambda: engines_of(docker_host, daemon.instance), 30, what="the first engine")
    assert daemon.stop() == 0
    before = engines_of(docker_host, daemon.instance)
    assert before
    daemon.start()
    assert set(before) <= set(engines_of(docker_host, daemon.instance))
