"""A lease's connection: each call once whatever happens to lines, engines and sessions."""

from __future__ import annotations

import asyncio
import time

import pytest
from websockets.exceptions import ConnectionClosed

from client_sdk.models import LeaseState
from client_sdk.wire import Bye, Flags, Kind, Method, Status, frame
from orchestrator.relay.codec import Encoder
from orchestrator.relay.lane import Outcome
from tests.support.relay import LEASE, looped, relay_house, until


@looped
async def test_calls_of_different_lanes_run_at_the_same_time() -> None:
    """A slow engine does not hold up another engine of the same lease, and answers come in any order."""
    async with relay_house(l_1=2) as house, house.client() as client:
        await client.hello()
        house.engines.shut.add("l-1/e0.1")
        await client.call(1, lane=0)
        await client.call(1, lane=1)
        answer = await client.read(Kind.ANSWER)
        assert answer.lane == 1
        house.engines.open("l-1/e0.1")
        assert (await client.read(Kind.ANSWER)).lane == 0


@looped
async def test_answers_that_are_ready_together_travel_together() -> None:
    """Calls sent in one message are taken one by one, and what is ready at the same moment comes back as one message."""
    async with relay_house(l_1=3) as house, house.client() as client:
        await client.hello()
        calls = (frame(Kind.CALL, b"a", code=Method.STEP, lane=lane, generation=1, seq=1) for lane in range(3))
        await client.send(b"".join(calls))
        assert {(await client.read(Kind.ANSWER)).lane for _ in range(3)} == {0, 1, 2}


@looped
async def test_a_number_runs_once_however_often_it_is_sent() -> None:
    """A call that is sent again while it runs, or after it has run, is not run again, and its answer is the same."""
    async with relay_house() as house, house.client() as client:
        await client.hello()
        house.engines.shut.add("l-1/e0.1")
        await client.call(1)
        await client.call(1)
        house.engines.open("l-1/e0.1")
        first = await client.answer()
        await client.call(1)
        assert await client.answer() == first
        assert house.engines.steps["l-1/e0.1"] == 1


@looped
async def test_an_old_number_or_generation_runs_nothing() -> None:
    """A number below the last one, and a call meant for another engine, get FAILED_PRECONDITION."""
    async with relay_house() as house, house.client() as client:
        await client.hello()
        await client.step(5)
        await client.call(4)
        assert (await client.fault())[:2] == (4, Status.FAILED_PRECONDITION)
        await client.call(6, generation=2)
        assert (await client.fault())[:2] == (6, Status.FAILED_PRECONDITION)
        await client.call(7, generation=0)
        assert (await client.fault())[:2] == (7, Status.FAILED_PRECONDITION)
        assert house.engines.steps["l-1/e0.1"] == 1


@looped
async def test_a_client_that_will_not_wait_sends_the_next_call() -> None:
    """A second call of a lane waits for the first; of several that wait only the newest runs, the others are told so."""
    async with relay_house() as house, house.client() as client:
        await client.hello()
        house.engines.shut.add("l-1/e0.1")
        for seq in (1, 2, 3):
            await client.call(seq)
        number, status, text = await client.fault()
        assert (number, status) == (2, Status.FAILED_PRECONDITION)
        assert "overtaken by call 3" in text
        house.engines.open("l-1/e0.1")
        assert [(await client.answer())[0] for _ in range(2)] == [1, 3]
        assert house.engines.steps["l-1/e0.1"] == 2


@looped
async def test_replies_arrive_as_the_engine_sent_them() -> None:
    """Small replies, large ones, and those after EnvInit come out bit by bit; EnvInit begins a new stream."""
    async with relay_house() as house, house.client() as client:
        await client.hello()
        for seq, size in enumerate((0, 300, 20_000, 700_000, 20_000, 700_000), start=1):
            house.engines.reply_bytes = size
            reply = await client.step(seq)
            assert reply == f"l-1/e0.1 STEP {seq}".encode().ljust(size, b".")
        await client.call(7, Method.ENV_INIT)
        answer = await client.read(Kind.ANSWER)
        assert answer.code & Flags.NEW_STREAM
        client.decoded(answer)


