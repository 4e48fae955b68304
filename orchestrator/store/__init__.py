"""The store: SQLite in WAL mode, plain SQL. ``database`` opens and locks it, the other modules are the statements by subject."""
