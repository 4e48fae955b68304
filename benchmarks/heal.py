"""How long a lease is without an engine that was killed: until the slot has a warm spare and that one answers a call."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import docker
import grpc

from benchmarks._host import Caller, as_json, percentile, pool_counts
from benchmarks._report import print_table, write_results
from tests.support.real_daemon import set_up

IMAGE = "cornerman/practice-engine:latest"
ENGINES, SPARES, KILLS = 4, 2, 20


def main() -> None:
    """Measure, print, write."""
    if "DOCKER_HOST" not in os.environ and not Path("/var/run/docker.sock").exists():
        raise SystemExit("This needs a Docker Engine: set DOCKER_HOST, or run it by 'make bench'.")
    api = docker.from_env().api
    with TemporaryDirectory(prefix="cornerman-bench-") as folder:
        daemon = set_up(
            Path(folder),
            "--image",
            IMAGE,
            "--min-ready",
            str(SPARES),
            "--max-engines",
            str(ENGINES + 2 * SPARES),
            settings={"args": '["--fps", "unlimited"]', "pull": "false", "log_level": '"warning"'},
        )
        try:
            daemon.start()
            took = heal_times(api, Caller(daemon.admin_url))
        finally:
            daemon.close()
            for container in api.containers(all=True, filters={"label": f"cornerman.instance={daemon.instance}"}):
                api.remove_container(container["Id"], force=True)
    rows = [("killed to answering", statistics.median(took), percentile(took, 0.95), max(took))]
    print_table(f"{KILLS} engines killed, seconds", ("", "median", "p95", "slowest"), rows)
    write_results("heal", {"heal.seconds_p50": rows[0][1], "heal.seconds_p95": rows[0][2]})


def heal_times(api: docker.APIClient, caller: Caller) -> list[float]:
    """Seconds from each SIGKILL until the slot's next engine answers."""
    lease = as_json(caller.call("POST", "/v1/leases", {"envs": ENGINES, "wait": True, "ttl_s": 600.0}))
    while lease["state"] == "pending":
        lease = as_json(caller.call("GET", f"/v1/leases/{lease['id']}?wait_s=20&after_version={lease['version']}"))
    took = []
    for number in range(KILLS):
        while pool_counts(caller)["ready"] < SPARES:
            time.sleep(0.05)
        rank = number % ENGINES
        env = as_json(caller.call("GET", f"/v1/leases/{lease['id']}"))["envs"][rank]
        container = as_json(caller.call("GET", f"/v1/engines/{env['engine_id']}"))["container"]
        api.kill(container, "SIGKILL")
        began = time.perf_counter()
        while True:
            assert time.perf_counter() - began < 30, "the slot was not filled"
            now = as_json(caller.call("GET", f"/v1/leases/{lease['id']}"))["envs"][rank]
            if now["generation"] > env["generation"] and now["address"] and _answers(now["address"]):
                break
            time.sleep(0.01)
        took.append(time.perf_counter() - began)
    caller.call("DELETE", f"/v1/leases/{lease['id']}")
    return took


def _answers(address: str) -> bool:
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=0.5)
        except grpc.FutureTimeoutError:
            return False
    return True


if __name__ == "__main__":
    main()
