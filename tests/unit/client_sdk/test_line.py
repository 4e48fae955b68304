"""The client's line to a relay: what callers see while it works, breaks, comes back, and ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator

import pytest
import zstandard

from client_sdk import _line
from client_sdk._lane import Stream
from client_sdk._line import CallFault, Line, LineLost, Reply, Route
from client_sdk.wire import Answer, Bye, Flags, Kind, Method, Status, WireError, text_frame
from tests.support.fake_relay import TOKEN, FakeLane, FakeRelay, Fault, within
from tests.support.link import linked

SOON_S = 20.0


@contextlib.asynccontextmanager
async def connected(relay: FakeRelay, *, url: str | None = None, patience_s: float = 60.0) -> AsyncIterator[Line]:
    """A line to ``relay``, which is started, until the end of the block."""
    await relay.start()
    line = Line(Route(url or relay.url, TOKEN, patience_s=patience_s))
    running = asyncio.get_running_loop().create_task(line.run())
    try:
        await asyncio.wait_for(line.opened.wait(), SOON_S)
        yield line
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError, LineLost):
            await running
        await relay.stop()


async def until(true: object, *, timeout_s: float = SOON_S) -> None:
    """Wait until ``true()`` is so."""
    assert callable(true)
    end = asyncio.get_running_loop().time() + timeout_s
    while not true():
        assert asyncio.get_running_loop().time() < end, "it did not come true"
        await asyncio.sleep(0.01)


async def step(line: Line, rank: int = 0) -> str:
    return (await line.call(rank, Method.STEP, b"")).data.decode()


def test_lanes_run_at_the_same_time() -> None:
    """Calls of different lanes run at the same time and answer in any order; calls of one lane run one after the other."""

    async def scenario() -> None:
        first = asyncio.Event()

        async def engine(lane: FakeLane, method: Method, request: bytes) -> bytes:
            if request == b"slow":
                await first.wait()
            return request + b"!"

        async with connected(FakeRelay(engine=engine)) as line:
            slow = asyncio.ensure_future(line.call(0, Method.STEP, b"slow"))
            after = asyncio.ensure_future(line.call(0, Method.STEP, b"after"))
            other = await line.call(1, Method.STEP, b"other")
            assert (other.data, other.engine_s) == (b"other!", 0.0015)
            assert not slow.done()
            assert not after.done()
            first.set()
            assert [(await slow).data, (await after).data] == [b"slow!", b"after!"]

    within(SOON_S, scenario())


def test_one_message_for_a_batch() -> None:
    """What is asked for together travels together."""

    async def scenario() -> None:
        relay = FakeRelay(lanes_wanted=12)
        async with connected(relay) as line:
            await asyncio.gather(*(step(line, rank) for rank in range(12)))
            assert (relay.messages, len(relay.calls)) == (1, 12)

    within(SOON_S, scenario())


def test_replies_are_bit_exact() -> None:
    """A reply has the engine's bytes, whatever its size: small, large, empty, a repetition, noise."""

    async def scenario() -> None:
        async def engine(lane: FakeLane, method: Method, request: bytes) -> bytes:
            return replies[lane.steps - 1]

        frame = os.urandom(1000) * 700
        replies = [b"", b"abc", b"abcd" * 50, frame, frame[:-9] + os.urandom(9), os.urandom(300_000), frame, b"end."]
        async with connected(FakeRelay(engine=engine)) as line:
            got = [(await line.call(0, Method.STEP, b"")).data for _ in replies]
        assert got == replies

    within(SOON_S, scenario())


