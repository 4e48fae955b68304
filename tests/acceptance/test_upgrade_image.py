"""``cornerman upgrade-image`` on a real Docker Engine: a tag moves on, and a pool follows without running dry."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import docker
import pytest

from client_sdk import Cornerman
from client_sdk.models import EngineState, Pool
from tests.support.real_daemon import RealDaemon
from tests.support.waiting import wait_until

TAG = "cornerman/upgrade-test:latest"


@pytest.fixture
def build(docker_client: docker.DockerClient, practice_image: str) -> Iterator[Callable[[str], str]]:
    """Makes TAG another image, by a label, and returns its id."""
    made: list[str] = []

    def build(label: str) -> str:
        text = f"FROM {practice_image}\nLABEL upgrade={label}\n"
        image, _ = docker_client.images.build(fileobj=io.BytesIO(text.encode()), tag=TAG, rm=True)
        made.append(str(image.id))
        return str(image.id)

    yield build
    for image in {TAG, *made}:
        with suppress(docker.errors.APIError):
            docker_client.images.remove(image, force=True)


def _pool(daemon: RealDaemon) -> Pool:
    with daemon.admin() as (admin, _):
        return admin.pools()[0]


def test_a_pool_follows_its_tag_with_an_engine_ready_all_the_time(
    new_daemon: Callable[..., RealDaemon], build: Callable[[str], str], docker_host: str
) -> None:
    """Report 21: idle engines are renewed one by one, a leased one plays on with the image it has."""
    old = build("old")
    daemon = new_daemon(
        *("--image", TAG, "--min-ready", "1", "--max-engines", "4"), environ={"DOCKER_HOST": docker_host}
    )
    daemon.start()
    wait_until(lambda: _pool(daemon).counts[EngineState.READY] >= 1, 60)
    with Cornerman(daemon.url).lease(envs=1) as lease:
        wait_until(lambda: _pool(daemon).counts[EngineState.READY] >= 1, 60)
        new = build("new")
        fewest, done = [99], threading.Event()

        def watch() -> None:
            while not done.is_set():
                fewest.append(_pool(daemon).counts[EngineState.READY])

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            moved = daemon.run("upgrade-image", "--dir", str(daemon.folder))
        finally:
            done.set()
            watcher.join()
        assert (moved.returncode, moved.stderr) == (0, "")
        assert new in moved.stdout.splitlines()[-1]
        assert min(fewest) >= 1
        with daemon.admin() as (_, api):
            images = {
                engine.image: engine.lease_id for engine in api.engines() if engine.state is not EngineState.RETIRING
            }
        assert images == {old: lease.id, new: None}
        lease.check()
        pool = _pool(daemon)
        assert (pool.pinned, pool.upgrading, pool.outdated, pool.outdated_leased) == (new, False, 0, 1)
