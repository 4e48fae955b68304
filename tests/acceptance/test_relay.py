"""A real daemon's relay in front of practice engines: what a lease's holder, and whoever runs the host, can rely on."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from diambra.engine import interface_pb2 as pb
from PIL import Image

from client_sdk import models
from client_sdk._api import Api
from client_sdk.models import EnvState, LeaseRequest, LeaseState
from client_sdk.wire import Bye, Kind, Method, Status
from orchestrator.exits import Exit
from practice_engine import wire as practice_wire
from tests.support import processes
from tests.support.ports import own_address
from tests.support.real_daemon import CORNERMAN, RealDaemon, cornerman, set_up
from tests.support.relay import Client, looped, real_client
from tests.support.waiting import wait_until

PRACTICE = ("--runtime", "process", "--max-engines", "4", "--min-ready", "2")
UNLIMITED = {"CORNERMAN_PRACTICE_FPS": "unlimited"}
INIT = pb.EnvSettings(
    game_id="doapp", frame_shape=pb.FrameShape(h=128, w=128, c=1), step_ratio=6, n_players=1
).SerializeToString()
RESET = pb.EnvSettings.EpisodeSettings(random_seed=7, difficulty=3, continue_game=-1000).SerializeToString()


def _action(number: int) -> bytes:
    action = pb.Actions.Action(move=number % 9, attack=number % 8)
    return bytes(pb.Actions(actions=[action]).SerializeToString())


def _steps_run(reply: bytes) -> int:
    """The engine's own count of the steps it has run."""
    message = pb.StepResetResponse.FromString(reply)
    category = message.observation.ram_states_categories[pb.RamStatesCategories.Value("internal")]
    return int(category.ram_states[practice_wire.STEPS_RUN])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    """A daemon with practice engines for the tests of this module that do not end it."""
    daemon = set_up(tmp_path_factory.mktemp("host"), *PRACTICE, environ=UNLIMITED)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.close()
        processes.kill(daemon.family())


@pytest.fixture
def own(state_dir: Path) -> Iterator[RealDaemon]:
    """A host of a test's own, set up and not started."""
    daemon = set_up(state_dir, *PRACTICE, environ=UNLIMITED)
    yield daemon
    daemon.close()
    processes.kill(daemon.family())


@contextlib.contextmanager
def leased(daemon: RealDaemon, envs: int = 1) -> Iterator[tuple[Api, models.Lease]]:
    """An active lease; released at the end."""
    with daemon.session(daemon.url) as session:
        api = Api(session)
        lease = api.create(LeaseRequest(envs=envs, wait=True), key=os.urandom(8).hex())
        while lease.state is LeaseState.PENDING:
            lease = api.await_change(lease.id, after_version=lease.version, wait_s=5)
        assert lease.state is LeaseState.ACTIVE, lease.ended_because
        try:
            yield api, lease
        finally:
            with contextlib.suppress(Exception):
                api.release(lease.id)


async def _begin(client: Client, *, lane: int = 0, generation: int = 1, seq: int = 1) -> int:
    """EnvInit and Reset; the next number."""
    await client.call(seq, Method.ENV_INIT, lane=lane, generation=generation, body=INIT)
    await client.answer()
    await client.call(seq + 1, Method.RESET, lane=lane, generation=generation, body=RESET)
    await client.answer()
    return seq + 2


def _pid_of(daemon: RealDaemon, lease: models.Lease, rank: int = 0) -> int:
    """The process of a lease's engine."""
    port = str(lease.envs[rank].address).rpartition(":")[2]
    (pid,) = (pid for pid, line in daemon.family().items() if f"--port {port}" in line)
    return pid


# ---------------------------------------------------------------- playing


def test_a_game_through_the_relay_is_the_game(running: RealDaemon) -> None:
    """The replies through the relay are, bit by bit, those of the engine itself, asked directly with the same seed."""

    @looped
    async def play() -> None:
        async with real_client(lease) as client:
            await client.hello()
            seq = await _begin(client)
            for number in range(40):
                await client.call(seq + number, body=_action(number))
                through.append((await client.answer())[1])

    through: list[bytes] = []
    with leased(running) as (_, lease):
        play()
    direct: list[bytes] = []
    with leased(running) as (_, lease), grpc.insecure_channel(str(lease.envs[0].address)) as channel:
        for method, request in ((Method.ENV_INIT, INIT), (Method.RESET, RESET)):
            channel.unary_unary(method.path)(request, timeout=20)
        direct += [channel.unary_unary(Method.STEP.path)(_action(number), timeout=20) for number in range(40)]
    assert through == direct
    assert _steps_run(through[-1]) == 40


