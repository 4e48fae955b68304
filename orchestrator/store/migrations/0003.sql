-- A slot's engine that has played many steps was none that cannot be played: its loss begins the count anew.
ALTER TABLE slots ADD COLUMN steps_when_lost INTEGER NOT NULL DEFAULT 0; -- what the lane's meter showed at the last loss
