"""When heartbeats are sent, and what their outcome means: with a clock of the test's own."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from client_sdk import (
    ConnectionFault,
    CornermanError,
    NotAuthenticated,
    NotFound,
    Refused,
    Unavailable,
    VersionMismatch,
)
from client_sdk._renewing import Failing, Lost, Renewed, Renewing
from client_sdk.models import Lease, LeaseState

TTL_S = 120.0


class ScriptedHost:
    """Answers heartbeats as scripted; each one takes ``takes_s`` of a clock that moves only here."""

    def __init__(self, *, takes_s: float = 0.0) -> None:
        self.clock = 1000.0
        self.takes_s = takes_s
        self.fault: CornermanError | None = None
        self.state = LeaseState.ACTIVE
        self.renewing = Renewing(self._renew, ttl_s=TTL_S, now=lambda: self.clock, jitter=lambda: 0.5)

    def _renew(self, timeout_s: float) -> Lease:
        self.clock += self.takes_s
        if self.fault is not None:
            raise self.fault
        now = datetime.now(timezone.utc)
        return Lease(
            id="l",
            state=self.state,
            pool="p",
            holder="h",
            labels={},
            note="",
            envs_wanted=1,
            created_at=now,
            expires_at=now,
            ttl_s=TTL_S,
            queue_position=None,
            ended_because="it is over" if self.state is not LeaseState.ACTIVE else None,
            version=1,
            envs=[],
        )


def test_three_heartbeats_fit_into_a_ttl() -> None:
    """A heartbeat is due a third of the ttl after the last one was sent."""
    host = ScriptedHost(takes_s=2.0)
    assert host.renewing.due == 1000 + TTL_S / 3
    host.clock = host.renewing.due
    sent = host.clock
    assert isinstance(host.renewing.beat(), Renewed)
    assert host.renewing.due == sent + TTL_S / 3


@pytest.mark.parametrize(
    "fault", [ConnectionFault("no"), Unavailable("no"), VersionMismatch("no"), NotAuthenticated("no")]
)
def test_a_failure_is_tried_again_soon_and_then_less_often(fault: CornermanError) -> None:
    """After any failure it is tried again soon, many times within one ttl, with growing pauses."""
    host = ScriptedHost()
    host.fault = fault
    host.clock = host.renewing.due
    pauses = []
    while host.clock < 1000 + TTL_S:
        outcome = host.renewing.beat()
        assert isinstance(outcome, Failing)
        assert not outcome.overdue
        pauses.append(host.renewing.due - host.clock)
        host.clock = host.renewing.due
    assert pauses[:3] == [0.5, 1.0, 2.0]
    assert max(pauses) <= TTL_S / 12
    assert len(pauses) > 10


def test_unreachable_host_is_never_given_up() -> None:
    """A host that was away for a day may still know the lease: only its own word ends it."""
    host = ScriptedHost()
    host.fault = ConnectionFault("away")
    silences = []
    for _ in range(20_000):
        host.clock = host.renewing.due
        outcome = host.renewing.beat()
        assert isinstance(outcome, Failing)
        assert outcome.overdue is (outcome.silent_s >= TTL_S)
        silences.append(outcome.silent_s)
    assert silences[-1] > 86_400
    host.fault = None
    assert isinstance(host.renewing.beat(), Renewed)


@pytest.mark.parametrize("fault", [NotFound("none", status=404), Refused("ended", status=410, slug="lease-ended")])
def test_the_daemons_word_ends_it(fault: CornermanError) -> None:
    """When the daemon says that the lease is over, it is lost at once, with its reason."""
    host = ScriptedHost()
    host.fault = fault
    assert host.renewing.beat() == Lost(str(fault))


def test_an_ended_lease_in_the_answer_ends_it() -> None:
    """An answer that shows an ended lease is such a word too."""
    host = ScriptedHost()
    host.state = LeaseState.EXPIRED
    assert host.renewing.beat() == Lost("it is over")


def test_refused_token_is_tried_for_a_ttl() -> None:
    """A token that is refused for a whole ttl cannot have kept the lease alive."""
    host = ScriptedHost()
    host.fault = NotAuthenticated("not known", status=401)
    assert isinstance(host.renewing.beat(), Failing)
    host.clock += TTL_S
    assert host.renewing.beat() == Lost("not known")


def test_asked_pause_is_kept_but_not_beyond_reason() -> None:
    """Retry-After is honoured as far as the lease allows."""
    host = ScriptedHost()
    host.fault = Unavailable("busy", status=503, retry_after_s=5)
    host.renewing.beat()
    assert host.renewing.due == host.clock + 5
    host.fault = Unavailable("busy", status=503, retry_after_s=9999)
    host.renewing.beat()
    assert host.renewing.due == host.clock + TTL_S / 6