def test_its_certificate_is_the_apis(running: RealDaemon) -> None:
    """The relay proves itself by the CA that the connection string names."""

    @looped
    async def play() -> None:
        async with real_client(lease, ca=running.config.state_dir / "tls/ca.pem") as client:
            await client.hello()

    with leased(running) as (_, lease):
        play()


def test_report_30_a_hung_engine_is_replaced_within_its_deadline_and_two_seconds(running: RealDaemon) -> None:
    """Report 30: a stopped engine ends its step with DEADLINE_EXCEEDED, and its rank has a fresh engine moments later."""
    deadline_s = 1.0

    @looped
    async def play() -> None:
        async with real_client(lease) as client:
            await client.hello(step_s=deadline_s)
            seq = await _begin(client)
            os.kill(_pid_of(running, lease), signal.SIGSTOP)
            began = time.monotonic()
            await client.call(seq, body=_action(1))
            number, status, text = await client.fault()
            assert (number, status) == (seq, Status.DEADLINE_EXCEEDED)
            assert "rank 0" in text
            while not (told := await client.read(Kind.LANE)).code:
                pass
            assert time.monotonic() - began < deadline_s + 2
            assert told.generation == 2
            await _begin(client, generation=2, seq=seq + 1)

    with leased(running) as (api, lease):
        play()
        again = api.renew(lease.id, timeout_s=10)
        assert (again.envs[0].generation, again.envs[0].state) == (2, EnvState.READY)


def test_a_killed_engine_ends_its_call_with_rank_engine_and_why(running: RealDaemon) -> None:
    """A step whose engine dies under it says which rank, which engine and what the pool found out; the others go on."""

    @looped
    async def play() -> None:
        async with real_client(lease) as client:
            await client.hello()
            seq = await _begin(client, lane=0)
            await _begin(client, lane=1)
            os.kill(_pid_of(running, lease, 0), signal.SIGSTOP)
            await client.call(seq, body=_action(1), lane=0)
            await asyncio.sleep(0.2)
            os.kill(_pid_of(running, lease, 0), signal.SIGKILL)
            await client.call(seq, body=_action(1), lane=1)
            seen = {}
            while Kind.FAULT not in seen or Kind.ANSWER not in seen:
                found = await client.read()
                seen[found.kind] = found
            assert seen[Kind.ANSWER].lane == 1
            fault = seen[Kind.FAULT]
            assert (fault.lane, fault.code) == (0, Status.UNAVAILABLE)
            for word in ("rank 0", str(lease.envs[0].engine_id), "kill"):
                assert word in fault.text()

    with leased(running, 2) as (_, lease):
        play()


def test_a_broken_line_loses_no_step_and_runs_none_twice(running: RealDaemon) -> None:
    """Cut again and again in the middle of steps, a client that sends its open call again has each step exactly once."""

    @looped
    async def play() -> None:
        epoch, seq, counted = None, 1, 0
        while counted < 60:
            async with real_client(lease) as client:
                welcome = await client.hello(epoch=epoch)
                if epoch is None:
                    seq = await _begin(client)
                epoch = welcome.epoch
                for _ in range(6):
                    await client.call(seq, body=_action(seq))
                    if seq % 6 == 2:  # the line breaks with this call under way
                        client.socket.transport.abort()
                        break
                    number, reply = await client.answer()
                    counted += 1
                    assert (number, _steps_run(reply)) == (seq, counted)
                    seq += 1
                else:
                    continue
            async with real_client(lease) as client:
                assert (await client.hello(epoch=epoch)).resumed
                await client.call(seq, body=_action(seq))
                number, reply = await client.answer()
                counted += 1
                assert (number, _steps_run(reply)) == (seq, counted)
                seq += 1

    with leased(running) as (_, lease):
        play()


