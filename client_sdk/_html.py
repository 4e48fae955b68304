"""How a lease looks in a notebook."""

from __future__ import annotations

from html import escape

from client_sdk import models


def lease_table(lease: models.Lease, *, lost: str | None = None) -> str:
    """A small table of the lease and its engines; everything in it is escaped."""
    facts = [f"{lease.pool}", f"until {lease.expires_at:%H:%M:%S} UTC" if lease.expires_at else "no end"]
    if lease.queue_position is not None:
        facts = [lease.pool, f"place {lease.queue_position} in the queue for {lease.envs_wanted} engines"]
    if lost or lease.ended_because:
        facts = [lease.pool, lost or lease.ended_because or ""]
    if lease.idle_release_at is not None and lost is None and lease.ended_because is None:
        facts.append(f"unused: ends at {lease.idle_release_at:%H:%M:%S} UTC unless somebody plays")
    if lease.note:
        facts.append(lease.note)
    rows = "".join(
        _row("td", [str(env.rank), env.engine_id or "", env.address or "", env.state.value, str(env.generation)])
        for env in sorted(lease.envs, key=lambda env: env.rank)
    )
    state = "lost" if lost else lease.state.value
    head = _row("th", ["rank", "engine", "address", "state", "generation"])
    return (
        f"<table><caption>Lease <code>{escape(lease.id)}</code>: <b>{escape(state)}</b>, "
        f"{escape(', '.join(facts))}</caption>"
        f"<thead>{head}</thead><tbody>{rows}</tbody></table>"
    )


def _row(cell: str, values: list[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{escape(value)}</{cell}>" for value in values) + "</tr>"
