"""One lane by itself, without a connection."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from client_sdk.wire import Frame, Kind, Method, Status
from orchestrator.relay.lane import Lane, Result, Seat
from tests.support.relay import FakeDirectory, FakeEngines, looped, until

SEAT = Seat("l-1", 0, 1, "e1", "127.0.0.1:1", "main")


class Desk:
    """A lane with its engine, and what it delivered."""

    def __init__(self) -> None:
        self.engines, self.trouble, self.delivered = FakeEngines(), FakeDirectory(), list[Result]()
        self.lane = Lane(SEAT, call_engine=self.engines, trouble=self.trouble, deliver=self.delivered.append)

    def call(self, seq: int, method: Method = Method.STEP, *, generation: int = 1) -> None:
        """A CALL arrives."""
        self.lane.call(Frame(Kind.CALL, method, 0, generation, seq, memoryview(b"a")))

    async def played(self, seq: int, method: Method = Method.STEP, *, generation: int = 1) -> Result:
        """A CALL and what it came to."""
        count = len(self.delivered)
        self.call(seq, method, generation=generation)
        await until(lambda: len(self.delivered) > count)
        return self.delivered[-1]


@looped
async def test_the_first_reply_of_a_game_is_kept_for_pictures() -> None:
    """The last reply to each method since EnvInit is there for whoever wants to see the game."""
    desk = Desk()
    await desk.played(1, Method.ENV_INIT)
    await desk.played(2, Method.RESET)
    await desk.played(3)
    assert {method.name for method in desk.lane.shown} == {"ENV_INIT", "RESET", "STEP"}
    assert desk.lane.env_init == b"a"
    await desk.played(4, Method.ENV_INIT)
    assert set(desk.lane.shown) == {Method.ENV_INIT}


@looped
async def test_an_env_init_that_fails_makes_no_game() -> None:
    """A fresh engine whose EnvInit failed takes no step, and may be asked again."""
    desk = Desk()
    desk.lane.reseat(replace(SEAT, generation=2, engine_id="e2"))
    desk.engines.outcomes["e2"] = (await desk.played(9)).outcome  # any fault will do
    assert (await desk.played(10, Method.ENV_INIT, generation=2)).outcome.reply is None
    assert (await desk.played(11, generation=2)).outcome.status == Status.FAILED_PRECONDITION
    assert (await desk.played(12, Method.ENV_INIT, generation=2)).outcome.reply is not None
    assert (await desk.played(13, generation=2)).outcome.reply is not None


@looped
async def test_a_late_end_of_an_old_engines_call_changes_nothing() -> None:
    """What an engine answers after it was replaced is not taken for the fresh one's."""
    desk = Desk()
    desk.engines.shut.add("e1")
    desk.call(1, Method.ENV_INIT)
    await until(lambda: desk.engines.calls)
    desk.lane.reseat(replace(SEAT, generation=2, engine_id="e2", lost_because="it died"))
    assert desk.delivered[-1].outcome.status == Status.UNAVAILABLE
    desk.engines.open("e1")
    for _ in range(20):
        await asyncio.sleep(0)
    assert desk.lane.fresh
    assert len(desk.delivered) == 1


@looped
async def test_the_words_for_a_dead_engine_are_waited_for() -> None:
    """When the store empties the slot while the reason is being found out, the call keeps the better text."""
    desk = Desk()
    found = asyncio.Event()

    async def slowly(seat: Seat, text: str) -> str:
        await found.wait()
        return "The engine died: out of memory."

    desk.trouble.died = slowly  # type: ignore[method-assign]
    desk.engines.outcomes["e1"] = (await desk.played(1)).outcome._replace(reply=None, status=Status.UNAVAILABLE)
    desk.call(2)
    await until(lambda: len(desk.engines.calls) == 2)
    desk.lane.reseat(replace(SEAT, engine_id=None, address=None, lost_because="it vanished"))
    desk.lane.reseat(replace(SEAT, generation=2, engine_id="e2", lost_because="it vanished"))
    assert len(desk.delivered) == 1
    found.set()
    await until(lambda: len(desk.delivered) == 2)
    assert desk.delivered[-1].outcome.text == "The engine died: out of memory."
    assert desk.lane.info().fresh


@looped
async def test_closing_an_engine_that_breaks_off_is_no_trouble() -> None:
    """An engine may end at Close: nobody reports it as dead for that."""
    desk = Desk()
    fault = (await desk.played(1)).outcome._replace(reply=None, status=Status.UNAVAILABLE)
    desk.engines.outcomes["e1"] = fault
    await desk.played(2, Method.SHUTDOWN)
    assert desk.trouble.told == []


@looped
async def test_a_seat_that_is_as_before_is_no_news() -> None:
    """Only a new generation, or an engine that came or went, is told to the client."""
    desk = Desk()
    assert not desk.lane.reseat(SEAT)
    assert not desk.lane.reseat(replace(SEAT, lost_because="long ago"))
    assert desk.lane.reseat(replace(SEAT, engine_id=None, address=None))
    assert desk.lane.reseat(replace(SEAT, engine_id="e2", generation=2))
