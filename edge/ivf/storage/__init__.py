"""The committed state of an index: its tables in SQLite, and its segments on disk."""