# ---------------------------------------------------------------- lines that break


@looped
async def test_a_call_in_flight_when_the_line_breaks_is_answered_once_after_it() -> None:
    """The client comes back and sends its open call again: it has run once, and its answer is there."""
    async with relay_house() as house:
        house.engines.shut.add("l-1/e0.1")
        async with house.client() as client:
            epoch = (await client.hello()).epoch
            await client.call(1)
            await until(lambda: house.engines.calls)
            client.socket.transport.abort()
        async with house.client() as client:
            welcome = await client.hello(epoch=epoch)
            assert welcome.resumed
            assert welcome.lanes[0].ran == 1
            await client.call(1)
            house.engines.open("l-1/e0.1")
            assert await client.answer() == (1, b"l-1/e0.1 STEP 1")
            assert await client.step(2) == b"l-1/e0.1 STEP 2"
        assert len(house.engines.calls) == 2


@looped
async def test_an_answer_that_was_lost_is_given_again() -> None:
    """A call that ended while nobody was connected is answered from memory, in a stream of the new connection."""
    async with relay_house() as house:
        house.engines.reply_bytes = 100_000
        house.engines.shut.add("l-1/e0.1")
        async with house.client() as client:
            epoch = (await client.hello()).epoch
            await client.call(1)
            await until(lambda: house.engines.calls)
            client.socket.transport.abort()
        house.engines.open("l-1/e0.1")
        await until(lambda: house.engines.steps["l-1/e0.1"] == 1)
        async with house.client() as client:
            await client.hello(epoch=epoch)
            await client.call(1)
            number, reply = await client.answer()
            assert (number, len(reply)) == (1, 100_000)
        assert house.engines.steps["l-1/e0.1"] == 1


