"""What a relay does with peers that mean no good, or know no better: one reason, said once, and nobody else disturbed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus

from client_sdk.models import LeaseState
from client_sdk.wire import (
    HEADER,
    MAX_CLIENT_MESSAGE_BYTES,
    MAX_REQUEST_BYTES,
    Bye,
    Kind,
    Method,
    frame,
    text_frame,
)
from orchestrator.relay import connection as connection_module
from orchestrator.relay import door as door_module
from orchestrator.relay import session as session_module
from orchestrator.relay.refusals import Refusals
from tests.support import certificates
from tests.support.relay import LEASE, Client, RelayHouse, looped, relay_house, until


@pytest.fixture
def logged() -> Iterator[list[dict[str, Any]]]:
    """What is logged meanwhile."""
    with structlog.testing.capture_logs() as lines:
        yield lines  # type: ignore[misc]


def _refused(lines: list[dict[str, Any]]) -> list[str]:
    return [line["why"] for line in lines if line["event"] == "refused"]


@contextlib.asynccontextmanager
async def _bystander(house: RelayHouse) -> AsyncIterator[None]:
    """Another lease that steps all the time; none of its steps may take long."""
    worst, stop = 0.0, asyncio.Event()

    async def play(client: Client) -> None:
        nonlocal worst
        loop, seq = asyncio.get_running_loop(), 0
        while not stop.is_set():
            seq, began = seq + 1, loop.time()
            assert (await client.step(seq)).rstrip(b".") == f"l-2/e0.1 STEP {seq}".encode()
            worst = max(worst, loop.time() - began)
            await asyncio.sleep(0.01)

    async with house.client("l-2") as client:
        await client.hello("bystander")
        playing = asyncio.create_task(play(client))
        yield
        stop.set()
        await playing
    assert worst < 8.0


# ---------------------------------------------------------------- at the door


@pytest.mark.parametrize(
    ("lease_id", "how", "status", "words"),
    [
        (LEASE, {"token": "token-of-l-2"}, 401, "not that of this lease"),
        (LEASE, {"token": ""}, 401, "not that of this lease"),
        (LEASE, {"token": "x" * 5000}, 401, "not that of this lease"),
        ("l-9", {}, 404, "no lease l-9"),
        ("l-3", {}, 409, "waits for its engines"),
        ("l-4", {}, 410, "nobody renewed it"),
        (LEASE, {"path": "/"}, 404, "serves the lanes of leases alone"),
        (LEASE, {"path": "/v1/leases/../leases/l-1"}, 401, "not that of this lease"),
    ],
)
def test_a_refusal_is_one_sentence_before_anything_else(
    lease_id: str, how: dict[str, str], status: int, words: str
) -> None:
    """A wrong token, that of another lease, or a lease that cannot be had: plain HTTP with a reason."""

    @looped
    async def refused() -> None:
        async with relay_house(l_1=1, l_2=1, l_3=1, l_4=1) as house:
            house.directory.change("l-3", state=LeaseState.PENDING)
            house.directory.change("l-4", state=LeaseState.EXPIRED, because="nobody renewed it for 60 s")
            with pytest.raises(InvalidStatus) as caught:
                async with house.client(lease_id, **how):
                    raise AssertionError("it was let in")
            body = (caught.value.response.body or b"").decode()
            assert caught.value.response.status_code == status
            assert words in body
            assert body.count("\n") == 1

    refused()


async def _http(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(65536), 15)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return answer


@looped
async def test_a_plain_http_peer_gets_one_sentence() -> None:
    """Who comes with a browser, without the subprotocol, or asks for a sign of life, is answered in plain text."""
    head = b"Host: x\r\nAuthorization: Bearer token-of-l-1\r\n"
    upgrade = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    async with relay_house() as house:
        answer = await _http(house.port, b"GET /v1/leases/l-1 HTTP/1.1\r\n" + head + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 426 ")
        assert b"cornerman.v1" in answer
        answer = await _http(house.port, b"GET /v1/leases/l-1 HTTP/1.1\r\n" + head + upgrade + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 426 ")
        assert b"upgrade Cornerman" in answer
        assert (await _http(house.port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(b"ok\n")
        for nonsense in (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\r\n" * 50):
            assert len(await _http(house.port, nonsense)) < 1000


@looped
async def test_thousands_of_half_open_connections_keep_nobody_out() -> None:
    """Peers that connect and say nothing are let go, the oldest first, and a client still gets in and plays."""
    async with relay_house(l_1=1, l_2=1) as house, _bystander(house):
        open_ones: list[socket.socket] = []
        try:
            for _ in range(20):
                for _ in range(100):
                    peer = socket.socket()
                    peer.setblocking(False)
                    peer.connect_ex(("127.0.0.1", house.port))
                    open_ones.append(peer)
                await asyncio.sleep(0.02)
            async with house.client() as client:
                await client.hello()
                assert await client.step(1) == b"l-1/e0.1 STEP 1"
            assert house.relay._door is not None
            assert house.relay._door.waiting <= door_module.MOST_WAITING_OF_PEER
            handlers = [task for task in asyncio.all_tasks() if "protocol_handler" in repr(task)]
            assert len(handlers) <= door_module.MOST_WAITING_OF_PEER + 10
        finally:
            for peer in open_ones:
                peer.close()


_UNFINISHED = (b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x00" * 100)  # the second begins a ClientHello


def test_thousands_that_never_finish_tls_keep_nobody_out(tmp_path: Path) -> None:
    """Peers that connect and say nothing, too little or nonsense instead of a TLS handshake cost little memory, and leases go on."""

    @looped
    async def flood() -> None:
        certificate, _, _ = certificates.make(tmp_path, name="127.0.0.1")
        async with relay_house(certificate=certificate, l_1=1, l_2=1) as house, _bystander(house):
            door = house.relay._door
            assert door is not None
            open_ones: list[socket.socket] = []
            process, most = psutil.Process(), 0
            had, before = process.num_fds(), process.memory_info().rss
            try:
                for _ in range(20):
                    for _ in range(100):
                        peer = socket.socket()
                        peer.setblocking(False)
                        peer.connect_ex(("127.0.0.1", house.port))
                        open_ones.append(peer)
                    await asyncio.sleep(0.02)
                    for said, peer in zip(itertools.cycle(_UNFINISHED), open_ones[-100:], strict=False):
                        with contextlib.suppress(OSError):
                            peer.send(said)
                    most = max(most, door.waiting)
                async with house.client() as client:
                    await client.hello()
                    assert await client.step(1) == b"l-1/e0.1 STEP 1"
                assert most <= door_module.MOST_WAITING_OF_PEER
                assert process.memory_info().rss - before < 100e6
                await until(lambda: process.num_fds() - had <= len(open_ones) + door_module.MOST_WAITING_OF_PEER)
            finally:
                for peer in open_ones:
                    peer.close()

    flood()


# ---------------------------------------------------------------- inside


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("text", "text message"),
        (b"\x00" * 40, "kind 0 is not allowed"),
        (frame(Kind.CALL, b"", code=Method.STEP, lane=0, generation=1, seq=1)[:-1], "cut short"),
        (HEADER.pack(Kind.CALL, Method.STEP, 0, 1, 1, 100) + b"x", "says it has 100 bytes"),
        (HEADER.pack(Kind.CALL, Method.STEP, 0, 1, 1, MAX_REQUEST_BYTES + 1), "is longer than"),
        (frame(Kind.CALL, b"", code=99, lane=0, generation=1, seq=1), "no method 99"),
        (frame(Kind.CALL, b"", code=Method.STEP, lane=1, generation=1, seq=1), "no lane 1: it has 1"),
        (frame(Kind.CALL, b"", code=Method.STEP, lane=65535, generation=1, seq=1), "no lane 65535"),
        (text_frame(Kind.FAULT, "I am the relay"), "kind 5 is not allowed"),
        (frame(Kind.HELLO, b"{}"), "kind 1 is not allowed"),
    ],
)
def test_what_the_protocol_does_not_allow_ends_the_connection_with_a_reason(
    message: bytes | str, words: str, logged: list[dict[str, Any]]
) -> None:
    """Garbage, oversized frames and lanes out of range get BYE with a sentence, are logged once, and disturb nobody else."""

    @looped
    async def refused() -> None:
        async with relay_house(l_1=1, l_2=1) as house, _bystander(house):
            for _ in range(5):
                async with house.client() as client:
                    await client.hello()
                    await client.send(message)
                    bye = await client.read(Kind.BYE)
                    assert bye.code == Bye.PROTOCOL
                    assert words in bye.text()
                    with pytest.raises(ConnectionClosed):
                        await client.read()

    refused()
    assert len(_refused(logged)) == 1
    assert words in _refused(logged)[0]


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (frame(Kind.CALL, b"", code=Method.STEP, generation=1, seq=1), "kind 3 is not allowed"),
        (frame(Kind.HELLO, b"not json"), "HELLO is not right"),
        (frame(Kind.HELLO, b'{"version": 1, "session": "x"}'), "HELLO is not right"),
        (frame(Kind.HELLO, b'{"version": 2, "session": "session-1"}'), "upgrade Cornerman on the host"),
        (frame(Kind.HELLO, b'{"version": 0, "session": "session-1"}'), "upgrade Cornerman in the notebook"),
        (frame(Kind.HELLO, b'{"version": 1, "session": "session-1"}') * 2, "must be one HELLO"),
        (b"", "must be one HELLO"),
        ("hello", "text message"),
    ],
)
def test_a_wrong_first_message_is_refused_with_a_reason(first: bytes | str, words: str) -> None:
    """A connection begins with one right HELLO."""

    @looped
    async def refused() -> None:
        async with relay_house() as house, house.client() as client:
            await client.send(first)
            bye = await client.read(Kind.BYE)
            assert bye.code == Bye.PROTOCOL
            assert words in bye.text()

    refused()


def test_a_missing_hello_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has a token and says nothing is let go."""
    monkeypatch.setattr(session_module, "HELLO_WITHIN_S", 0.1)

    @looped
    async def refused() -> None:
        async with relay_house() as house, house.client() as client:
            assert "No HELLO came within" in (await client.read(Kind.BYE)).text()

    refused()


