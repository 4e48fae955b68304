"""What can happen to an engine, in every state."""

from __future__ import annotations

import pytest

from orchestrator.errors import InvalidTransition
from orchestrator.model import (
    Died,
    EngineState,
    Granted,
    Happening,
    ProbePassed,
    Removed,
    Retired,
    Returned,
    transition,
)
from tests.support.core import START, an_engine

EVENTS: dict[str, Happening] = {
    "answers": ProbePassed(),
    "granted": Granted("l1", 2),
    "returned": Returned(),
    "retired": Retired("enough of it"),
    "died": Died("exit code 1"),
    "removed": Removed(),
}
TABLE = """
           answers   granted  returned  retired   died    removed
starting   ready     -        -         retiring  failed  -
ready      -         leased   -         retiring  failed  -
leased     -         -        ready     retiring  failed  -
retiring   -         -        -         =         =       gone
failed     -         -        -         =         =       gone
gone       -         -        -         =         =       -
"""


def _cases() -> list[tuple[str, str, str]]:
    head, *lines = (line.split() for line in TABLE.strip().splitlines())
    return [(state, event, after) for state, *afters in lines for event, after in zip(head, afters, strict=True)]


@pytest.mark.parametrize(("state", "event", "after"), _cases())
def test_every_event_in_every_state_is_decided(state: str, event: str, after: str) -> None:
    """An event leads to the one state the table says, changes nothing (=), or is refused as a fault of ours (-)."""
    engine = an_engine(1, EngineState(state))
    if after == "-":
        with pytest.raises(InvalidTransition):
            transition(engine, EVENTS[event], START + 5)
    elif after == "=":
        assert transition(engine, EVENTS[event], START + 5) is engine
    else:
        changed = transition(engine, EVENTS[event], START + 5)
        assert (changed.state, changed.state_since) == (EngineState(after), START + 5)


@pytest.mark.parametrize("state", list(EngineState))
@pytest.mark.parametrize("event", [Retired("r"), Died("d")])
def test_to_get_rid_of_an_engine_is_legal_in_every_state(state: EngineState, event: Happening) -> None:
    """Report 16: whatever an engine is doing it can be got rid of, and then it belongs to nobody."""
    after = transition(an_engine(1, state), event, START)
    assert after.state in (EngineState.RETIRING, EngineState.FAILED, EngineState.GONE)
    assert state in (EngineState.RETIRING, EngineState.FAILED, EngineState.GONE) or after.lease_id is None


def test_an_engine_that_is_granted_knows_its_slot_and_counts_the_use() -> None:
    """A leased engine says whose it is, and how many leases it has served."""
    after = transition(an_engine(1), Granted("l7", 3), START)
    assert (after.lease_id, after.rank, after.uses) == ("l7", 3, 1)


def test_an_engine_that_is_returned_is_probed_anew() -> None:
    """An engine that may serve another lease belongs to nobody, and has to show that it still answers."""
    after = transition(an_engine(1, EngineState.LEASED), Returned(), START + 9)
    assert (after.lease_id, after.rank, after.ready_at, after.probed_at) == (None, None, START + 9, None)


def test_why_an_engine_went_stays_with_it() -> None:
    """The reason of the first event that ended it is kept."""
    failed = transition(an_engine(1), Died("out of memory"), START)
    assert transition(failed, Retired("its lease ended"), START).reason == "out of memory"
    assert transition(failed, Removed(), START).reason == "out of memory"
