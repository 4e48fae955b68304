"""The practice engine's image in a container locked down as the pool's are."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import docker
import grpc
import pytest
from diambra.engine import interface_pb2 as pb
from diambra.engine import interface_pb2_grpc as rpc

from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., Any]

pytestmark = pytest.mark.docker


@pytest.fixture
def run(docker_client: docker.DockerClient, practice_image: str) -> Iterator[Run]:
    """Starts a container of the image, hardened; removed after the test."""
    with ExitStack() as undo:

        def start(*arguments: str, memory: str = "512m", environ: dict[str, str] | None = None) -> Any:
            container = docker_client.containers.run(
                practice_image,
                list(arguments),
                detach=True,
                tty=True,
                stdin_open=True,
                read_only=True,
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                tmpfs={"/tmp": "size=16m"},
                pids_limit=64,
                labels={"cornerman.test": "practice-image"},
                user="12345:12345",
                ports={"50051/tcp": ("127.0.0.1", 0)},
                mem_limit=memory,
                memswap_limit=memory,
                environment=environ or {},
            )
            undo.callback(container.remove, force=True)
            return container

        yield start


def log_of(container: Any) -> str:
    """What the container has written."""
    return str(container.logs().decode())


def address_of(container: Any) -> str:
    """Where the container's port is, once the engine listens."""
    wait_until(lambda: "Server listening on 0.0.0.0:50051" in log_of(container), 60, what="the engine listening")
    container.reload()
    return "127.0.0.1:" + str(container.ports["50051/tcp"][0]["HostPort"])


def play(address: str, steps: int) -> int:
    """Plays so many Steps and gives back the size of the last frame."""
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(timeout=60)
        stub = rpc.EnvServerStub(channel)
        stub.EnvInit(pb.EnvSettings(game_id="doapp", step_ratio=6, n_players=1), timeout=60)
        answer = stub.Reset(pb.EnvSettings.EpisodeSettings(random_seed=1), timeout=60)
        for _ in range(steps):
            answer = stub.Step(pb.Actions(actions=[pb.Actions.Action(move=5, attack=1)]), timeout=60)
        return len(answer.observation.frame)


def test_plays_as_any_user_without_rights(run: Run) -> None:
    """As an unknown user, without capabilities, on a read-only root, with the official arguments: full frames come out."""
    engine = run("--randomSeed", "3", "--render", "--sound", environ={"CORNERMAN_PRACTICE_FPS": "unlimited"})
    assert play(address_of(engine), 20) == 480 * 512 * 3
    assert log_of(engine).split()[:3] == ["Stored", "credentials", "found."]


def test_stop_has_to_kill(run: Run) -> None:
    """SIGTERM does not end the container, as with the real engine; SIGKILL does, with 137."""
    engine = run()
    address_of(engine)
    engine.kill(signal="SIGTERM")
    assert play(address_of(engine), 1) > 0
    engine.kill(signal="SIGKILL")
    assert engine.wait(timeout=30)["StatusCode"] == 137


def test_asks_for_credentials_on_its_terminal(run: Run) -> None:
    """Without the credentials file the container sits at a prompt with its port closed; it lives."""
    engine = run(environ={"CORNERMAN_PRACTICE_REQUIRE_CREDENTIALS": "1"})
    wait_until(lambda: "retry 1/5" in log_of(engine), 60, what="the prompt")
    engine.reload()
    assert engine.status == "running"
    assert "Server listening" not in log_of(engine)


def test_memory_limit_kills_a_glutton(run: Run) -> None:
    """An engine that swallows memory is killed by its own limit, and Docker says why."""
    engine = run("--eat-memory-after", "0", "--fps", "unlimited", memory="128m")
    with pytest.raises(grpc.RpcError):
        play(address_of(engine), 50)
    assert engine.wait(timeout=60)["StatusCode"] == 137
    engine.reload()
    assert engine.attrs["State"]["OOMKilled"]


def test_an_up_to_date_image_is_left_alone(docker_host: str, docker_client: Any, practice_image: str) -> None:
    """The build script does nothing, fast, when the image was built from these sources; twice at once is fine too."""
    before = docker_client.images.get(practice_image).id
    command = [ROOT / "deploy" / "build-practice-image.sh"]
    said: list[str] = []

    def build() -> None:
        environ = {**os.environ, "DOCKER_HOST": docker_host}
        said.append(subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True).stderr)

    started = time.monotonic()
    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == 2
    assert all("is up to date" in line for line in said)
    assert time.monotonic() - started < 30
    assert docker_client.images.get(practice_image).id == before


def test_no_engine_host_is_said_in_one_sentence(tmp_path: Path) -> None:
    """Without a Docker Engine the build script says so at once, and where it looked."""
    environ = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    ended = subprocess.run(
        [ROOT / "deploy" / "build-practice-image.sh"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert f"no Docker Engine answers at unix://{tmp_path}/none.sock" in ended.stderr
