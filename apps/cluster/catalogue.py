"""`Catalogue`: the shards of a collection and where they are, its versions, and its quantizers; which shard a document
belongs to, and the vector indexes of all shards as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from edge.apps.store.database import Database, get_setting, set_setting
from edge.apps.store.folder import make_folder
from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.ivf.base import Connection, Quantizer
from edge.ivf.storage.manifest import State
from edge.resident import Closing

FILE = "cluster.db"

_TABLES = """
CREATE TABLE settings(
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE shards(
    name TEXT PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('serving', 'filling', 'joining'))
) WITHOUT ROWID;

CREATE TABLE replicas(
    shard TEXT NOT NULL REFERENCES shards(name),
    number INTEGER NOT NULL,
    place TEXT NOT NULL,
    folder TEXT NOT NULL,
    memory INTEGER NOT NULL,
    PRIMARY KEY (shard, number),
    UNIQUE (place, folder)
) WITHOUT ROWID;

CREATE TABLE versions(
    version INTEGER NOT NULL,
    shard TEXT NOT NULL,
    replica INTEGER NOT NULL,
    token TEXT NOT NULL,
    quantizer INTEGER NOT NULL,
    PRIMARY KEY (version, shard, replica)
) WITHOUT ROWID;

CREATE TABLE quantizers(
    version INTEGER PRIMARY KEY,
    data BLOB NOT NULL
);
"""

_VERSION = "version"
_KEPT = 2  # Searches may still be under way in the version before.


@dataclass(frozen=True, slots=True)
class Replica:
    """`memory` is the limit of its process in bytes."""

    shard: str
    number: int
    place: str
    folder: str
    memory: int

    @property
    def name(self) -> str:
        return f"{self.shard}/{self.number}" if self.number else self.shard


@dataclass(frozen=True, slots=True)
class HeldState:
    token: str
    quantizer: int


class Catalogue(Closing):
    """A change is one transaction. A shard is `filling` while its documents are copied to it, `joining` while they are
    removed elsewhere, and `serving` from the next version on."""

    def __init__(self, folder: Path, *, budget: MemoryBudget) -> None:
        make_folder(folder)
        self.database = Database(folder / FILE, [_TABLES], budget=budget)

    @staticmethod
    def exists(folder: Path) -> bool:
        return (folder / FILE).is_file()

    def add(self, replicas: Iterable[Replica], state: str) -> None:
        with self.database.write() as db:
            for one in replicas:
                taken = db.execute(
                    "SELECT shard FROM replicas WHERE (shard = ? AND number = ?) OR (place = ? AND folder = ?)",
                    (one.shard, one.number, one.place, one.folder),
                ).fetchone()
                if taken is not None:
                    raise InputError(f"shard {taken[0]} is in {one.folder} on {one.place} already, or has that name")
                db.execute("INSERT OR IGNORE INTO shards VALUES (?, ?)", (one.shard, state))
                row = (one.shard, one.number, one.place, one.folder, one.memory)
                db.execute("INSERT INTO replicas VALUES (?, ?, ?, ?, ?)", row)

    def set_state(self, shard: str, state: str) -> None:
        with self.database.write() as db:
            db.execute("UPDATE shards SET state = ? WHERE name = ?", (state, shard))

    def shards(self) -> dict[str, str]:
        with self.database.read() as db:
            return dict(db.execute("SELECT name, state FROM shards ORDER BY name"))

    def replicas(self) -> list[Replica]:
        with self.database.read() as db:
            rows = db.execute("SELECT shard, number, place, folder, memory FROM replicas ORDER BY shard, number")
            return [Replica(*row) for row in rows]

    # Versions

    def version(self) -> tuple[int, dict[tuple[str, int], HeldState]]:
        """0 before the first."""
        with self.database.read() as db:
            number = _version(db)
            rows = db.execute("SELECT shard, replica, token, quantizer FROM versions WHERE version = ?", (number,))
            return number, {(shard, replica): HeldState(token, quantizer) for shard, replica, token, quantizer in rows}

    def set_version(self, number: int, held: Mapping[tuple[str, int], HeldState]) -> None:
        """Shards that were `joining` are `serving` in it."""
        with self.database.write() as db:
            db.executemany(
                "INSERT INTO versions VALUES (?, ?, ?, ?, ?)",
                [(number, *key, one.token, one.quantizer) for key, one in held.items()],
            )
            db.execute("DELETE FROM versions WHERE version <= ?", (number - _KEPT,))
            db.execute("UPDATE shards SET state = 'serving' WHERE state = 'joining'")
            set_setting(db, _VERSION, str(number))

    # Quantizers

    def quantizer(self) -> Quantizer | None:
        with self.database.read() as db:
            row = db.execute("SELECT data FROM quantizers ORDER BY version DESC LIMIT 1").fetchone()
        return None if row is None else Quantizer.from_bytes(row[0])

    def set_quantizer(self, quantizer: Quantizer) -> None:
        with self.database.write() as db:
            row = (quantizer.version, quantizer.to_bytes())
            db.execute("INSERT OR REPLACE INTO quantizers VALUES (?, ?)", row)
            db.execute("DELETE FROM quantizers WHERE version <= ?", (quantizer.version - _KEPT,))

    def close(self) -> None:
        self.database.close()


def has_version(db: Connection) -> bool:
    return _version(db) > 0


def _version(db: Connection) -> int:
    return int(get_setting(db, _VERSION) or 0)


def home(path: str, shards: Iterable[str]) -> str:
    return max(shards, key=lambda shard: (_weight(shard, path), shard))


def _weight(shard: str, path: str) -> bytes:
    return blake2b(f"{shard}\0{path}".encode("utf-8", "surrogatepass"), digest_size=8).digest()


def merged(states: Sequence[dict[str, Any]]) -> State:
    whole = dict(states[0])
    rows = sum(state["trained_rows"] for state in states)
    for name in ("rows", "trained_rows", "newer_rows", "newer_misfit"):
        whole[name] = sum(state[name] for state in states)
    weighted = sum(state["trained_misfit"] * state["trained_rows"] for state in states)
    return State(**{**whole, "trained_misfit": weighted / max(1, rows), "recall": ()})


def averaged(curves: Sequence[tuple[int, Sequence[tuple[int, float]]]]) -> tuple[tuple[int, float], ...]:
    """Their mean by rows: a lower bound, because the nearest neighbours among all rows are nearer than those in a
    shard."""
    known = [(rows, curve) for rows, curve in curves if curve]
    total = sum(rows for rows, _ in known)
    points = sorted({nprobe for _, curve in known for nprobe, _ in curve})

    def at(curve: Sequence[tuple[int, float]], nprobe: int) -> float:
        return next((recall for lists, recall in reversed(curve) if lists <= nprobe), 0.0)

    return tuple((nprobe, sum(rows * at(curve, nprobe) for rows, curve in known) / total) for nprobe in points)