def test_the_end_of_a_lease_ends_its_connection(running: RealDaemon) -> None:
    """A released lease's client hears that it has ended, and by whom."""

    @looped
    async def play() -> None:
        async with real_client(lease) as client:
            await client.hello()
            await _begin(client)
            await asyncio.to_thread(api.release, lease.id)
            bye = await client.read(Kind.BYE)
            assert bye.code == Bye.LEASE_ENDED
            assert "its holder released it" in bye.text()

    with leased(running) as (api, lease):
        play()


# ---------------------------------------------------------------- looking


def test_frames_and_figures_are_shown(running: RealDaemon) -> None:
    """The last frame of an engine is a picture of the game, and status tells steps and ratio of its lane."""

    @looped
    async def play() -> None:
        async with real_client(lease) as client:
            await client.hello()
            seq = await _begin(client)
            for number in range(20):
                await client.call(seq + number, body=_action(number))
                await client.answer()

    with leased(running) as (_, lease), running.session(running.url) as session:
        play()
        found = _get(running, f"/v1/engines/{lease.envs[0].engine_id}/frame.webp", running.url)
        image = Image.open(io.BytesIO(found))
        assert image.size == (128, 128)
        assert len(set(image.convert("L").tobytes())) > 10
        api = Api(session)

        def carried() -> models.LaneStats | None:
            (engine,) = (one for one in api.engines() if one.lease_id == lease.id)
            return engine.lane if engine.lane and engine.lane.steps == 20 else None

        lane = wait_until(carried, 15)
        assert lane is not None
        assert lane.ratio is not None
        assert lane.ratio > 5
        status = running.run("status", "--dir", str(running.folder)).stdout
        assert "STEPS/S" in status
        metrics = _get(running, "/metrics", running.admin_url).decode()
        assert 'cornerman_relay_steps_total{pool="default"}' in metrics


def _get(daemon: RealDaemon, path: str, url: str) -> bytes:
    from client_sdk._url import parse

    token = parse(url).token.get_secret_value()
    connection = http.client.HTTPSConnection(
        "127.0.0.1", daemon.port, timeout=10, context=ssl._create_unverified_context()
    )
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        return body


# ---------------------------------------------------------------- the process


def test_a_scan_of_the_host_shows_two_open_ports(state_dir: Path) -> None:
    """With default settings the API and the relay listen to others; engines listen to this machine alone."""
    daemon = set_up(state_dir, *PRACTICE, settings={"bind": '"0.0.0.0"'}, environ=UNLIMITED)
    try:
        daemon.start()
        with leased(daemon, 2):
            listening = {
                (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
                for pid in daemon.family()
                for connection in psutil.Process(pid).net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            }
            config = daemon.config
            others = {(ip, port) for ip, port in listening if ip != "127.0.0.1"}
            assert others == {("0.0.0.0", config.server.port), ("0.0.0.0", config.relay.port)}
            assert len(listening - others) >= 2
            outside = own_address()
            ports = range(config.first_port, config.last_port + 1)
            assert [port for port in ports if _is_open(outside, port)] == []
    finally:
        daemon.close()


def _is_open(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


def test_plain_http_on_the_tls_port_gets_one_sentence(running: RealDaemon) -> None:
    """Who forgot the TLS is told so, and not just cut off."""
    connection = http.client.HTTPConnection("127.0.0.1", running.config.relay.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/v1/leases/l-1")
        response = connection.getresponse()
        assert (response.status, response.read()) == (
            400,
            b"This port speaks TLS only: reach it by wss:// (or https://).\n",
        )


def test_a_stop_answers_what_is_under_way(own: RealDaemon) -> None:
    """SIGTERM to the daemon in the middle of a step: the step is answered, the client hears STOPPING, and nothing is left."""

    @looped
    async def play() -> None:
        async with real_client(lease) as client:
            await client.hello()
            seq = await _begin(client)
            pid = _pid_of(own, lease)
            os.kill(pid, signal.SIGSTOP)
            await client.call(seq, body=_action(1))
            await asyncio.sleep(0.2)
            assert own.process is not None
            own.process.terminate()
            await asyncio.sleep(0.5)
            os.kill(pid, signal.SIGCONT)
            number, reply = await client.answer()
            assert (number, _steps_run(reply)) == (seq, 1)
            assert (await client.read(Kind.BYE)).code == Bye.STOPPING

    own.start()
    with leased(own) as (_, lease):
        play()
        assert own.process is not None
        assert own.process.wait(30) == Exit.STOPPED
    wait_until(lambda: not own.family(), 10)


def test_a_renewed_certificate_is_used_without_a_restart(own: RealDaemon) -> None:
    """After a renewal new connections see the new certificate, and a connection that is open goes on."""
    own.start()
    before = _certificate(own)

    @looped
    async def play() -> None:
        async with real_client(lease) as client:
            await client.hello()
            seq = await _begin(client)
            done = await asyncio.to_thread(own.run, "init", "--renew-certificate", "--dir", str(own.folder))
            assert done.returncode == 0, done.stderr
            await asyncio.to_thread(wait_until, lambda: _certificate(own) != before, 20)
            await client.call(seq, body=_action(1))
            await client.answer()

    with leased(own) as (_, lease):
        play()


def _certificate(daemon: RealDaemon) -> str:
    return ssl.get_server_certificate(("127.0.0.1", daemon.config.relay.port))


@contextlib.contextmanager
def _relay_service(daemon: RealDaemon) -> Iterator[subprocess.Popen[bytes]]:
    """``cornerman relay`` as a service of its own, up when this begins."""
    address = daemon.folder / "relay-notify"
    address.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(address))
        supervisor.settimeout(30)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("CORNERMAN_", "NOTIFY_"))}
        with (daemon.folder / "relay.log").open("ab") as log:
            process = subprocess.Popen(
                [CORNERMAN, "relay", "--dir", daemon.folder],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**clean, **daemon.environ, "NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "2000000"},
            )
        try:
            said: set[bytes] = set()
            while not {b"READY=1", b"WATCHDOG=1"} <= said:
                said.add(supervisor.recv(4096))
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(30)


