"""The kernel's end of the heartbeat helper: starts it, hears its reports, and starts it again if it dies."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ValidationError

from client_sdk._api import Api
from client_sdk._errors import HeartbeatFault
from client_sdk._heartbeat_helper import Orders, Report, release
from client_sdk._http import Session
from client_sdk._renewing import Renewing
from client_sdk._url import ENVIRONMENT_NAME

_PACKAGE = Path(__file__).resolve().parent
# Isolated (-I): neither the working directory nor PYTHON* variables nor the user's site may slip modules in. What the
# kernel can import comes after what the interpreter itself finds, and this very copy of client_sdk before everything.
_BOOT = """
import importlib, importlib.util, sys
package, module, *paths = sys.argv[1:]
sys.path += [path for path in paths if path not in sys.path]
spec = importlib.util.spec_from_file_location(
    "client_sdk", package + "/__init__.py", submodule_search_locations=[package])
sys.modules["client_sdk"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["client_sdk"])
sys.exit(importlib.import_module(module).main())
"""
_RESTART_PAUSES_S = (0.0, 0.2, 1.0)  # by the number of early deaths in a row; after those no further one is tried


class Heartbeat:
    """Keeps one lease alive from a process of its own until ``stop`` or ``hand_over``.

    ``hear`` is called with each report, on a thread of this object; ``warn`` with a sentence when the helper fails.
    ``module`` has the helper's ``main``.
    """

    def __init__(
        self,
        orders: Orders,
        *,
        hear: Callable[[Report], None],
        warn: Callable[[str], None],
        module: str = "client_sdk._heartbeat_helper",
    ) -> None:
        self._orders = orders
        self._module = module
        self._more: BaseModel | None = None  # what a helper is told after its orders
        self._telling = threading.RLock()
        self._hear = hear
        self._warn = warn
        self._owner = os.getpid()
        self._over = threading.Event()
        self._handed_over = False
        self._process = self._start(orders)
        self._thread = threading.Thread(target=self._listen, name="cornerman-heartbeat", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The helper's process id."""
        return self._process.pid

    def stop(self) -> None:
        """End the helper; the lease has been released already."""
        if self._forked():
            return
        self._over.set()
        self._process.kill()
        self._join()

    def tell(self, more: BaseModel) -> None:
        """Tell the helper, and any that follows it, something more than its orders."""
        with self._telling:
            self._more = more
            self._write(self._process, more)

    @staticmethod
    def _write(process: subprocess.Popen[bytes], message: BaseModel) -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # its end is noticed where its reports are read
            process.stdin.write(message.model_dump_json().encode() + b"\n")
            process.stdin.flush()

    def hand_over(self) -> None:
        """Let the helper release the lease and end by itself."""
        if self._forked():
            return
        self._handed_over = True
        self._over.set()
        self._hang_up(self._process)

    def _forked(self) -> bool:
        return os.getpid() != self._owner

    def _join(self) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=2.0)

    def _start(self, orders: Orders) -> subprocess.Popen[bytes]:
        if not sys.executable:
            raise HeartbeatFault("There is no Python interpreter to run heartbeats with: sys.executable is empty.")
        paths = [path for path in sys.path if os.path.isabs(path)]
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", _BOOT, str(_PACKAGE), self._module, *paths],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,  # what is not a report is kept as the helper's last words
                env={name: value for name, value in os.environ.items() if name != ENVIRONMENT_NAME},
                start_new_session=True,  # Ctrl-C in the terminal goes to the kernel's group alone
            )
        except OSError as fault:
            raise HeartbeatFault(f"The heartbeat process could not be started: {fault.strerror}.") from fault
        for message in (orders, *([self._more] if self._more is not None else [])):
            self._write(process, message)
        return process

    def _listen(self) -> None:
        deaths = 0
        while True:
            started = time.monotonic()
            last_words, finished = self._read_reports(self._process)
            if finished or self._over.is_set():
                return
            deaths = 0 if time.monotonic() - started > self._orders.ttl_s else deaths + 1
            died = f"The heartbeat process ended unexpectedly ({last_words or 'no reason given'})"
            if deaths >= len(_RESTART_PAUSES_S):
                self._warn(
                    f"{died} once more; heartbeats come from this process itself from now on, so a call that holds "
                    f"the interpreter lock for more than {self._orders.ttl_s:.0f} s loses the lease."
                )
                self._beat_here()
                return
            self._warn(f"{died}; starting another.")
            if not self._restart(pause_s=_RESTART_PAUSES_S[deaths]):
                return

    def _beat_here(self) -> None:
        """Do on this thread what no helper can do."""
        api = Api(Session(self._orders.target, ca_pem=self._orders.ca_pem))
        renewing = Renewing.of(api, self._orders.lease_id, ttl_s=self._orders.ttl_s)
        renewing.due = 0.0
        while not self._over.wait(max(0.0, renewing.due - time.monotonic())):
            report = Report.of(renewing.beat())
            self._hear(report)
            if report.event == "lost":
                return
        if self._handed_over:
            release(self._orders, api, patience_s=self._orders.ttl_s)

    def _restart(self, *, pause_s: float) -> bool:
        """Start another helper, trying until it works or is not needed any more; the new one renews at once."""
        while not self._over.wait(pause_s):
            try:
                with self._telling:
                    self._process = self._start(self._orders.model_copy(update={"due_at": time.monotonic()}))
            except (HeartbeatFault, RuntimeError) as fault:  # RuntimeError: the interpreter is about to end
                self._warn(str(fault))
                pause_s = max(1.0, self._orders.ttl_s / 12)
            else:
                if self._over.is_set():
                    self._hang_up(self._process)
                return True
        return False

    def _read_reports(self, process: subprocess.Popen[bytes]) -> tuple[str, bool]:
        """Hear all reports of ``process`` until it ends: its last words, and whether it had nothing more to do."""
        assert process.stdout is not None
        last_words, finished = "", False
        for line in process.stdout:
            try:
                report = Report.model_validate_json(line)
            except ValidationError:
                last_words = line.decode(errors="replace").strip() or last_words
                continue
            finished = finished or report.event == "lost"
            self._hear(report)
        process.wait()
        self._hang_up(process)
        process.stdout.close()
        return last_words, finished

    @staticmethod
    def _hang_up(process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
