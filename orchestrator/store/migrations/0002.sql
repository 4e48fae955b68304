-- A pool that shall have another image starts engines from the one it has until the other is there.
ALTER TABLE pools ADD COLUMN repin INTEGER NOT NULL DEFAULT 0;          -- 1: `image` has to be looked up; 2: and fetched anew
ALTER TABLE pools ADD COLUMN repin_fault TEXT;                          -- in words, why that failed
ALTER TABLE pools ADD COLUMN repin_retry_at REAL NOT NULL DEFAULT 0;
-- A slot's engine that has played many steps was none that cannot be played: its loss begins the count anew.
ALTER TABLE slots ADD COLUMN steps_when_lost INTEGER NOT NULL DEFAULT 0; -- what the lane's meter showed at the last loss