def test_daemon_and_relay_as_two_services_do_not_need_each_other(own: RealDaemon) -> None:
    """A crash of the API disturbs no step of a running game, and a crash of the relay loses no lease and not the daemon."""
    own.start("--no-relay")
    assert own.relay_pids() == set()
    with _relay_service(own) as relay, leased(own) as (api, lease):

        @looped
        async def play() -> None:
            async with real_client(lease) as client:
                await client.hello()
                seq = await _begin(client)
                (api_pid,) = own.api_pids()
                os.kill(api_pid, signal.SIGKILL)
                for number in range(10):
                    await client.call(seq + number, body=_action(number))
                    assert _steps_run((await client.answer())[1]) == number + 1

        play()
        relay.kill()
        relay.wait(10)
        wait_until(lambda: _alive(api, lease), 20)
    assert own.process is not None
    assert own.process.poll() is None


def _alive(api: Api, lease: models.Lease) -> bool:
    with contextlib.suppress(Exception):
        return api.renew(lease.id, timeout_s=5).state is LeaseState.ACTIVE
    return False


def test_the_relays_command_says_what_is_wrong(own: RealDaemon, tmp_path: Path) -> None:
    """A taken port and a missing configuration are one sentence each, with the exit code that says whether to try again."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", own.config.relay.port))
        other.listen()
        done = own.run("relay", "--dir", str(own.folder))
        assert done.returncode == Exit.PORT_TAKEN
        assert f"Port {own.config.relay.port} on 127.0.0.1 is taken" in _said(done)
        done = own.run("serve", "--dir", str(own.folder))
        assert done.returncode == Exit.PORT_TAKEN
        assert "relay.port" in _said(done)
    done = cornerman("relay", "--dir", str(tmp_path / "none"))
    assert done.returncode == Exit.CONFIG
    assert "There is no configuration" in _said(done)


def _said(done: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    (sentence,) = (line["event"] for line in lines if line["level"] == "error")
    return str(sentence)


def test_a_state_that_cannot_be_opened_yet_is_tried_again(tmp_path: Path) -> None:
    """A full disk, or a daemon that still moves the database to a newer schema, does not end the relay for good: systemd goes on trying."""
    done = cornerman("init", "--dir", str(tmp_path / "d"), "--runtime", "process")
    assert done.returncode == 0, done.stderr
    (tmp_path / "d" / "state" / "cornerman.db").write_text("what is this?" * 1000)
    done = cornerman("relay", "--dir", str(tmp_path / "d"))
    assert done.returncode == Exit.STATE
    assert "cannot be opened" in done.stderr
