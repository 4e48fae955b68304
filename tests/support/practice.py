"""Practice engines as child processes of a test."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.waiting import wait_until


@dataclass
class Engine:
    """A practice engine that runs; `lines` is what it has written so far."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        """host:port, known once it listens."""
        return next(line for line in self.lines if line.startswith("Server listening on ")).split()[-1]

    def says(self, text: str, timeout_s: float = 20) -> str:
        """The first line that contains the text, waited for."""
        wait_until(lambda: any(text in line for line in self.lines), timeout_s, what=f"the engine saying {text!r}")
        return next(line for line in self.lines if text in line)


@contextmanager
def practice_engine(
    *arguments: str, environ: Mapping[str, str] | None = None, listens: bool = True
) -> Iterator[Engine]:
    """A practice engine on a free port of 127.0.0.1, as fast as it can unless told otherwise, ended with the block."""
    command = [sys.executable, "-m", "practice_engine", "--host=127.0.0.1", "--port=0", "--exit-on-stdin-eof"]
    if not any(argument.startswith("--fps") for argument in arguments):
        command.append("--fps=unlimited")
    process = subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environ or {})},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    engine = Engine(process)
    output = process.stdout
    reader = threading.Thread(target=lambda: engine.lines.extend(line.rstrip("\n") for line in output), daemon=True)
    reader.start()
    try:
        if listens:
            engine.says("Server listening on ")
        yield engine
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(timeout=10)
        output.close()
