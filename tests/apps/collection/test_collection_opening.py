"""Collections are opened: by an older or a newer program, with another embedder, from a backup."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from apsw import Connection

from edge.apps.assistant.units import units
from edge.apps.collection.care import CollectionCare, place_of
from edge.apps.collection.catalog import migrations
from edge.apps.collection.collection import DATABASE, Collection
from edge.apps.collection.hits import Hit, merge
from edge.apps.store.backup import Store, back_up, restore
from edge.apps.store.care import check
from edge.apps.store.database import Database, set_setting
from edge.apps.store.failures import DamagedStore, StoreUnavailable
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import BudgetExceeded, InputError, ModelError, StorageError
from edge.models.evidence import FILE, RESULT_SIGNALS, Evidence, Logistic, log_odds, results_name, save
from tests.apps.collection.conftest import Folder, Make


def test_without_reranking_the_reranker_stays_closed(make: Make, small: Any, tiny_config: Config) -> None:
    make().index(small.path)
    reader = make(config=dataclasses.replace(tiny_config, reranker="absent"), read_only=True)
    hits = reader.search("river", 3, rerank=False)
    assert hits[0].stages.reranker is None
    assert hits[0].stages.fused_rank == 1
    with pytest.raises(ModelError, match="absent"):
        reader.search("river", 3)


def test_a_fitted_model_makes_blended_scores_probabilities(collection: Collection, small: Any) -> None:
    """The order stays, and what was fitted for other weights has no effect."""
    collection.index(small.path)
    blended = collection.search("river flood", 3)
    assert [hit.score for hit in blended] == [hit.stages.blend for hit in blended], "nothing is fitted"
    packed, name = collection.reranker.model, results_name(collection.embedder.model.name)
    fitted = Evidence(RESULT_SIGNALS, Logistic((2.0, -1.0, 0.5), (0.0, 0.0), (1.0, 1.0)), 0.0, "any", 1)
    save(SimpleNamespace(path=packed.path, fingerprint="other weights"), {name: fitted})  # type: ignore[arg-type]
    assert collection.search("river flood", 3) == blended
    save(packed, {name: fitted})
    try:
        hits = collection.search("river flood", 3)
    finally:
        (packed.path / FILE).unlink()
    assert [hit.id for hit in hits] == [hit.id for hit in blended]
    best, second, _ = (log_odds(hit.stages.blend or 0.0) for hit in hits)
    assert log_odds(hits[1].score) == pytest.approx(2 * second - best + 0.5)
    assert hits[0].relevance == hits[0].score > hits[1].score


def test_the_embedder_cannot_be_changed(make: Make, small: Any, tiny_config: Config, model_folder: Path) -> None:
    make().index(small.path)
    other = make(embedder="other-embedder")
    with pytest.raises(ModelError, match=r"embedded with .*, and vectors of two models cannot be compared"):
        other.search("river")
    with pytest.raises(ModelError, match="cannot be compared"):
        other.add("a text")
    # Without a choice it is the collection's own, with any default.
    own = make(config=dataclasses.replace(tiny_config, embedder=""))
    assert own.search("river")


def test_everything_is_given_back(make: Make, small: Any) -> None:
    budget = MemoryBudget(10**11, baseline=0)
    collection = make(budget=budget)
    collection.index(small.path)
    collection.search("river")
    held = budget.holders()
    assert {"SQLite", "headroom"} <= set(held)
    collection.close()
    assert set(budget.holders()) <= {"libraries"}, budget.holders()  # modules stay


def test_a_limit_that_is_named_works_or_names_one_that_does_before_a_file_is_read(make: Make, small: Any) -> None:
    limits, reason = [20_000_000], ""
    for attempt in range(4):
        collection = make(f"attempt {attempt}", budget=MemoryBudget(limits[-1], baseline=0))
        try:
            report = collection.index(small.path)
            break
        except BudgetExceeded as error:
            limits.append(error.needed)
            reason = str(error)
        assert collection.status().indexed == 0
    assert report.indexed == 3
    assert limits == sorted(set(limits))
    assert "reading files while others are embedded" in reason


def test_both_models_need_not_fit_at_once(make: Make, small: Any) -> None:
    """Memory for one model at a time is enough: the other one makes room."""
    collection = make(budget=(wide := MemoryBudget(10**11, baseline=0)))
    collection.index(small.path)
    collection.close()
    reader = make(budget=wide, read_only=True)
    reader.search("river", rerank=False)
    reader.vectors, reader.embedder  # noqa: B018
    alone = wide.used
    reader.rerank("river", reader.candidates("river"))
    both = wide.used
    reader.close()
    narrow = MemoryBudget(both - (both - alone) // 32, baseline=0)
    tight = make(budget=narrow, read_only=True)
    expected = [hit.id for hit in make(read_only=True).search("river")]
    assert [hit.id for hit in tight.search("river")] == expected
    assert [hit.id for hit in tight.search("river")] == expected


def test_an_embedder_named_by_a_path_is_found_from_elsewhere(
    make: Make, small: Any, tiny_config: Config, model_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = dataclasses.replace(tiny_config, embedder="", models_dir=str(tmp_path / "empty"))
    monkeypatch.chdir(model_folder.parent)
    make(config=own, embedder=f"{model_folder.name}/tiny-embedder").index(small.path)
    monkeypatch.chdir(tmp_path)
    reader = make(config=own, read_only=True)
    assert reader.search("river", rerank=False)
    embedder = reader.status().embedder
    assert embedder is not None
    assert embedder.source == str((model_folder / "tiny-embedder").resolve())
    make("named").index(small.path)
    named = make("named").status().embedder
    assert named is not None
    assert named.source == "tiny-embedder"


@pytest.mark.parametrize("named", ["by its path", "by a name that is a folder here"])
def test_a_projects_collection_does_not_choose_a_path_to_a_model(
    make: Make, tmp_path: Path, tiny_config: Config, model_folder: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """It may have come with a cloned folder, and the model with it."""
    shutil.copytree(model_folder / "tiny-embedder", tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    own = dataclasses.replace(tiny_config, embedder="")
    for name in (".edge", "mine"):
        with make(name, embedder=str(tmp_path / "elsewhere")) as collection:
            collection.add("A river floods.", ids=["river"])
            if named != "by its path":
                identity = collection.identity
                assert identity is not None
                with collection.database.write() as db:
                    set_setting(db, "embedder", dataclasses.replace(identity, source="elsewhere").to_json())
        with make(name, config=own, read_only=True) as collection:
            if name == "mine":
                assert collection.search("river", rerank=False)
            else:
                with pytest.raises(ModelError, match=r"by a path, .* may have come with the folder: name it with"):
                    collection.search("river", rerank=False)
        with make(name, config=own, embedder=str(tmp_path / "elsewhere"), read_only=True) as collection:
            assert collection.search("river", rerank=False)


def found_now(collection: Collection) -> list[tuple[str, str, float]]:
    return [(hit.path, hit.text, hit.score) for hit in collection.search("the river floods", rerank=False)]


def test_a_collection_from_before_the_first_release_is_refused(make: Make, tmp_path: Path) -> None:
    make().close()
    old = Connection(str(tmp_path / "collection" / "edge.db"))
    old.execute("PRAGMA user_version = 11").fetchall()
    old.close()
    with pytest.raises(StoreUnavailable, match=r"before the first release of edge-rag \(schema 11\)"):
        make()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE files SET path = path || 'x'",
        "UPDATE files SET title = 'Another'",
        "UPDATE chunks SET line_start = line_start + 1",
        "UPDATE chunks SET file = file - 1, ordinal = 9 WHERE file = 2",
        "UPDATE chunks SET context = 'x'",
    ],
)
def test_a_search_verifies_every_row_that_it_returns(make: Make, small: Any, change: str) -> None:
    collection = make()
    collection.index(small.path)
    with collection.database.write() as db:
        db.execute(change)
    with pytest.raises(DamagedStore, match="is not what was stored"):
        found_now(collection)


TEXT = "# Rent\n\nIt is due\nmonthly. Pay it.\n\n- by bank\n\n~~~\npay(870)\n~~~\n"


def about_rent(collection: Collection) -> list[Hit]:
    return collection.search("when is the rent due", rerank=False)


def shown(hit: Hit) -> list[tuple[str, str]]:
    return [(unit.kind, unit.text) for unit in units(hit.text, hit.kinds)]


def test_joined_passages_have_the_kinds_of_both(collection: Collection, folder: Folder) -> None:
    folder.write("a.md", TEXT)
    collection.index([folder.path])
    (hit,) = about_rent(collection)
    below = replace(hit, id=hit.id + 1, text="Another one.", kinds=((1, 12),), ordinals=(1, 1))
    (both,) = merge([hit, below], 5)
    assert shown(both) == [*shown(hit), ("sentence", "Another one.")]


def found(collection: Collection) -> list[tuple[str, float]]:
    return [(hit.path, hit.score) for hit in collection.search("which river floods", 5, rerank=False)]


@pytest.fixture
def filled(make: Make) -> Collection:
    collection = make()
    collection.add([f"The river number {n} floods in spring." for n in range(60)], ids=[f"t{n}" for n in range(60)])
    collection.compact()
    collection.add("A bridge of stone.", ids=["bridge"])
    return collection


def test_what_was_backed_up_comes_back(filled: Collection, make: Make, tmp_path: Path, tiny_config: Config) -> None:
    right = found(filled)
    size = back_up(place_of(filled.path), tmp_path / "backup")
    assert size == sum(
        file.stat().st_size for file in (tmp_path / "backup").rglob("*") if file.is_file() and file.suffix != ".json"
    )
    assert restore(place_of(tmp_path / "new"), tmp_path / "backup", force=False) == size
    with make("new") as copy:
        assert found(copy) == right
        copy.add("Something else.", ids=["else"])
    for _ in range(2):  # over one that is there, in which more was committed, and that somebody has open
        reader = make("new", read_only=True)
        assert reader.status().indexed > 60
        with pytest.raises(InputError, match="--force puts the backup in its place"):
            restore(place_of(tmp_path / "new"), tmp_path / "backup", force=False)
        restore(place_of(tmp_path / "new"), tmp_path / "backup", force=True)
        assert found(reader) == right
        with make("new") as again:
            assert again.status().indexed == 61
            assert again.health()
            again.add("More.", ids=["more"])
    report = check(CollectionCare(tmp_path / "new", tiny_config, MemoryBudget(10**10)), read_data=True)
    assert report.findings == []


def test_a_backup_is_one_moment_while_others_write(filled: Collection, make: Make, tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        number = 0
        with make() as writer:
            while not stop.is_set():
                writer.add([f"first {number}", f"second {number}"], ids=[f"a{number}", f"b{number}"])
                if number % 5 == 0:
                    writer.compact()
                number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for n in range(4):
            back_up(place_of(filled.path), tmp_path / f"backup{n}")
    finally:
        stop.set()
        thread.join()
    for n in range(4):
        restore(place_of(tmp_path / f"copy{n}"), tmp_path / f"backup{n}", force=False)
        with make(f"copy{n}") as copy:
            status = copy.status()
            assert status.vectors is not None
            with copy.database.read() as db:
                waiting = db.execute("SELECT value FROM settings WHERE name = 'rebuilding'").fetchone()
                late = db.execute("SELECT count(*) FROM chunks WHERE id > ?", waiting or (10**9,)).fetchone()[0]
            assert status.vectors.rows == status.chunks - late
            kinds = {trouble.kind for trouble in status.health}
            assert kinds <= {"compacting", "rebuilding"}, "the moment may lie in a compaction"
            assert found(copy)


def test_what_is_no_whole_backup_is_refused(filled: Collection, make: Make, tmp_path: Path) -> None:
    back_up(place_of(filled.path), tmp_path / "backup")
    files = sorted(file for file in (tmp_path / "backup").rglob("*") if file.is_file())
    for file in files:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        with pytest.raises((StorageError, InputError)):
            restore(place_of(tmp_path / "new"), tmp_path / "backup", force=False)
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    assert not (tmp_path / "new" / DATABASE).exists()
    with pytest.raises(InputError, match=r"`edge restore` puts it back"):
        restore(Store("memory", tmp_path / "m", "memory.db", "edge memory", []), tmp_path / "backup", force=False)
    with pytest.raises(InputError, match="is no backup"):
        restore(place_of(tmp_path / "new"), tmp_path, force=False)
    with pytest.raises(InputError, match="name a new folder"):
        back_up(place_of(filled.path), tmp_path / "backup")
    with pytest.raises(StorageError, match="there is no collection"):
        back_up(place_of(tmp_path / "none"), tmp_path / "backup2")


def test_links_lead_to_stores_and_backups(filled: Collection, make: Make, tmp_path: Path) -> None:
    right = found(filled)
    for name in ("empty", "missing"):
        (tmp_path / f"to {name}").symlink_to(tmp_path / name)
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        back_up(place_of(filled.path), tmp_path / f"to {name}")
        assert (tmp_path / f"to {name}").is_symlink()
        assert (tmp_path / name / DATABASE).is_file()
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "home")
    restore(place_of(tmp_path / "link" / "new"), tmp_path / "to empty", force=False)
    with make("link/new") as copy, make("home/new") as same:
        assert found(copy) == right
        copy.add("Something else.", ids=["else"])
        assert same.status().indexed == 62
    (tmp_path / "home" / "file").symlink_to(tmp_path / "home" / "new" / DATABASE)
    with (
        Database(tmp_path / "home" / "file", migrations(), budget=MemoryBudget(10**10)) as database,
        database.read() as db,
    ):
        assert db.execute("SELECT count(*) FROM files").fetchone() == (62,)