@pytest.mark.parametrize("size", [1000, 200_000])
def test_reply_that_cannot_be_decoded(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the client's own is a pause too: it connects again, every caller gets its reply, and no step runs twice."""
    straight, faults = Stream.decode, iter([MemoryError(), MemoryError()])

    def once(self: Stream, flags: int, answer: Answer) -> bytes:
        if (fault := next(faults, None)) is not None:
            raise fault
        return straight(self, flags, answer)

    async def scenario() -> None:
        async def engine(lane: FakeLane, method: Method, request: bytes) -> bytes:
            ran.append(lane.steps)
            return os.urandom(size)

        ran: list[int] = []
        relay = FakeRelay(lanes_wanted=3, engine=engine)
        async with connected(relay) as line:
            monkeypatch.setattr(Stream, "decode", once)
            replies = await asyncio.gather(*(line.call(rank, Method.STEP, b"") for rank in range(3)))
            assert [len(reply.data) for reply in replies] == [size] * 3
            assert len(ran) == 3
            assert line.connections > 1

    within(SOON_S, scenario())


def test_large_replies_that_come_together() -> None:
    """Large replies of several lanes in one message are each their own lane's, bit by bit, time after time."""

    async def scenario() -> None:
        async def engine(lane: FakeLane, method: Method, request: bytes) -> bytes:
            return replies[lane.rank][lane.steps - 1]

        start = os.urandom(200_000)
        replies = [[start + os.urandom(9) + b"%d" % lane for _ in range(6)] for lane in range(4)]
        relay = FakeRelay(lanes_wanted=4, engine=engine, join=4)
        async with connected(relay) as line:
            for number in range(6):
                got = await asyncio.gather(*(line.call(rank, Method.STEP, b"") for rank in range(4)))
                assert [reply.data for reply in got] == [replies[rank][number] for rank in range(4)]
            relay.spoil = lambda data: data[:-3]
            relay.lanes[0].steps = relay.lanes[1].steps = relay.lanes[2].steps = relay.lanes[3].steps = 0
            calls = [asyncio.ensure_future(line.call(rank, Method.STEP, b"")) for rank in range(4)]
            await until(lambda: line.connections == 2)
            assert [reply.data for reply in await asyncio.gather(*calls)] == [replies[rank][0] for rank in range(4)]

    within(SOON_S, scenario())


def test_broken_line_is_a_pause() -> None:
    """A line that breaks while a call runs is made again, and the call gets its answer, having run once."""

    async def scenario() -> None:
        go_on = asyncio.Event()

        async def engine(lane: FakeLane, method: Method, request: bytes) -> bytes:
            await go_on.wait()
            return b"step %d" % lane.steps

        relay = FakeRelay(engine=engine)
        async with connected(relay) as line:
            call = asyncio.ensure_future(step(line))
            await until(lambda: relay.calls)
            relay.drop()
            await until(lambda: relay.connections == 2)
            go_on.set()
            assert await call == "step 1"
            assert await step(line) == "step 2"

    within(SOON_S, scenario())


def test_lost_answer_is_asked_for_again() -> None:
    """An answer that was lost on the way comes again from the lane's last reply; the step is not run twice."""

    async def scenario() -> None:
        relay = FakeRelay(muted=True)
        async with connected(relay) as line:
            call = asyncio.ensure_future(step(line))
            await until(lambda: relay.lanes[0].ran == 1)
            relay.muted = False
            relay.drop()
            assert await call == "step 1"
            assert await step(line) == "step 2"
            assert [frame.seq for frame in relay.calls] == [1, 1, 2]

    within(SOON_S, scenario())


def test_calls_wait_while_the_line_is_down() -> None:
    """What is asked for while there is no line runs when it is back."""

    async def scenario() -> None:
        relay = FakeRelay()
        async with connected(relay) as line:
            await relay.stop()
            await until(lambda: line.fault)
            call = asyncio.ensure_future(step(line))
            await asyncio.sleep(0.2)
            assert not call.done()
            await relay.start()
            assert await call == "step 1"
            assert line.fault is None

    within(SOON_S, scenario())


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the line stays away for too long, calls fail and say why; when it is back, they work again."""

    async def scenario() -> None:
        monkeypatch.setattr(_line, "LOOK_EVERY_S", 0.05)
        relay = FakeRelay()
        async with connected(relay, patience_s=0.3) as line:
            await relay.stop()
            await until(lambda: line.fault)
            with pytest.raises(CallFault, match=r"No line to the relay .* was not reached .*port \d+ open") as failed:
                await step(line)
            assert failed.value.status == Status.UNAVAILABLE
            with pytest.raises(CallFault, match="No line to the relay"):
                await step(line)
            await relay.start()
            await until(lambda: line.connections == 2)
            assert await step(line) == "step 1"

    within(SOON_S, scenario())


def test_relay_restarted() -> None:
    """When the relay dies, a call in flight fails with an unknown outcome and its engine is given up; other lanes go on."""

    async def scenario() -> None:
        relay = FakeRelay(muted=True)
        async with connected(relay) as line:
            call = asyncio.ensure_future(step(line))
            await until(lambda: relay.lanes[0].ran == 1)
            relay.muted = False
            relay.restart("epoch-2")
            with pytest.raises(CallFault, match="outcome of rank 0's call is unknown") as failed:
                await call
            assert failed.value.status == Status.UNAVAILABLE
            assert await step(line, 1) == "step 1"
            await until(lambda: relay.given_up)
            assert relay.given_up[0][:2] == (0, 1)
            with pytest.raises(CallFault) as stale:
                await step(line)
            assert stale.value.status == Status.FAILED_PRECONDITION
            await relay.replace(0)
            assert (await line.call(0, Method.ENV_INIT, b"init")).data == b"init"
            assert await step(line) == "step 1"

    within(SOON_S, scenario())


def test_relay_stopped_in_good_order() -> None:
    """After the relay's goodbye nothing is unknown: what it did not answer was not run, and is sent to its successor."""

    async def scenario() -> None:
        relay = FakeRelay()
        async with connected(relay) as line:
            assert await step(line) == "step 1"
            relay.lanes[0].running = 2  # it has begun nothing of what comes now
            call = asyncio.ensure_future(step(line))
            await until(lambda: len(relay.calls) == 2)
            await relay.bye(Bye.STOPPING, "The relay is stopping.")
            relay.restart("epoch-2")
            assert await call == "step 2"
            assert not relay.given_up

    within(SOON_S, scenario())


@pytest.mark.parametrize("why", [Bye.LEASE_ENDED, Bye.TAKEN_OVER, Bye.PROTOCOL])
def test_goodbye_for_ever(why: Bye) -> None:
    """A goodbye that means the end fails what is under way and all that comes, with its sentence, and nothing is tried again."""

    async def scenario() -> None:
        relay = FakeRelay(muted=True)
        async with connected(relay) as line:
            call = asyncio.ensure_future(step(line))
            await until(lambda: relay.calls)
            await relay.bye(why, "Lease l-1 has ended: expired.")
            for one in (call, step(line), step(line, 1), line.call(1, Method.ENV_INIT, b"")):
                with pytest.raises(CallFault, match=r"Lease l-1 has ended: expired\."):
                    await one
            assert line.lost is not None
            assert line.lost.bye is why
            await asyncio.sleep(0.3)
            assert relay.connections == 1

    within(SOON_S, scenario())


def test_replaced_engine() -> None:
    """After a replacement only ENV_INIT is run, and waits for the fresh engine; closing the lost game is no error."""

    async def scenario() -> None:
        relay = FakeRelay()
        changed: list[int] = []
        async with connected(relay) as line:
            line._changed = changed.append
            assert await step(line) == "step 1"
            relay.lanes[0].ready = False
            await relay.tell_lane(0, "its engine is being replaced: it ran out of memory")
            await until(lambda: not line._lanes[0].ready)
            with pytest.raises(CallFault, match=r"being replaced.*out of memory.*call make") as replacing:
                await step(line)
            assert replacing.value.status == Status.UNAVAILABLE
            assert (await line.call(0, Method.CLOSE, b"")).data == b""
            made = asyncio.ensure_future(line.call(0, Method.ENV_INIT, b"settings"))
            await asyncio.sleep(0.1)
            assert not made.done()
            await relay.replace(0)
            assert (await made).data == b"settings"
            assert await step(line) == "step 1"
            assert (changed, line.generation(0), line.generation(1)) == ([0], 2, 1)
            await relay.replace(0)
            await until(lambda: line.generation(0) == 3)
            with pytest.raises(CallFault) as stale:
                await step(line)
            assert stale.value.status == Status.FAILED_PRECONDITION
            assert (await line.call(0, Method.CLOSE, b"")).data == b""
            assert Method.CLOSE not in {call.code for call in relay.calls}

    within(SOON_S, scenario())


def test_engine_replaced_while_the_line_was_down() -> None:
    """A call whose engine was replaced while there was no line fails, and does not reach the next game."""

    async def scenario() -> None:
        relay = FakeRelay(muted=True)
        async with connected(relay) as line:
            call = asyncio.ensure_future(step(line))
            await until(lambda: relay.calls)
            relay.muted, relay.lanes[0].generation, relay.lanes[0].fresh = False, 2, True
            relay.drop()
            with pytest.raises(CallFault, match="was replaced during the call: call make"):
                await call
            assert (await line.call(0, Method.ENV_INIT, b"init")).data == b"init"

    within(SOON_S, scenario())


def test_engine_lost_while_a_game_is_made() -> None:
    """Report 30: an engine that dies in EnvInit is replaced, and EnvInit is run on the next one; a second death is told."""

    async def scenario() -> None:
        async def engine(lane: FakeLane, method: Method, request: bytes) -> bytes | Fault:
            return (Status.UNAVAILABLE, f"The engine died: socket closed ({lane.generation}).") if dying else request

        dying = True
        relay = FakeRelay(engine=engine)
        async with connected(relay) as line:
            made = asyncio.ensure_future(line.call(0, Method.ENV_INIT, b"init"))
            await until(lambda: relay.lanes[0].ran == 1)
            dying = False
            await relay.replace(0)
            assert (await made).data == b"init"
            dying = True
            made = asyncio.ensure_future(line.call(0, Method.ENV_INIT, b"init"))
            await until(lambda: relay.lanes[0].ran == 3)
            await relay.replace(0)
            with pytest.raises(CallFault, match=r"socket closed \(3\)"):
                await made

    within(SOON_S, scenario())


def test_fault_of_an_engine() -> None:
    """An error of the engine itself comes with its gRPC status and its text, and the lane goes on."""

    async def scenario() -> None:
        async def engine(lane: FakeLane, method: Method, request: bytes) -> bytes | Fault:
            return (Status.INVALID_ARGUMENT, "ROM not found") if method is Method.ENV_INIT else b"reply"

        async with connected(FakeRelay(engine=engine)) as line:
            with pytest.raises(CallFault, match="ROM not found") as failed:
                await line.call(0, Method.ENV_INIT, b"init")
            assert failed.value.status == Status.INVALID_ARGUMENT
            assert (await line.call(0, Method.STEP, b"")).data == b"reply"

    within(SOON_S, scenario())


def test_cancelled_call() -> None:
    """Whoever gives up waiting leaves the lane usable: the call under way ends, and the next one comes after it."""

    async def scenario() -> None:
        go_on = asyncio.Event()

        async def engine(lane: FakeLane, method: Method, request: bytes) -> bytes:
            await go_on.wait()
            return b"step %d" % lane.steps

        async with connected(FakeRelay(engine=engine)) as line:
            call = asyncio.ensure_future(step(line))
            await asyncio.sleep(0.05)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            after = asyncio.ensure_future(step(line))
            go_on.set()
            assert await after == "step 2"

    within(SOON_S, scenario())


@pytest.mark.parametrize(
    "spoil",
    [lambda data: bytes(len(data)), lambda data: data[:-3], lambda data: data + data, lambda data: b""],
    ids=["zeros", "cut short", "twice", "nothing"],
)
def test_broken_stream(spoil: object) -> None:
    """A stream that breaks costs a new connection and nothing else: the reply comes again, right."""

    async def scenario() -> None:
        relay = FakeRelay()
        async with connected(relay) as line:
            assert await step(line) == "step 1"
            relay.spoil = spoil  # type: ignore[assignment]
            assert await step(line) == "step 2"
            assert await step(line) == "step 3"
            assert line.connections == 2

    within(SOON_S, scenario())


@pytest.mark.parametrize(
    "message",
    ["text", b"\x01", text_frame(Kind.LANE, "", lane=7), text_frame(Kind.REPLACE, ""), bytes(64), os.urandom(64)],
    ids=["text", "half a header", "unknown lane", "not the relay's", "zeros", "noise"],
)
def test_message_that_is_not_allowed(message: bytes | str) -> None:
    """Whatever else a relay says costs a new connection, and no call its answer."""

    async def scenario() -> None:
        relay = FakeRelay()
        async with connected(relay) as line:
            assert await step(line) == "step 1"
            await relay.send(message)
            await until(lambda: line.connections == 2)
            assert await step(line) == "step 2"

    within(SOON_S, scenario())


def test_no_more_than_promised() -> None:
    """A reply that would unfold to a thousand times its promise is refused without ever being held in memory."""
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(200 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="1000 bytes that it promised"):
            Stream(0).decode(Flags.NEW_STREAM, Answer(0, 0, 1000, memoryview(bomb)))
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_half_open_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that went dead without a word is noticed by its silence, and made again; a call in flight is not lost."""
    monkeypatch.setattr(_line, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(_line, "PING_WHEN_SILENT_S", 0.3)
    monkeypatch.setattr(_line, "DEAD_WHEN_SILENT_S", 1.0)

    async def scenario() -> None:
        relay = FakeRelay()
        await relay.start()
        with linked(("127.0.0.1", relay.port)) as link:
            await relay.stop()
            url = relay.url.replace(str(relay.port), str(link.port))
            async with connected(relay, url=url) as line:
                await asyncio.sleep(1.5)
                assert line.connections == 1, "a line that is only quiet was taken for dead"
                link.cut(drop=True)
                call = asyncio.ensure_future(step(line))
                await until(lambda: line.fault)
                assert "nothing was heard" in str(line.fault)
                link.mend()
                assert await call == "step 1"

    within(SOON_S, scenario())


def test_overdue_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a relay never answers a call, the call fails some seconds after its deadline, and its engine is given up."""
    monkeypatch.setattr(_line, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(_line, "ANSWER_GRACE_S", 0.2)

    async def scenario() -> None:
        relay = FakeRelay(muted=True)
        async with connected(relay) as line:
            line._limits_s[Method.STEP] = 0.2
            with pytest.raises(CallFault, match="no answer") as failed:
                await step(line)
            assert failed.value.status == Status.DEADLINE_EXCEEDED
            await until(lambda: relay.given_up)
            relay.muted = False
            await relay.replace(0)
            assert (await line.call(0, Method.ENV_INIT, b"init")).data == b"init"

    within(SOON_S, scenario())


def test_no_fresh_engine_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """ENV_INIT waits for a fresh engine as long as it may take itself, and then says so."""
    monkeypatch.setattr(_line, "LOOK_EVERY_S", 0.05)

    async def scenario() -> None:
        relay = FakeRelay()
        async with connected(relay) as line:
            line._limits_s[Method.ENV_INIT] = 0.3
            await relay.replace(0, ready=False)
            await until(lambda: line.generation(0) == 2)
            with pytest.raises(CallFault, match=r"got no fresh engine within 0\.3 s"):
                await line.call(0, Method.ENV_INIT, b"")

    within(SOON_S, scenario())


def test_taking_over_goes_on_with_higher_numbers() -> None:
    """A second client of a lease begins above the numbers of the first, so that its calls are run."""

    async def scenario() -> None:
        relay = FakeRelay()
        async with connected(relay) as line:
            assert [await step(line), await step(line)] == ["step 1", "step 2"]
            second = Line(Route(relay.url, TOKEN))
            running = asyncio.ensure_future(second.run())
            await second.opened.wait()
            assert await step(second) == "step 3"
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    within(SOON_S, scenario())


# ---------------------------------------------------------------- why there is no line


async def fault_of(route: Route) -> str:
    """What a line says that cannot be opened."""
    line = Line(route)
    running = asyncio.ensure_future(line.run())
    try:
        await until(lambda: line.fault or line.lost)
        return str(line.lost or line.fault)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError, LineLost):
            await running


@pytest.mark.parametrize(
    ("refusal", "says", "final"),
    [
        (
            (410, "text/plain; charset=utf-8", "Lease l-1 has ended (expired).\n"),
            "Lease l-1 has ended (expired).",
            True,
        ),
        ((401, "text/plain", "The relay token is not that of this lease.\n"), "not that of this lease", True),
        ((503, "text/plain", "The relay is stopping: connect again.\n"), "The relay is stopping", False),
        ((409, "text/plain", "Lease l-1 waits for its engines still.\n"), "waits for its engines", False),
        ((404, "text/html", "<h1>Not Found</h1>"), "is not Cornerman's relay (HTTP 404)", True),
        ((502, "text/html", "<h1>Bad Gateway</h1>"), "is not Cornerman's relay (HTTP 502)", False),
    ],
)
def test_refused_handshake(refusal: tuple[int, str, str], says: str, final: bool) -> None:
    """The relay's own words are passed on; what nobody can cure by trying again is not tried again."""

    async def scenario() -> None:
        relay = FakeRelay(refusal=refusal)
        await relay.start()
        line = Line(Route(relay.url, TOKEN))
        running = asyncio.ensure_future(line.run())
        await until(lambda: line.fault or line.lost)
        assert says in str(line.lost or line.fault)
        assert (line.lost is not None) is final
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError, LineLost):
            await running
        await relay.stop()

    within(SOON_S, scenario())


