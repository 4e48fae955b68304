"""Rows to dataclasses and back; the columns of a table are the fields of its class."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import fields

from orchestrator.model import Engine, EngineState, Lease, LeaseState, Slot

ENGINE_COLUMNS = tuple(field.name for field in fields(Engine))
ENGINE = ", ".join(ENGINE_COLUMNS)
"""What to select for ``engine``: by place and not by name, because a tick reads a thousand of them."""

_STATES = {state.value: state for state in EngineState}
_STATE, _DRAINING = ENGINE_COLUMNS.index("state"), ENGINE_COLUMNS.index("draining")


def engine(row: sqlite3.Row) -> Engine:
    """A row of the ``ENGINE`` columns of ``engines``."""
    values = list(row)
    values[_STATE] = _STATES[values[_STATE]]
    values[_DRAINING] = values[_DRAINING] == 1
    return Engine(*values)


def lease(row: sqlite3.Row) -> Lease:
    """A ``leases`` row."""
    labels = row["labels_json"]
    return Lease(
        id=row["id"],
        seq=row["seq"],
        state=LeaseState(row["state"]),
        pool=row["pool"],
        holder=row["holder"],
        envs_wanted=row["envs_wanted"],
        ttl_s=row["ttl_s"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        labels=json.loads(labels) if labels != "{}" else {},
        note=row["note"],
        granted_at=row["granted_at"],
        ended_at=row["ended_at"],
        ended_because=row["ended_because"],
        version=row["version"],
        last_call_at=row["last_call_at"],
        idle_release_at=row["idle_release_at"],
    )


def slot(row: sqlite3.Row) -> Slot:
    """A ``slots`` row."""
    return Slot(
        lease_id=row["lease_id"],
        rank=row["rank"],
        generation=row["generation"],
        empty_since=row["empty_since"],
        lost=tuple(json.loads(row["lost_json"])),
        lost_because=row["lost_because"],
        steps_when_lost=row["steps_when_lost"],
    )
