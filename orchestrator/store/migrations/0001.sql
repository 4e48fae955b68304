-- The whole state of a daemon. Times are seconds since the epoch, UTC. JSON columns end in _json.

CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE principals (
    name        TEXT PRIMARY KEY,
    max_engines INTEGER,              -- NULL: no limit
    max_pending INTEGER,
    created_at  REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tokens (
    id           TEXT PRIMARY KEY,
    principal    TEXT NOT NULL REFERENCES principals (name) ON DELETE CASCADE,
    scope        TEXT NOT NULL CHECK (scope IN ('admin', 'lease', 'read')),
    sha256       TEXT NOT NULL UNIQUE, -- of the token; the token itself is nowhere
    note         TEXT NOT NULL DEFAULT '',
    created_at   REAL NOT NULL,
    last_used_at REAL
) STRICT, WITHOUT ROWID;

-- A pool's settings that change while running, and what is wrong with it.
CREATE TABLE pools (
    name          TEXT PRIMARY KEY,
    min_ready     INTEGER NOT NULL,
    max_engines   INTEGER NOT NULL,
    image         TEXT NOT NULL,      -- as configured or patched
    pinned        TEXT,               -- what it resolved to; NULL until resolved
    paused        INTEGER NOT NULL DEFAULT 0,
    fail_streak   INTEGER NOT NULL DEFAULT 0,
    retry_at      REAL NOT NULL DEFAULT 0,
    fault         TEXT,               -- in words; NULL: nothing is wrong
    fault_at      REAL,
    configured    TEXT NOT NULL       -- what the file said when this row was last set from it
) STRICT, WITHOUT ROWID;

CREATE TABLE leases (
    id            TEXT PRIMARY KEY,
    seq           INTEGER NOT NULL UNIQUE,  -- order of arrival: first come, first served
    state         TEXT NOT NULL CHECK (state IN ('pending', 'active', 'released', 'expired', 'failed')),
    pool          TEXT NOT NULL REFERENCES pools (name),
    holder        TEXT NOT NULL,
    labels_json   TEXT NOT NULL,
    note          TEXT NOT NULL,
    envs_wanted   INTEGER NOT NULL,
    ttl_s         REAL NOT NULL,
    created_at    REAL NOT NULL,
    granted_at    REAL,
    last_call_at  REAL,               -- a call to any of its engines, or its first connection, as the relay saw it
    idle_release_at REAL,             -- announced: it ends then, unless it is used before
    expires_at    REAL NOT NULL,
    ended_at      REAL,
    ended_because TEXT,
    version       INTEGER NOT NULL DEFAULT 1
) STRICT, WITHOUT ROWID;
-- Ended leases are kept for days: what is asked all the time must not look at them.
CREATE INDEX leases_pending ON leases (pool, seq) WHERE state = 'pending';
CREATE INDEX leases_held ON leases (holder, state, envs_wanted) WHERE state IN ('pending', 'active');
CREATE INDEX leases_holder ON leases (holder, seq);

-- One engine; its row is written before the engine host is asked for anything, and goes when nothing is left of it.
CREATE TABLE engines (
    id             TEXT PRIMARY KEY,
    pool           TEXT NOT NULL REFERENCES pools (name),
    runtime        TEXT NOT NULL,        -- where it is, also after the pool was configured to be somewhere else
    state          TEXT NOT NULL CHECK (state IN ('starting', 'ready', 'leased', 'retiring', 'failed', 'gone')),
    state_since    REAL NOT NULL,
    name           TEXT NOT NULL UNIQUE,
    image          TEXT NOT NULL,
    host           TEXT NOT NULL,
    port           INTEGER NOT NULL,
    handle         TEXT,                 -- the runtime's; NULL until created
    created_at     REAL NOT NULL,
    started_at     REAL,
    ready_at       REAL,
    lease_id       TEXT REFERENCES leases (id),
    rank           INTEGER,
    uses           INTEGER NOT NULL DEFAULT 0,
    draining       INTEGER NOT NULL DEFAULT 0,  -- ends with its lease, whatever the pool's policy
    reason         TEXT,
    probe_failures INTEGER NOT NULL DEFAULT 0,
    probed_at      REAL,
    CHECK ((state = 'leased') = (lease_id IS NOT NULL))
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX engines_port ON engines (port) WHERE state <> 'gone';
CREATE UNIQUE INDEX engines_slot ON engines (lease_id, rank);
CREATE INDEX engines_live ON engines (created_at, id) WHERE state <> 'gone';
CREATE INDEX engines_ready ON engines (pool, ready_at, id) WHERE state = 'ready' AND NOT draining;
CREATE INDEX engines_gone ON engines (state_since) WHERE state = 'gone';

-- Slot r of a lease: its generation rises at every engine that steps into it.
CREATE TABLE slots (
    lease_id   TEXT NOT NULL REFERENCES leases (id) ON DELETE CASCADE,
    rank       INTEGER NOT NULL,
    generation INTEGER NOT NULL DEFAULT 0,
    empty_since REAL,                    -- NULL: it has an engine
    lost_json  TEXT NOT NULL DEFAULT '[]', -- when its engines were lost, newest last
    lost_because TEXT,                   -- why the last one was
    PRIMARY KEY (lease_id, rank)
) STRICT, WITHOUT ROWID;
CREATE INDEX slots_empty ON slots (empty_since) WHERE empty_since IS NOT NULL;

-- Goes with its lease, all at once: a foreign key would search the whole table for each lease that is forgotten.
CREATE TABLE idempotency (
    holder      TEXT NOT NULL,
    key         TEXT NOT NULL,
    body_sha256 TEXT NOT NULL,
    lease_id    TEXT NOT NULL,
    created_at  REAL NOT NULL,
    PRIMARY KEY (holder, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE ports (
    port              INTEGER PRIMARY KEY,
    last_used_at      REAL NOT NULL DEFAULT 0,
    quarantined_until REAL NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE events (
    seq       INTEGER PRIMARY KEY,  -- never repeats: the newest is never deleted
    at        REAL NOT NULL,
    kind      TEXT NOT NULL,
    text      TEXT NOT NULL,
    pool      TEXT,
    engine_id TEXT,
    lease_id  TEXT,
    holder    TEXT,               -- whose lease it is about: lease scope sees its own
    actor     TEXT,               -- who did it: a token's principal, or NULL for the daemon
    data_json TEXT NOT NULL DEFAULT '{}'
) STRICT;
CREATE INDEX events_holder ON events (holder, seq);

-- Never fall, also when the events they count are forgotten; pool '' is the whole daemon.
CREATE TABLE counters (name TEXT NOT NULL, pool TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY (name, pool)) STRICT, WITHOUT ROWID;
CREATE TRIGGER events_counted AFTER INSERT ON events BEGIN
    INSERT INTO counters (name, pool, value) VALUES (new.kind, coalesce(new.pool, ''), 1)
    ON CONFLICT (name, pool) DO UPDATE SET value = value + 1;
END;

CREATE TABLE inquiries (
    id            TEXT PRIMARY KEY,
    kind          TEXT NOT NULL,
    question_json TEXT NOT NULL,
    asked_at      REAL NOT NULL,
    answer_json   TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX inquiries_open ON inquiries (asked_at) WHERE answer_json IS NULL;

-- What the lanes of a lease have done, as the relay saw it.
CREATE TABLE meters (
    lease_id    TEXT NOT NULL REFERENCES leases (id) ON DELETE CASCADE,
    rank        INTEGER NOT NULL,
    steps       INTEGER NOT NULL,
    raw_bytes   INTEGER NOT NULL,
    wire_bytes  INTEGER NOT NULL,
    engine_s    REAL NOT NULL,
    queue_s     REAL NOT NULL,
    steps_per_s REAL NOT NULL,        -- between the last two times it was written
    updated_at  REAL NOT NULL,
    PRIMARY KEY (lease_id, rank)
) STRICT, WITHOUT ROWID;