@looped
async def test_deadlines_of_a_client_have_bounds() -> None:
    """A client may choose its deadlines within reason; what is not a time at all is refused."""
    async with relay_house() as house:
        async with house.client() as client:
            await client.hello(step_s=1e9)
            lane = house.relay._sessions[LEASE].lanes[0]
            assert lane.deadlines_s[Method.STEP] == session_module.MAX_DEADLINE_S
        async with house.client() as client:
            await client.send(
                frame(Kind.HELLO, b'{"version": 1, "session": "session-1", "deadlines_s": {"step": NaN}}')
            )
            assert (await client.read(Kind.BYE)).code == Bye.PROTOCOL


@looped
async def test_an_oversized_message_ends_the_connection_alone() -> None:
    """A message above the limit is not taken into memory."""
    async with relay_house(l_1=1, l_2=1) as house, _bystander(house):
        with contextlib.suppress(
            AttributeError, ConnectionClosed
        ):  # of the client's transport, which ended while it wrote
            async with house.client() as client:
                await client.hello()
                await client.send(b"\x03" * (MAX_CLIENT_MESSAGE_BYTES + 1))
                with pytest.raises(ConnectionClosed) as caught:
                    await client.read()
                assert caught.value.rcvd is None or caught.value.rcvd.code == 1009
        await until(lambda: not house.relay._sessions[LEASE].connected)
        assert house.engines.calls
        assert {key for key, _, _ in house.engines.calls} == {"l-2/e0.1"}


