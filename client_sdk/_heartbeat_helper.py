"""The process that keeps a lease alive, whatever the notebook's kernel is doing.

Its standard input brings one line of JSON (``Orders``), and then nothing but its end: the kernel is gone, or hands the
release over. Its standard output carries one line of JSON for each thing the kernel should know (``Report``).
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from typing import Literal

from pydantic import BaseModel, ConfigDict, SecretStr, field_serializer

from client_sdk import models
from client_sdk._api import Api
from client_sdk._errors import ConnectionFault, CornermanError, Refused, Unavailable
from client_sdk._http import Session
from client_sdk._renewing import RENEWALS_PER_TTL, Failing, Lost, Outcome, Renewed, Renewing
from client_sdk._url import Target

POLL_S = 1.0
_STDIN, _STDOUT = 0, 1


class Orders(BaseModel):
    """Which lease to keep alive, for whom; it holds the token, so it only ever goes through the pipe."""

    model_config = ConfigDict(frozen=True)

    parent_pid: int
    lease_id: str
    ttl_s: float
    host: str
    port: int
    token: SecretStr
    tls: bool
    ca_sha256: str | None
    ca_pem: str | None
    due_at: float  # when the first heartbeat is due, on the monotonic clock that all processes of a machine share

    @field_serializer("token", when_used="json")
    def _reveal(self, token: SecretStr) -> str:
        return token.get_secret_value()

    @classmethod
    def to_keep(cls, lease: models.Lease, *, session: Session) -> Orders:
        """The orders to keep ``lease``, just renewed, for this process."""
        target = session.target
        return cls(
            parent_pid=os.getpid(),
            lease_id=lease.id,
            ttl_s=lease.ttl_s,
            host=target.host,
            port=target.port,
            token=target.token,
            tls=target.tls,
            ca_sha256=target.ca_sha256,
            ca_pem=session.ca_pem,
            due_at=time.monotonic() + lease.ttl_s / RENEWALS_PER_TTL,
        )

    @property
    def target(self) -> Target:
        """The host, as the session wants it."""
        return Target(self.host, self.port, self.token, self.ca_sha256, self.tls)


class Report(BaseModel):
    """What the helper tells the kernel; the latest one says everything that the earlier ones said."""

    event: Literal["started", "renewed", "failing", "lost", "opened", "closed"]  # the last two come from a tunnel
    lease: models.Lease | None = None
    text: str = ""
    overdue: bool = False
    addresses: list[str] = []  # opened: where the stock client finds its engines, by rank
    untrusted: bool = False  # closed: who answers is not the host that is meant
    opening: int | None = None  # opened, closed: which one

    @classmethod
    def of(cls, outcome: Outcome) -> Report:
        """What there is to say of a heartbeat."""
        match outcome:
            case Renewed(lease):
                return cls(event="renewed", lease=lease)
            case Failing(text, _, overdue):
                return cls(event="failing", text=text, overdue=overdue)
            case Lost(reason):
                return cls(event="lost", text=reason)


class Outbox:
    """Writes reports without ever waiting for the reader: a stopped kernel must not stop its heartbeats.

    While the pipe is full only the latest report is kept.
    """

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._begun = b""
        self._next = b""

    def put(self, report: Report) -> None:
        """Queue ``report`` in place of one that has not begun to leave."""
        self._next = report.model_dump_json().encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Write as much as the pipe takes; raises BrokenPipeError when nobody is left to read."""
        while self._begun or self._next:
            if not self._begun:
                self._begun, self._next = self._next, b""
            try:
                written = os.write(self._fd, self._begun)
            except BlockingIOError:
                return
            self._begun = self._begun[written:]


class Kernel:
    """The process that the lease is kept for."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def gone(self, *, within_s: float) -> bool:
        """Wait up to ``within_s`` for the kernel's end.

        Children that the kernel forked hold the pipe open after its death, hence the look at the parent's id.
        """
        deadline = time.monotonic() + within_s
        while True:
            if os.getppid() != self._pid:
                return True
            left_s = max(0.0, deadline - time.monotonic())
            readable, _, _ = select.select([_STDIN], [], [], min(POLL_S, left_s))
            if readable and not os.read(_STDIN, 4096):
                return True
            if left_s <= POLL_S:
                return os.getppid() != self._pid


def keep_alive(orders: Orders, api: Api, kernel: Kernel, outbox: Outbox) -> None:
    """Renew the lease until it is lost, or until the kernel is gone: then release it."""
    renewing = Renewing.of(api, orders.lease_id, ttl_s=orders.ttl_s)
    renewing.due = min(renewing.due, orders.due_at)
    try:
        outbox.put(Report(event="started"))
        while not kernel.gone(within_s=renewing.due - time.monotonic()):
            outcome = renewing.beat()
            outbox.put(Report.of(outcome))
            if isinstance(outcome, Lost):
                return
    except BrokenPipeError:
        pass  # nobody reads any more: the kernel is gone
    release(orders, api, patience_s=orders.ttl_s)


def release(orders: Orders, api: Api, *, patience_s: float) -> None:
    """Release the lease, trying for ``patience_s``: after that it has expired anyway."""
    deadline = time.monotonic() + patience_s
    pause_s = 0.5
    while True:
        try:
            api.release(orders.lease_id, timeout_s=10.0, patient=False)
            return
        except (ConnectionFault, Unavailable):
            if time.monotonic() + pause_s > deadline:
                return
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 10.0)
        except Refused:
            return  # it has ended already, or is not ours to end


def _read_orders() -> Orders | None:
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(_STDIN, 65536)
        if not chunk:
            return None
        line += chunk
    return Orders.model_validate_json(line)


def main() -> int:
    """Run the helper; its exit code means nothing, because all that matters has been reported or is over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders = _read_orders()
    if orders is None:
        return 0
    api = Api(Session(orders.target, ca_pem=orders.ca_pem))
    try:
        keep_alive(orders, api, Kernel(orders.parent_pid), Outbox(_STDOUT))
    except CornermanError as fault:
        print(fault, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
