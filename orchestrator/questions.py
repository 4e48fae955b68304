"""Answers what the API process asks and only the pool process can know: logs and usage of engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.errors import NotFound, RuntimeFault
from orchestrator.interfaces import Runtime
from orchestrator.model import Engine
from orchestrator.store import engines, inquiries
from orchestrator.store.database import Database

KINDS = ("logs", "stats")
"""What it answers; other questions are for others."""


class Questions:
    """Answers one inquiry at a time; whoever asked waits for the store to change."""

    def __init__(self, database: Database, runtimes: Mapping[str, Runtime]) -> None:
        self._database, self._runtimes = database, runtimes

    def answer(self, inquiry_id: str, kind: str, question: Mapping[str, Any]) -> None:
        """Answer ``kind``: "logs" {engine_id, tail} -> {lines}, "stats" {engine_ids} -> {id: {cpu_percent, memory_bytes}}."""
        if kind == "logs":
            value: Any = {"lines": self._logs(question["engine_id"], int(question["tail"]))}
        else:
            value = {engine_id: self._stats(engine_id) for engine_id in question["engine_ids"]}
        with self._database.write() as db:
            inquiries.answer(db, inquiry_id, value)

    def _find(self, engine_id: str) -> tuple[Engine, Runtime] | None:
        try:
            with self._database.read() as db:
                engine = engines.get(db, engine_id)
        except NotFound:
            return None
        runtime = self._runtimes.get(engine.runtime)
        return (engine, runtime) if runtime else None

    def _logs(self, engine_id: str, tail: int) -> list[str]:
        found = self._find(engine_id)
        if found is None or found[0].handle is None:
            return []
        try:
            return found[1].logs(found[0].handle, tail)
        except RuntimeFault as fault:
            return [f"(its log cannot be read: {fault})"]

    def _stats(self, engine_id: str) -> dict[str, float | int | None]:
        found = self._find(engine_id)
        if found is not None and found[0].handle is not None:
            try:
                stats = found[1].stats(found[0].handle)
                return {"cpu_percent": stats.cpu_percent, "memory_bytes": stats.memory_bytes}
            except RuntimeFault:
                pass
        return {"cpu_percent": None, "memory_bytes": None}