@looped
async def test_a_client_that_does_not_read_stalls_only_itself() -> None:
    """Calls without end and no reading: what waits for it is bounded, and others go on."""
    async with relay_house(l_1=4, l_2=1) as house, _bystander(house), house.client() as client:
        await client.hello()
        house.engines.reply_bytes = 60_000
        noise = iter(range(10**9))
        client.socket.transport.pause_reading()

        async def call_without_end() -> None:
            for seq in noise:
                calls = [
                    frame(Kind.CALL, b"a", code=Method.STEP, lane=lane, generation=1, seq=seq + 1) for lane in range(4)
                ]
                calls.append(frame(Kind.CALL, b"a", code=Method.STEP, lane=0, generation=99, seq=1))
                await client.send(b"".join(calls * 50))

        calling = asyncio.create_task(call_without_end())
        session = house.relay._sessions[LEASE]
        connection = session._connection
        assert connection is not None
        most = 0
        for _ in range(100):
            await asyncio.sleep(0.02)
            owed = connection._owed + len(connection._outbox)
            most = max(most, owed)
        assert most <= 2 * 4 + connection_module.MOST_OWED + 2 * 4
        calling.cancel()


def test_a_client_that_never_reads_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a time without taking anything a client's connection is dropped; its lease goes on."""
    monkeypatch.setattr(connection_module, "UNREAD_FOR_S", 0.3)

    @looped
    async def dropped() -> None:
        async with relay_house() as house, house.client() as client:
            epoch = (await client.hello()).epoch
            await client.step(1)
            session = house.relay._sessions[LEASE]
            client.socket.transport.pause_reading()
            assert session._connection is not None
            for _ in range(200):
                session._connection.tell(text_frame(Kind.LANE, "x" * 4000) * 30)

            def gone() -> bool:
                session.look_after()
                return not session.connected

            await until(gone)
            async with house.client() as again:
                assert (await again.hello(epoch=epoch)).lanes[0].ran == 1

    dropped()


