"""What every other test of a daemon stands on: an installation of its own, and nothing of it left."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.daemon import Daemon, engine_containers
from tests.support.waiting import wait_until


def test_practice_engines_end_with_their_daemon(new_daemon: Callable[..., Daemon]) -> None:
    """A daemon that is told to stop ends with code 0 and takes its API and its practice engines along."""
    daemon = new_daemon()
    daemon.init("--runtime", "process")
    daemon.start()
    family = daemon.family()
    assert {daemon.pid} < family.keys(), "the API and an engine run beside the pool"
    assert daemon.stop() == 0
    assert not daemon.family()


def test_games_in_docker_outlive_their_daemon(
    new_daemon: Callable[..., Daemon], docker_host: str, practice_image: str
) -> None:
    """A daemon that stops leaves its containers running, and finds them again when it starts."""
    daemon = new_daemon(env={"DOCKER_HOST": docker_host})
    daemon.init("--runtime", "docker", "--image", practice_image)
    daemon.start()
    wait_until(lambda: engine_containers(docker_host, daemon.instance), 30, what="the first engine")
    daemon.stop()
    before = engine_containers(docker_host, daemon.instance)
    assert before
    daemon.start()
    assert set(before) <= set(engine_containers(docker_host, daemon.instance))
