"""The database's schema: script ``NNNN.sql`` leads from version NNNN - 1 to version NNNN; one that was released never changes."""
