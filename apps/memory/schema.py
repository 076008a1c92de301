"""The tables of an agent's memory: all migrations of their schema."""

from __future__ import annotations

import hashlib

from edge.apps.store.database import Migration
from edge.apps.store.lexical import LexicalIndex
from edge.apps.store.rows import ROW_SUM
from edge.ivf.index import VectorIndex

TEXT_INDEX = "memories_fts"

ACTIONS = 1 << 48
"""Added to an action's id, this gives the id of its vector. Memories and actions share one vector index."""

_MEMORIES = f"""
CREATE TABLE memories (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- what the text and vector indexes know a memory by; never used twice
    uuid TEXT NOT NULL UNIQUE,             -- what callers know it by
    text TEXT NOT NULL,
    hash TEXT NOT NULL,
    user_id TEXT, agent_id TEXT, run_id TEXT, actor_id TEXT, role TEXT,
    metadata TEXT NOT NULL,                -- a JSON object
    importance REAL,
    timestamp TEXT,                        -- when what it tells was said or happened
    expiration_date TEXT,                  -- the last day on which it is shown
    forgotten_at TEXT,
    pinned INTEGER NOT NULL,
    follows INTEGER REFERENCES memories(id) ON DELETE SET NULL,  -- the turn before, where it is one of a conversation
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    local_timestamp TEXT,                  -- timestamp in the time zone it was given in, if not UTC
    valid_from TEXT, valid_until TEXT,     -- from when it holds, and until when, if that is known
    superseded_by TEXT,                    -- uuid of the memory that takes its place
    checksum BLOB,
    conversation INTEGER                   -- id of its first turn, unless it is that one
);
CREATE INDEX memories_scope ON memories(user_id, agent_id, run_id, forgotten_at, pinned, expiration_date);
CREATE INDEX memories_agent ON memories(agent_id, forgotten_at, pinned, expiration_date) WHERE agent_id IS NOT NULL;
CREATE INDEX memories_run ON memories(run_id, forgotten_at, pinned, expiration_date) WHERE run_id IS NOT NULL;
CREATE INDEX memories_turns ON memories(user_id, agent_id, run_id);  -- and, as in every index, in the order of id
CREATE INDEX memories_hash ON memories(hash, user_id, agent_id, run_id, timestamp);  -- the latest of a text first
CREATE INDEX memories_follows ON memories(follows) WHERE follows IS NOT NULL;
CREATE INDEX memories_until ON memories(valid_until) WHERE valid_until IS NOT NULL;
CREATE INDEX memories_since ON memories(valid_from) WHERE valid_from IS NOT NULL;
CREATE INDEX memories_superseded ON memories(superseded_by) WHERE superseded_by IS NOT NULL;
CREATE INDEX memories_conversation ON memories(conversation) WHERE conversation IS NOT NULL;
CREATE TABLE history (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    memory_id TEXT NOT NULL,               -- outlives the memory
    old_memory TEXT, new_memory TEXT,
    event TEXT NOT NULL,
    created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
    is_deleted INTEGER NOT NULL,
    actor_id TEXT, role TEXT, user_id TEXT, agent_id TEXT, run_id TEXT,
    checksum BLOB
);
CREATE INDEX history_memory ON history(memory_id);
CREATE TABLE links (
    memory INTEGER NOT NULL REFERENCES memories(id) ON DELETE CASCADE,
    earlier INTEGER NOT NULL REFERENCES memories(id) ON DELETE CASCADE,
    similarity REAL NOT NULL,              -- cosine; 1 for the same text
    PRIMARY KEY (memory, earlier)
) WITHOUT ROWID;
CREATE INDEX links_earlier ON links(earlier);
CREATE TABLE actions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uuid TEXT NOT NULL UNIQUE,
    task TEXT NOT NULL, state TEXT NOT NULL,
    trajectory TEXT NOT NULL,              -- JSON
    user_id TEXT, agent_id TEXT, run_id TEXT,
    successes INTEGER NOT NULL, failures INTEGER NOT NULL,
    created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
    key TEXT NOT NULL DEFAULT '',          -- see `action_key`
    checksum BLOB
);
CREATE INDEX actions_scope ON actions(user_id, agent_id, run_id);
CREATE INDEX actions_key ON actions(key);
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO settings VALUES ('generation', '0');
{LexicalIndex.create(TEXT_INDEX)}"""


PROVED = {
    "memories": (
        "uuid", "text", "hash", "user_id", "agent_id", "run_id", "actor_id", "role", "metadata", "importance",
        "timestamp", "local_timestamp", "expiration_date", "forgotten_at", "pinned", "created_at", "updated_at",
        "valid_from", "valid_until", "superseded_by",
    ),
    "history": (
        "memory_id", "old_memory", "new_memory", "event", "created_at", "updated_at", "is_deleted", "actor_id", "role",
        "user_id", "agent_id", "run_id",
    ),
    "actions": (
        "uuid", "task", "state", "trajectory", "successes", "failures", "created_at", "updated_at", "key", "user_id",
        "agent_id", "run_id",
    ),
}  # fmt: skip
"""The columns of each table that its rows' checksums cover, in this order."""

SEAL = {
    table: f"UPDATE {table} SET checksum = {ROW_SUM}('{table}', {', '.join(columns)})"
    for table, columns in PROVED.items()
}
"""For each table, the statement that sets the checksums of its rows."""

CONVERSATIONS = """
WITH RECURSIVE said(id, first) AS (
    SELECT id, id FROM memories WHERE follows IS NULL
    UNION ALL SELECT memories.id, said.first FROM said JOIN memories ON memories.follows = said.id
) UPDATE memories SET conversation = said.first FROM said WHERE said.id = memories.id AND said.first <> said.id;
"""
"""Sets the conversation of every turn from the turns that follow one another."""

_UNRELEASED = 12
"""Number of steps before the first release, see `Migration`."""


def migrations() -> list[Migration]:
    """The migrations of the schema, in the order they were made. New ones of either part must be added at the end."""
    vectors, *later = VectorIndex.migrations()
    return [*[None] * _UNRELEASED, f"{_MEMORIES}{vectors}", *later]


def action_text(task: str, state: str) -> str:
    """The text of an action that is embedded and ranked."""
    return f"{task}\n{state}" if state else task


def action_key(task: str, state: str) -> str:
    """A hash for finding an action by its task and state. Equal hashes must still be verified by comparing the
    texts."""
    return hashlib.md5(f"{task}\n{state}".encode(), usedforsecurity=False).hexdigest()
