-- A pool that shall have another image starts engines from the one it has until the other is there.
ALTER TABLE pools ADD COLUMN repin INTEGER NOT NULL DEFAULT 0;          -- 1: `image` has to be looked up; 2: and fetched anew
ALTER TABLE pools ADD COLUMN repin_fault TEXT;                          -- in words, why that failed
ALTER TABLE pools ADD COLUMN repin_retry_at REAL NOT NULL DEFAULT 0;
