"""SQLite's errors: damage is told as damage, a limit as a limit, and a bug in this program stays one."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from edge.apps.store.failures import DamagedStore, translated
from edge.errors import InputError

PATH = Path("edge.db")

DAMAGE = [
    "SELECT * FROM gone",
    "SELECT gone FROM kept",
    "INSERT INTO kept VALUES (1, 2)",
    "SELECT json_extract(a, '$.x') FROM kept",
    "SELECT * FROM words WHERE words MATCH 'x'",
]
LIMITS = [
    "SELECT 0" + " + 1" * 2000,
    "SELECT " + ", ".join("1" * 3000),
    "SELECT * FROM (SELECT 1" + " UNION ALL SELECT 1" * 600 + ")",
    "SELECT zeroblob(3000000000)",
]
BUGS = [
    "SELEC",
    "SELECT (",
    "SELECT no_function_of_sqlite(1)",
    "SELECT abs(1, 2)",
    "SELECT * FROM kept WHERE a = #",
    "SELECT a FROM kept AS x, kept AS y",
    "SELECT * FROM sound WHERE sound MATCH 'AND'",
    "SELECT * FROM sound WHERE sound MATCH '\"'",
    "ROLLBACK",
    "RELEASE nothing",
]


@pytest.fixture
def db(tmp_path: Path) -> apsw.Connection:
    """A database in which one table of words lost its settings, and one text is no JSON."""
    path = str(tmp_path / "edge.db")
    with apsw.Connection(path) as made:
        made.execute(
            "CREATE TABLE kept (a); INSERT INTO kept VALUES ('{');"
            "CREATE VIRTUAL TABLE words USING fts5(a); CREATE VIRTUAL TABLE sound USING fts5(a);"
            "DELETE FROM words_config"
        )
    made.close()
    return apsw.Connection(path)


@pytest.mark.parametrize("statement", DAMAGE)
def test_tables_that_do_not_hold_what_they_should_are_damaged(db: apsw.Connection, statement: str) -> None:
    with pytest.raises(DamagedStore, match=r"edge.db does not hold what it should .*`edge check` says what is lost"):
        run(db, statement)


@pytest.mark.parametrize("statement", LIMITS, ids=lambda statement: statement[:20])
def test_a_limit_of_sqlite_is_told_as_one(db: apsw.Connection, statement: str) -> None:
    with pytest.raises(InputError, match=r"too large for the database: SQLite says .*|memory limit has room"):
        run(db, statement)


@pytest.mark.parametrize("statement", BUGS)
def test_a_wrong_statement_is_no_damage(db: apsw.Connection, statement: str) -> None:
    with pytest.raises(apsw.SQLError):
        run(db, statement)


def run(db: apsw.Connection, statement: str) -> None:
    with translated(PATH, "edge", 5.0):
        db.execute(statement).fetchall()