@pytest.mark.parametrize("reply_bytes", [1000, 100_000])
def test_a_stream_that_breaks_in_the_relay_begins_anew(reply_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that cannot be compressed costs its connection at once; the client comes back and gets it, and nothing runs twice."""

    def broken(self: Encoder, reply: bytes) -> tuple[bytes, Flags]:
        raise MemoryError("no room for a stream")

    @looped
    async def play() -> None:
        async with relay_house() as house:
            house.engines.reply_bytes = reply_bytes
            async with house.client() as client:
                epoch = (await client.hello()).epoch
                with monkeypatch.context() as patched:
                    patched.setattr(Encoder, "encode", broken)
                    await client.call(1)
                    with pytest.raises(ConnectionClosed):
                        await client.read(within_s=3)
            async with house.client() as client:
                await client.hello(epoch=epoch)
                await client.call(1)
                number, reply = await client.answer()
                assert (number, len(reply)) == (1, reply_bytes)
            assert house.engines.steps["l-1/e0.1"] == 1

    play()


@looped
async def test_a_client_that_comes_back_does_not_wait_for_its_half_open_line() -> None:
    """A former connection of the same client is dropped at once, also when nobody answers on it any more."""
    async with relay_house() as house, house.client() as stale:
        epoch = (await stale.hello()).epoch
        stale.socket.transport.pause_reading()
        began = time.monotonic()
        async with house.client() as client:
            assert (await client.hello(epoch=epoch)).resumed
            assert await client.step(1) == b"l-1/e0.1 STEP 1"
            assert time.monotonic() - began < 1.5


@looped
async def test_another_client_takes_the_lease_over() -> None:
    """The newest client has the lanes; the former one is told, and told again if it comes back."""
    async with relay_house() as house, house.client() as first:
        epoch = (await first.hello("session-1")).epoch
        await first.step(3)
        async with house.client() as second:
            welcome = await second.hello("session-2")
            assert not welcome.resumed
            assert welcome.lanes[0].ran == 3
            assert (await first.read(Kind.BYE)).code == Bye.TAKEN_OVER
            assert await second.step(4) == b"l-1/e0.1 STEP 2"
            async with house.client() as again:
                await again.send(b"")
                assert (await again.read(Kind.BYE)).code == Bye.PROTOCOL
            async with house.client() as again:
                with pytest.raises(AssertionError, match="Another client took this lease over"):
                    await again.hello("session-1", epoch=epoch)
            assert await second.step(5) == b"l-1/e0.1 STEP 3"


@looped
async def test_a_takeover_during_a_call_waits_for_its_end() -> None:
    """The new client's call runs after the one that its predecessor left behind."""
    async with relay_house() as house, house.client() as first:
        await first.hello("session-1")
        house.engines.shut.add("l-1/e0.1")
        await first.call(1)
        await until(lambda: house.engines.calls)
        async with house.client() as second:
            assert (await second.hello("session-2")).lanes[0].ran == 1
            await second.call(2)
            house.engines.open("l-1/e0.1")
            await second.answer()
            assert await second.answer() == (2, b"l-1/e0.1 STEP 2")


# ---------------------------------------------------------------- engines that go


@looped
async def test_after_a_replacement_only_env_init_runs() -> None:
    """The client is told of both steps; a fresh engine takes no step before its EnvInit, and closing does not reach it."""
    async with relay_house() as house, house.client() as client:
        await client.hello()
        await client.step(1)
        house.directory.empty(LEASE, 0, "out of memory")
        await house.relay.catch_up()
        told = await client.read(Kind.LANE)
        assert (told.code, told.generation) == (0, 1)
        assert "out of memory" in told.text()
        await client.call(2)
        assert (await client.fault())[:2] == (2, Status.UNAVAILABLE)
        house.directory.fill(LEASE, 0)
        await house.relay.catch_up()
        told = await client.read(Kind.LANE)
        assert (told.code, told.generation) == (1, 2)
        await client.call(3, generation=2)
        number, status, text = await client.fault()
        assert (number, status) == (3, Status.FAILED_PRECONDITION)
        assert "out of memory" in text
        await client.call(4, Method.CLOSE, generation=2)
        assert await client.answer() == (4, b"")
        await client.call(5, Method.ENV_INIT, generation=2)
        await client.answer()
        assert await client.step(6, generation=2) == b"l-1/e0.2 STEP 1"
        assert [key for key, _, _ in house.engines.calls] == ["l-1/e0.1", "l-1/e0.2", "l-1/e0.2"]


@looped
async def test_a_call_on_an_engine_that_is_lost_ends_at_once() -> None:
    """What is in flight when the store says that the engine is gone ends UNAVAILABLE with rank, engine and why."""
    async with relay_house() as house, house.client() as client:
        await client.hello()
        house.engines.shut.add("l-1/e0.1")
        await client.call(1)
        await until(lambda: house.engines.calls)
        house.directory.empty(LEASE, 0, "its holder reported it as broken: frozen")
        house.directory.fill(LEASE, 0)
        await house.relay.catch_up()
        number, status, text = await client.fault()
        assert (number, status) == (1, Status.UNAVAILABLE)
        for word in ("rank 0", "l-1/e0.1", "reported it as broken: frozen"):
            assert word in text
        assert (await client.read(Kind.LANE)).generation == 2
        await client.call(2, Method.ENV_INIT, generation=2)
        assert await client.answer() == (2, b"l-1/e0.2 ENV_INIT 0")


@looped
async def test_two_replacements_in_a_row_are_one_for_the_client() -> None:
    """Whoever looks only after the second sees the newest engine, and calls meant for the one between run nothing."""
    async with relay_house() as house, house.client() as client:
        await client.hello()
        for _ in range(2):
            house.directory.empty(LEASE, 0)
            house.directory.fill(LEASE, 0)
        await house.relay.catch_up()
        assert (await client.read(Kind.LANE)).generation == 3
        await client.call(1, Method.ENV_INIT, generation=2)
        assert (await client.fault())[:2] == (1, Status.FAILED_PRECONDITION)
        await client.call(2, Method.ENV_INIT, generation=3)
        assert await client.answer() == (2, b"l-1/e0.3 ENV_INIT 0")


@looped
async def test_a_held_call_of_a_replaced_engine_is_not_run() -> None:
    """A call that waited for another one does not reach the engine that stepped in meanwhile."""
    async with relay_house() as house, house.client() as client:
        await client.hello()
        house.engines.shut.add("l-1/e0.1")
        await client.call(1)
        await client.call(2)
        await until(lambda: house.engines.calls)
        house.directory.empty(LEASE, 0)
        house.directory.fill(LEASE, 0)
        await house.relay.catch_up()
        seen = {(await client.fault())[:2] for _ in range(2)}
        assert seen == {(1, Status.UNAVAILABLE), (2, Status.FAILED_PRECONDITION)}
        assert len(house.engines.calls) == 1


@looped
async def test_a_hung_engine_is_found_by_its_calls_deadline() -> None:
    """A step that is not answered within the client's deadline ends DEADLINE_EXCEEDED, and the engine is reported."""
    async with relay_house() as house, house.client() as client:
        await client.hello(step_s=0.2)
        house.engines.shut.add("l-1/e0.1")
        await client.call(1)
        assert (await client.fault())[:2] == (1, Status.DEADLINE_EXCEEDED)
        assert house.directory.told == ["hung l-1/e0.1: STEP 0.2"]


@looped
async def test_a_dead_engine_is_reported_and_its_call_says_why() -> None:
    """A call that its engine broke off ends UNAVAILABLE with the words found for it; an engine's own error is passed on."""
    async with relay_house() as house, house.client() as client:
        await client.hello()
        house.engines.outcomes["l-1/e0.1"] = Outcome(None, Status.UNAVAILABLE, "Socket closed")
        await client.call(1)
        assert await client.fault() == (1, Status.UNAVAILABLE, "The engine of rank 0 (l-1/e0.1) died: Socket closed.")
        house.engines.outcomes["l-1/e0.1"] = Outcome(None, Status.INVALID_ARGUMENT, "no such game")
        await client.call(2, Method.ENV_INIT)
        assert await client.fault() == (2, Status.INVALID_ARGUMENT, "no such game")
        assert house.directory.told == ["died l-1/e0.1: Socket closed"]


@looped
async def test_a_fault_of_the_relays_own_is_an_answer_too() -> None:
    """When something breaks inside the relay the client hears of it, and the lane goes on."""
    async with relay_house() as house, house.client() as client:
        await client.hello()
        house.engines.outcomes["l-1/e0.1"] = "nonsense"  # type: ignore[assignment]
        await client.call(1)
        assert (await client.fault())[:2] == (1, Status.INTERNAL)
        assert await client.step(2) == b"l-1/e0.1 STEP 1"


@looped
async def test_an_engine_is_given_up_once() -> None:
    """REPLACE asks for another engine, once for each generation, and a stale one asks for nothing."""
    async with relay_house() as house, house.client() as client:
        await client.hello()
        await client.give_up(generation=7)
        await client.give_up(why="stuck in a menu")
        await client.give_up(why="stuck in a menu")
        await client.step(1)
        assert house.directory.told == ["unwanted l-1/e0.1: stuck in a menu"]


@looped
async def test_an_engine_that_serves_another_lease_is_lost_to_the_former_at_once() -> None:
    """With engines that are used again, a client of the former lease can step nobody else's game, however late it is told."""
    async with relay_house(l_1=1, l_2=1) as house, house.client() as former:
        await former.hello()
        await former.step(1)
        shared = house.directory.standings[LEASE].seats[0]
        seats = (house.directory.standings["l-2"].seats[0],)
        house.directory.standings["l-2"] = house.directory.standings["l-2"].__class__(
            LeaseState.ACTIVE,
            None,
            2,
            "main",
            tuple(seat.__class__("l-2", 0, 1, shared.engine_id, shared.address, "main") for seat in seats),
        )
        async with house.client("l-2") as client:
            await client.hello("session-2")
            await client.step(1)
            assert (await former.read(Kind.LANE)).code == 0
            await former.call(2)
            assert (await former.fault())[:2] == (2, Status.UNAVAILABLE)
        assert house.engines.steps["l-1/e0.1"] == 2


# ---------------------------------------------------------------- leases and relays that end


@looped
async def test_the_end_of_a_lease_ends_its_calls_and_its_connection() -> None:
    """What is in flight ends UNAVAILABLE with the reason; then the client is told not to come back, and refused if it does."""
    async with relay_house() as house, house.client() as client:
        await client.hello()
        house.engines.shut.add("l-1/e0.1")
        await client.call(1)
        await until(lambda: house.engines.calls)
        house.directory.change(LEASE, state=LeaseState.EXPIRED, because="nobody renewed it for 60 s")
        await house.relay.catch_up()
        number, status, text = await client.fault()
        assert (number, status) == (1, Status.UNAVAILABLE)
        assert text == "Lease l-1 has ended: nobody renewed it for 60 s."
        bye = await client.read(Kind.BYE)
        assert (bye.code, bye.text()) == (Bye.LEASE_ENDED, text)
        with pytest.raises(ConnectionClosed):
            await client.read()
        assert house.engines.kept == frozenset()


@looped
async def test_a_stop_lets_calls_end_and_says_to_come_back() -> None:
    """The call in flight is answered; one that comes then is not run, and its client hears STOPPING."""
    async with relay_house() as house, house.client() as client:
        await client.hello()
        house.engines.shut.add("l-1/e0.1")
        await client.call(1)
        await until(lambda: house.engines.calls)
        stopping = asyncio.create_task(house.relay.stop())
        await asyncio.sleep(0.05)
        await client.call(2)
        house.engines.open("l-1/e0.1")
        assert await client.answer() == (1, b"l-1/e0.1 STEP 1")
        assert (await client.read(Kind.BYE)).code == Bye.STOPPING
        await stopping
        assert len(house.engines.calls) == 1


@looped
async def test_a_stop_is_bounded_and_tells_what_is_unknown() -> None:
    """A call that does not end in time gets a fault before the goodbye, so what is unanswered then was never run."""
    async with relay_house(drain_s=0.2) as house, house.client() as client:
        await client.hello()
        house.engines.shut.add("l-1/e0.1")
        await client.call(1)
        await until(lambda: house.engines.calls)
        began = time.monotonic()
        await house.relay.stop()
        assert time.monotonic() - began < 5
        number, status, text = await client.fault()
        assert (number, status) == (1, Status.UNAVAILABLE)
        assert "outcome" in text
        assert (await client.read(Kind.BYE)).code == Bye.STOPPING


@looped
async def test_a_new_relay_knows_the_lanes_and_another_epoch() -> None:
    """After a relay died idle lanes go on with the next one; nothing of the former's memory is claimed."""
    async with relay_house() as house:
        async with house.client() as client:
            epoch = (await client.hello()).epoch
            await client.step(7)
        await house.relay.stop()
        await house.start()
        async with house.client() as client:
            welcome = await client.hello(epoch=epoch)
            assert (welcome.resumed, welcome.epoch == epoch, welcome.lanes[0].ran) == (False, False, 0)
            assert await client.step(8) == b"l-1/e0.1 STEP 2"


@looped
async def test_what_lanes_did_is_written_down() -> None:
    """Steps, bytes and times are recorded by lane, with the last ones when the lease ends; and that it was used at all."""
    async with relay_house() as house, house.client() as client:
        house.engines.reply_bytes = 50_000
        await client.hello()
        for seq in range(1, 6):
            await client.step(seq)
        assert house.directory.seen == [LEASE]
        await house.relay.record()
        assert house.directory.active[LEASE] == 1
        await client.step(6)
        house.directory.change(LEASE, state=LeaseState.RELEASED, because="its holder released it")
        await house.relay.catch_up()
        meter = house.directory.meters[LEASE, 0]
        assert (meter.steps, meter.raw_bytes) == (6, 300_000)
        assert 0 < meter.wire_bytes < 10_000
        assert meter.engine_s > 0