@looped
async def test_memory_of_leases_is_given_back() -> None:
    """Neither wrong lease ids nor leases that have ended leave anything behind."""
    async with relay_house(l_1=1) as house:
        for number in range(50):
            with pytest.raises(InvalidStatus):
                async with house.client(f"l-none-{number}"):
                    pass
        async with house.client() as client:
            await client.hello()
        house.directory.change(LEASE, state=LeaseState.RELEASED, because="its holder released it")
        await house.relay.catch_up()
        assert (house.relay._sessions, house.relay._standings, house.relay._holders) == ({}, {}, {})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.builds(
                lambda kind, code, lane, generation, seq, body: (
                    HEADER.pack(kind, code, lane, generation, seq, len(body)) + body
                ),
                st.integers(0, 10),
                st.integers(0, 7),
                st.integers(0, 3),
                st.integers(0, 3),
                st.integers(0, 9),
                st.binary(max_size=50),
            ),
        ),
        max_size=8,
    )
)
def test_no_message_breaks_the_relay(messages: list[bytes]) -> None:
    """Whatever bytes come after HELLO, the connection ends with a reason or goes on; the relay is well."""

    @looped
    async def survives() -> None:
        async with relay_house(l_1=2) as house:
            with contextlib.suppress(ConnectionClosed):
                async with house.client() as client:
                    await client.hello()
                    for message in messages:
                        await client.send(message)
                    await asyncio.sleep(0)
            async with house.client() as client:
                welcome = await client.hello("session-2")
                ran = welcome.lanes[0].ran
                await client.call(ran + 1)
                while (await client.read()).seq != ran + 1:
                    pass

    with structlog.testing.capture_logs() as lines:
        survives()
    assert not [line for line in lines if line["log_level"] in ("error", "critical")]


def test_refusals_are_logged_once_a_minute() -> None:
    """The same refusal of the same place is told once, later with how many there were in between; others are told too."""
    now = 0.0
    refusals = Refusals(monotonic=lambda: now)
    with structlog.testing.capture_logs() as lines:
        for _ in range(1000):
            refusals.note("status 401", "192.0.2.1", "wrong token")
        refusals.note("status 401", "192.0.2.2", "wrong token")
        now = 61.0
        refusals.note("status 401", "192.0.2.1", "wrong token")
    assert [line.get("more_before", 0) for line in lines] == [0, 0, 999]


def test_refusals_forget_old_places() -> None:
    """An attack from many addresses fills no memory."""
    refusals = Refusals()
    with structlog.testing.capture_logs():
        for number in range(5000):
            refusals.note("status 401", str(number), "wrong token")
    assert len(refusals._told) <= 1000


def test_tokens_are_in_no_log(caplog: pytest.LogCaptureFixture, logged: list[dict[str, Any]]) -> None:
    """Whatever the log level, no token of a lease is written down."""
    caplog.set_level(logging.DEBUG)

    @looped
    async def play() -> None:
        async with relay_house() as house:
            async with house.client() as client:
                await client.hello()
                await client.step(1)
            with pytest.raises(InvalidStatus):
                async with house.client(token="token-of-somebody"):
                    pass

    play()
    text = repr(logged) + "".join(record.getMessage() for record in caplog.records if "client" not in record.name)
    assert "token-of" not in text
