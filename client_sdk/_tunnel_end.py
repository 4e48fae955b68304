"""The kernel's end of the tunnel: a heartbeat process that carries the lease's steps as well."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import SecretStr

from client_sdk import models
from client_sdk._errors import ConnectionFault, CornermanError, LeaseLost, UntrustedHost
from client_sdk._heartbeat import Heartbeat
from client_sdk._heartbeat_helper import Orders, Report
from client_sdk._opening import Opening, private_folder

OPEN_WITHIN_S = 40.0  # the process says much earlier what is wrong; this is for one that says nothing


class Tunnel(Heartbeat):
    """Keeps one lease alive and, once ``open`` was called, listens for the stock client on this machine.

    If its process dies another takes its place, under the same addresses.
    """

    def __init__(
        self,
        orders: Orders,
        *,
        hear: Callable[[Report], None],
        warn: Callable[[str], None],
        ports: bool = False,
        deadlines_s: Mapping[str, float] | None = None,
    ) -> None:
        self._folder: Path | None = None if ports else private_folder()
        self._deadlines_s = dict(deadlines_s or {})
        self._told = hear
        self._news = threading.Condition()
        self._addresses: list[str] = []
        self._closed: Report | None = None
        self._number = 0  # of the opening that counts
        try:
            super().__init__(orders, hear=self._listen_in, warn=warn, module="client_sdk._tunnel")
        except BaseException:
            self._remove_folder()
            raise

    @property
    def addresses(self) -> list[str]:
        """Where the stock client finds its engines, by rank; empty before ``open``."""
        return list(self._addresses)

    def open(self, relay: models.Relay) -> list[str]:
        """Connect to the relay and listen: the addresses by rank, or the reason why there are none."""
        folder = None if self._folder is None else str(self._folder)
        opening = Opening(url=relay.url, token=SecretStr(relay.token), folder=folder, deadlines_s=self._deadlines_s)
        deadline = time.monotonic() + OPEN_WITHIN_S
        self.tell(opening)
        with self._news:
            while not self._addresses and self._closed is None and time.monotonic() < deadline:
                self._news.wait(deadline - time.monotonic())
            if self._addresses:
                self._more = opening.model_copy(update={"again": True, "ports": self._ports()})
                return self.addresses
            raise self._reason(self._closed)

    def open_again(self) -> None:
        """Connect and listen again under the same addresses, after somebody else had the lanes."""
        if self._more is None:
            return
        with self._news:
            self._closed = others = Report(event="closed", text="Somebody else had the lanes.")
            self._number += 1
        self.tell(self._more.model_copy(update={"number": self._number}))
        deadline = time.monotonic() + OPEN_WITHIN_S
        with self._news:
            while self._closed is others and time.monotonic() < deadline:
                self._news.wait(deadline - time.monotonic())

    def _ports(self) -> tuple[int, ...]:
        return () if self._folder else tuple(int(address.rpartition(":")[2]) for address in self._addresses)

    def _reason(self, closed: Report | None) -> CornermanError:
        if closed is None:
            return ConnectionFault("The tunnel's process says nothing; is this machine very busy?")
        if closed.event == "lost":
            return LeaseLost(self._orders.lease_id, closed.text)
        return (UntrustedHost if closed.untrusted else ConnectionFault)(closed.text)

    def _listen_in(self, report: Report) -> None:
        with self._news:
            if report.opening not in (None, self._number):
                return  # of the opening before, which the lanes were taken from
            if report.event == "opened":
                self._addresses, self._closed = report.addresses, None
            elif report.event in ("closed", "lost"):
                self._closed = report
            self._news.notify_all()
            was_open = bool(self._addresses)
        if report.event != "closed" or was_open:  # what open() raises is not told twice
            self._told(report)

    def _beat_here(self) -> None:
        self._listen_in(Report(event="closed", text="The tunnel cannot run: its process ends again and again."))
        super()._beat_here()

    def stop(self) -> None:
        """End the process; the lease has been released already."""
        super().stop()
        if not self._forked():
            self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