def test_wrong_token() -> None:
    """A wrong token gets the relay's sentence at once, and the token is in no text."""

    async def scenario() -> None:
        relay = FakeRelay()
        await relay.start()
        route = Route(relay.url, "another-secret")
        assert await fault_of(route) == "The relay token is not that of this lease."
        assert "another-secret" not in repr(route)
        await relay.stop()

    within(SOON_S, scenario())


def test_nobody_listens(free_port: int) -> None:
    """A port where nobody listens is named, with what to look for."""
    text = within(SOON_S, fault_of(Route(f"ws://127.0.0.1:{free_port}/v1/leases/l-1", TOKEN)))
    assert f"127.0.0.1:{free_port} was not reached" in text
    assert f"TCP port {free_port} open" in text


def test_accepts_and_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that accepts the connection and says nothing is told from one that does not answer at all."""
    monkeypatch.setattr(_line, "FIRST_CONNECT_WITHIN_S", 0.5)
    with socket.create_server(("127.0.0.1", 0), backlog=8) as listener:
        port = listener.getsockname()[1]
        text = within(SOON_S, fault_of(Route(f"ws://127.0.0.1:{port}/v1/leases/l-1", TOKEN)))
    assert f"127.0.0.1:{port} accepts a connection but does not answer" in text


def test_relay_that_dies_in_the_handshake() -> None:
    """A connection that ends while TLS begins is no proof against the relay: it is only not reached."""

    async def scenario() -> None:
        async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.close()

        server = await asyncio.start_server(leave, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        route = Route(f"wss://127.0.0.1:{port}/v1/leases/l-1", TOKEN, trusting=ssl.create_default_context())
        text = await fault_of(route)
        assert f"127.0.0.1:{port} was not reached" in text
        server.close()

    within(SOON_S, scenario())


def test_something_else_listens() -> None:
    """A peer that speaks another protocol is recognised as not being the relay."""

    async def scenario() -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
            await asyncio.sleep(0.1)
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        text = await fault_of(Route(f"ws://127.0.0.1:{port}/v1/leases/l-1", TOKEN))
        assert f"127.0.0.1:{port}" in text
        assert "not the relay" in text or "is not Cornerman's relay" in text
        server.close()

    within(SOON_S, scenario())


def test_reply_is_a_value() -> None:
    """A reply says what the engine sent and how long it took."""
    assert Reply(b"x", 0.1, 0.2, 3) == Reply(b"x", 0.1, 0.2, 3)
