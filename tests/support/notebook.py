"""A real Jupyter kernel, run cell by cell, and whole notebooks."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import KernelManager

CELL_S = 90.0


@dataclass
class Output:
    """What a cell showed."""

    text: str = ""
    error: str = ""
    html: list[str] = field(default_factory=list)
    pictures: int = 0


class Notebook:
    """A kernel, run cell by cell."""

    def __init__(self, url: str, folder: Path, *, cell_s: float = CELL_S) -> None:
        self._cell_s = cell_s
        self.manager = KernelManager()
        self.manager.start_kernel(env={**os.environ, "CORNERMAN_URL": url}, cwd=str(folder))
        self.client: Any = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def begin(self, code: str) -> str:
        """Start a cell and return its message's id."""
        return str(self.client.execute(code))

    def finish(self, cell: str, *, seen: Callable[[Output], object] = lambda output: None) -> Output:
        """What the cell showed, when it is done; ``seen`` is called with what it has shown so far."""
        output = Output()
        deadline = time.monotonic() + self._cell_s
        while time.monotonic() < deadline:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != cell:
                continue
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    output.text += content["text"]
                case "error":
                    output.error = f"{content['ename']}: {content['evalue']}"
                case "execute_result" | "display_data":
                    output.html += [content["data"]["text/html"]] if "text/html" in content["data"] else []
                    output.pictures += "image/png" in content["data"]
                case "status" if content["execution_state"] == "idle":
                    return output
            seen(output)
        pytest.fail(f"the cell did not end within {self._cell_s:g} s: {output}")

    def run(self, code: str) -> Output:
        """Run a cell to its end."""
        return self.finish(self.begin(code))

    def run_file(self, path: Path, parameters: Mapping[str, object]) -> list[Output]:
        """Run all cells of a notebook but those tagged ``install``; ``parameters`` follow the cell tagged so."""
        outputs = []
        for cell in nbformat.read(path, as_version=4).cells:  # type: ignore[no-untyped-call]
            tags = cell.metadata.get("tags", [])
            if cell.cell_type != "code" or "install" in tags:
                continue
            code = cell.source
            if "parameters" in tags:
                code += "\n" + "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
            outputs.append(self.run(code))
            assert not outputs[-1].error, f"{cell.id} of {path.name}: {outputs[-1]}"
        return outputs

    def close(self) -> None:
        """End the kernel, if it is still there."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=not self.manager.is_alive())
        self.manager.cleanup_resources()
        self.manager.context.destroy()
