"""Plain tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from client_sdk import models


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """``rows`` under ``head`` in columns, without control characters."""
    lines = [[_plain(cell) for cell in line] for line in (head, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def leases(found: Sequence[models.Lease], *, now: datetime) -> str:
    """One line for each lease."""
    return table(
        ["LEASE", "STATE", "POOL", "HOLDER", "ENVS", "EXPIRES", "NOTE"],
        [
            [
                lease.id,
                lease.state.value if lease.queue_position is None else f"{lease.state.value} #{lease.queue_position}",
                lease.pool,
                lease.holder,
                str(lease.envs_wanted),
                "" if lease.expires_at is None else f"in {_duration((lease.expires_at - now).total_seconds())}",
                lease.note,
            ]
            for lease in found
        ],
    )


def engines(found: Sequence[models.Engine], *, now: datetime) -> str:
    """One line for each engine."""
    return table(
        ["ENGINE", "STATE", "SINCE", "POOL", "ADDRESS", "LEASE", "RANK", *_CARRIED, "CPU", "MEMORY", "REASON"],
        [
            [
                engine.id,
                engine.state.value,
                _duration((now - engine.since).total_seconds()),
                engine.pool,
                f"{engine.host}:{engine.port}",
                engine.lease_id or "",
                "" if engine.rank is None else str(engine.rank),
                *_carried(engine.lane),
                "" if engine.cpu_percent is None else f"{engine.cpu_percent:.0f}%",
                "" if engine.memory_bytes is None else f"{engine.memory_bytes / 2**20:.0f}M",
                engine.reason or "",
            ]
            for engine in found
        ],
    )


_CARRIED = ("STEPS", "STEPS/S", "RATIO")


def _carried(lane: models.LaneStats | None) -> tuple[str, str, str]:
    """What went through the relay: steps, how many a second lately, and how far their bytes shrank."""
    if lane is None:
        return "", "", ""
    return str(lane.steps), f"{lane.steps_per_s:.1f}", "" if lane.ratio is None else f"{lane.ratio:.1f}"


def utc_now() -> datetime:
    """The time now, in UTC."""
    return datetime.now(timezone.utc)


def _duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole}s"
    return f"{whole // 60}m" if whole < 7200 else f"{whole // 3600}h"


def _plain(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
