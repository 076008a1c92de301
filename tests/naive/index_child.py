"""Processes that write to, maintain and read an index beside each other.

Operation number n is the same in every process; a table says, in the same transaction, how many are done.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

if __package__:
    from naive.index import SMALL, IndexRig, NaiveIndex, held, mixture
else:  # started as a program
    from index import SMALL, IndexRig, NaiveIndex, held, mixture

DIM = 8
OPTIONS = replace(SMALL, grace_seconds=60.0)
"""Other processes read here."""


def operation(number: int) -> tuple[list[int], list[int], np.ndarray]:
    """Ids to delete, ids to add, and their vectors."""
    choose = random.Random(number)
    gone = choose.sample(range(400), choose.randrange(30))
    ids = choose.sample(range(400), choose.choice([1, 5, 30]))
    return gone, ids, mixture(len(ids), DIM, seed=number)


def replay(count: int) -> NaiveIndex:
    twin = NaiveIndex()
    for number in range(count):
        gone, ids, vectors = operation(number)
        twin.delete(gone)
        twin.add(ids, vectors)
    return twin


def write(folder: Path, until: int) -> None:
    """Does operations and maintenance."""
    rig = IndexRig(folder, DIM, options=OPTIONS)
    print("ready", flush=True)
    for count in range(until):
        gone, ids, vectors = operation(count)
        with rig.database.write() as db:
            rig.index.delete(db, gone)
            rig.index.add(db, ids, vectors)
            db.execute("INSERT INTO done VALUES (?)", (count + 1,))
        rig.index.maintain(rig.database.write, full=count % 7 == 6)
    rig.close()


def read(folder: Path) -> None:
    """Compares the index with the commits, until the parent closes its input; prints how often."""
    rig = IndexRig(folder, DIM, options=OPTIONS)
    print("ready", flush=True)
    looks, counts = 0, set()
    while not (folder / "enough").exists() or looks == 0:
        with rig.database.read() as db:
            count = db.execute("SELECT max(count) FROM done").fetchone()[0] or 0
            snapshot = rig.index.snapshot(db)
            twin = replay(count)
            assert held(snapshot) == sorted(twin.rows), count
            if twin.rows:
                number, vector = next(iter(twin.rows.items()))
                found = rig.index.search(db, vector[None], 1, nprobe=snapshot.nlist)
                assert abs(found.scores[0, 0] - max(twin.scores(vector).values())) < 1e-5, (number, count)
        looks += 1
        counts.add(count)
    print(looks, len(counts), flush=True)
    rig.close()


if __name__ == "__main__":
    what, where, *rest = sys.argv[1:]
    if what == "write":
        write(Path(where), int(rest[0]))
    else:
        read(Path(where))
