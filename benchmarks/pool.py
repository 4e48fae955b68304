"""How fast a pool of 16 practice containers fills, beside the Docker SDK alone doing the same with the same bound on starts."""

from __future__ import annotations

import os
import statistics
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import docker
import grpc

from benchmarks._host import Caller, pool_counts
from benchmarks._report import print_table, write_results
from orchestrator.config import DockerOptions
from orchestrator.interfaces import EngineSpec
from orchestrator.runtimes.docker_spec import create_arguments
from tests.support.ports import free_port_range
from tests.support.real_daemon import set_up

IMAGE = "cornerman/practice-engine:latest"
ENGINES, AT_ONCE, RUNS = 16, 4, 3
OPTIONS = DockerOptions(args=("--fps", "unlimited"), pull=False)


def bare(api: docker.APIClient, network: str) -> float:
    """Seconds until 16 containers answer: create, start, and wait for a gRPC channel, four at a time."""
    first, run, made = free_port_range(ENGINES), uuid.uuid4().hex[:8], list[str]()

    def start(number: int) -> None:
        spec = EngineSpec(
            engine_id=f"b-{number}",
            name=f"cornerman-bench-{run}-{number}",
            instance=f"bench-{run}",
            pool="bench",
            image=IMAGE,
            host="127.0.0.1",
            port=first + number,
            options=OPTIONS,
        )
        handle = api.create_container(**create_arguments(api, spec, network))["Id"]
        made.append(handle)
        api.start(handle)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:  # a fresh channel each time: a refused one rests for a second
            with grpc.insecure_channel(
                f"127.0.0.1:{first + number}", options=[("grpc.use_local_subchannel_pool", 1)]
            ) as channel:
                try:
                    grpc.channel_ready_future(channel).result(timeout=0.3)
                    return
                except grpc.FutureTimeoutError:
                    continue
        raise SystemExit("A container did not come up.")

    began = time.perf_counter()
    try:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(start, range(ENGINES)))
        return time.perf_counter() - began
    finally:
        for handle in made:
            api.remove_container(handle, force=True)


def pooled() -> float:
    """Seconds from raising min_ready to 16 in a running daemon until 16 are ready."""
    with TemporaryDirectory(prefix="cornerman-bench-") as folder:
        daemon = set_up(
            Path(folder),
            "--image",
            IMAGE,
            "--min-ready",
            "0",
            "--max-engines",
            str(ENGINES),
            settings={
                "max_starting": str(AT_ONCE),
                "args": '["--fps", "unlimited"]',
                "pull": "false",
                "log_level": '"warning"',
            },
        )
        try:
            daemon.start()
            caller = Caller(daemon.admin_url)
            time.sleep(2.0)  # its image is resolved, its network made
            began = time.perf_counter()
            status, body = caller.call("PATCH", "/v1/pools/default", {"min_ready": ENGINES})
            assert status == 200, body
            while pool_counts(caller)["ready"] < ENGINES:
                assert time.perf_counter() - began < 120, "the pool did not fill"
                time.sleep(0.05)
            took = time.perf_counter() - began
            caller.call("PATCH", "/v1/pools/default", {"min_ready": 0})
            while sum(count for state, count in pool_counts(caller).items() if state != "gone"):
                time.sleep(0.1)
            caller.close()
            return took
        finally:
            daemon.close()


def main() -> None:
    """Measure in turn, print, write."""
    if "DOCKER_HOST" not in os.environ and not Path("/var/run/docker.sock").exists():
        raise SystemExit("This needs a Docker Engine: set DOCKER_HOST, or run it by 'make bench'.")
    api = docker.from_env().api
    network = api.create_network(
        f"cornerman-bench-{uuid.uuid4().hex[:8]}", options={"com.docker.network.bridge.enable_icc": "false"}
    )["Id"]
    try:
        times = [(bare(api, network), pooled()) for _ in range(RUNS)]
    finally:
        api.remove_network(network)
    alone, ours = (statistics.median(side) for side in zip(*times, strict=True))
    print_table(
        f"{ENGINES} containers, {AT_ONCE} at a time, seconds",
        ("", *(f"run {number + 1}" for number in range(RUNS)), "median"),
        [("Docker SDK alone", *(one[0] for one in times), alone), ("pool", *(one[1] for one in times), ours)],
    )
    ratio = statistics.median(ours / alone for alone, ours in times)
    print_table("Ratios", ("figure", "value"), [("pool.fill_ratio", ratio)])
    write_results("pool", {"pool.fill_ratio": ratio})


if __name__ == "__main__":
    main()
