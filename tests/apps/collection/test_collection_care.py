"""Any damage to a collection is noticed, named, and repaired from the content of the files."""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
from naive.program import config_of
from naive.rewriting import rewrite

from edge.apps.collection.care import CollectionCare
from edge.apps.collection.collection import Collection
from edge.apps.collection.models import CollectionModels
from edge.apps.store.backup import overwrite
from edge.apps.store.care import CheckReport, check, repair
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import CorruptBlock, StorageError
from tests.apps.collection.conftest import Make

PAGE = 4096
QUERIES = ("which river floods", "the bridge of stone", "number 17", "paragraph")


def results(collection: Collection) -> list[tuple[str, str]]:
    return [(hit.path, hit.text) for query in QUERIES for hit in collection.search(query, 5, rerank=False)]


def look(path: Path, config: Config) -> list[tuple[str, str]]:
    with Collection(path, config=config, read_only=True) as collection:
        return results(collection)


def stored(path: Path, config: Config) -> set[tuple[str, str]]:
    """The paths and texts of all passages."""
    sql = "SELECT path, text FROM chunks JOIN files ON files.id = chunks.file"
    with Collection(path, config=config, read_only=True) as collection, collection.database.read() as db:
        return set(db.execute(sql))


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    chance = random.Random(0)
    words = ["river", "bridge", "stone", "flood", "spring", "mill", "boat", "winter", "harvest", "bread"]
    for n in range(12):
        paragraphs = [f"In paragraph {p} of number {n} the {' '.join(chance.choices(words, k=60))}." for p in range(6)]
        (folder / f"{n}.md").write_text("\n\n".join(paragraphs))
    return folder


@pytest.fixture(scope="module")
def kept(model_folder: Path, docs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `whole` is a copy of."""
    folder = tmp_path_factory.mktemp("kept")
    with Collection(folder / "collection", config=config_of(model_folder, folder / "scratch", threads=1)) as collection:
        collection.index(docs)
        collection.compact()
        collection.add("A text without a file, about a bridge of stone.", ids=["mine"])
    return folder / "collection"


@pytest.fixture
def whole(kept: Path, tmp_path: Path) -> Path:
    """A collection with vectors in a segment and others pending."""
    return shutil.copytree(kept, tmp_path / "collection")


def checked(path: Path, config: Config, **options: bool) -> CheckReport:
    return check(CollectionCare(path, config, MemoryBudget(10**10)), **options)


def mended(path: Path, config: Config, roots: Sequence[str] = ()) -> Any:
    budget = MemoryBudget(10**10)
    care = CollectionCare(path, config, budget, lambda opened: opened.roots or list(roots))
    return repair(care, budget=budget)


def test_a_sound_collection_is_said_to_be(whole: Path, tiny_config: Config) -> None:
    for read_data in (False, True):
        report = checked(whole, tiny_config, read_data=read_data)
        assert report.findings == []
        assert report.sound
    report = mended(whole, tiny_config)
    assert report.actions == []
    assert report.aside is None


@pytest.mark.parametrize("kind", ["flip", "zero"])
def test_damage_of_a_page_shows_nothing_that_was_not_stored(whole: Path, tiny_config: Config, kind: str) -> None:
    """A flipped bit of the full text may change an order. A whole page that is lost is always found."""
    right = look(whole, tiny_config)
    lines = {(name, line) for name, text in stored(whole, tiny_config) for line in text.split("\n")}
    path = whole / "edge.db"
    before = path.read_bytes()
    for page in range(len(before) // PAGE):
        data = bytearray(before)
        if kind == "flip":
            data[page * PAGE + 1234] ^= 4
        elif not any(data[page * PAGE : (page + 1) * PAGE]):
            continue
        else:
            data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
        rewrite(path, data)
        same = False
        try:
            found = look(whole, tiny_config)
            same = found == right
            for name, text in found:  # neighbouring passages are one hit
                assert all((name, line) in lines for line in text.split("\n")), f"page {page + 1}"
        except (StorageError, CorruptBlock) as error:
            assert "`edge " in str(error)  # noqa: PT017 - not every page is read by a search
        report = checked(whole, tiny_config, read_data=True)
        assert kind == "flip" or same or not report.sound, f"page {page + 1}"


@pytest.mark.parametrize("seed", range(4))
def test_repair_brings_back_what_the_files_hold(whole: Path, tiny_config: Config, docs: Path, seed: int) -> None:
    right = stored(whole, tiny_config)
    path = whole / "edge.db"
    data = bytearray(path.read_bytes())
    chance = random.Random(seed)
    lost = chance.sample(range(len(data) // PAGE), 3) if seed else [0]  # the first page, and any three
    for page in lost:
        data[page * PAGE : (page + 1) * PAGE] = chance.randbytes(PAGE)
    path.write_bytes(data)
    report = mended(whole, tiny_config)
    assert report.after.findings == []
    assert report.aside is not None
    assert (report.aside / "edge.db").read_bytes() == bytes(data)
    files = {row for row in right if row[0].startswith(str(docs))}
    assert files <= stored(whole, tiny_config)
    with Collection(whole, config=tiny_config, read_only=True) as collection:
        assert collection.health()
        assert collection.status().indexed >= 12


def test_a_repair_keeps_every_column_of_a_sound_index(whole: Path, tiny_config: Config) -> None:
    """Also the version of lists that other indexes share."""
    db = apsw.Connection(str(whole / "edge.db"))
    for table in ("ivf_state", "ivf_segments"):
        db.execute(f"UPDATE {table} SET quantizer = 7")
    db.execute("UPDATE roots SET path = path || 'x'; UPDATE files SET title = 'x' WHERE id = 1")
    db.close()
    report = mended(whole, tiny_config)
    assert report.after.sound
    assert not any("vectors" in action for action in report.actions), "no vector is made again"
    db = apsw.Connection(str(whole / "edge.db"))
    found = db.execute("SELECT quantizer FROM ivf_state UNION ALL SELECT quantizer FROM ivf_segments").fetchall()
    assert len(found) > 1
    assert set(found) == {(7,)}
    db.close()


def test_a_damaged_segment_is_named_and_made_again(whole: Path, tiny_config: Config, docs: Path) -> None:
    right = look(whole, tiny_config)
    (segment,) = (whole / "segments").glob("*.blk")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    report = checked(whole, tiny_config, read_data=True)
    assert {finding.part for finding in report.findings} == {"vectors"}
    assert segment.name in " ".join(finding.text for finding in report.findings)
    with Collection(whole, config=tiny_config, read_only=True) as collection:
        assert [trouble.kind for trouble in collection.health()] == ["damaged"]
        assert collection.status().health.state == "damaged"
    done = mended(whole, tiny_config)
    assert done.after.findings == []
    assert (done.aside / segment.name).read_bytes() == bytes(data)
    assert look(whole, tiny_config) == right


@pytest.mark.parametrize("page", [0, 3, 8])
def test_a_repair_that_was_interrupted_leaves_what_was_there_or_what_is_new(
    whole: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    right = stored(whole, tiny_config)
    path = whole / "edge.db"
    data = bytearray(path.read_bytes())
    data[page * PAGE + 5] ^= 1
    path.write_bytes(data)

    def killed(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("edge.apps.store.care.overwrite", killed)
        with pytest.raises(KeyboardInterrupt):
            mended(whole, tiny_config)
    assert path.read_bytes() == data
    report = mended(whole, tiny_config)
    assert report.after.findings == []
    assert {row for row in right if row[0] != "mine"} <= stored(whole, tiny_config)


@pytest.mark.parametrize("place", ["emptied", "in the header", "in a page", "at the last byte"])
def test_a_database_that_was_cut_off_is_repaired(whole: Path, tiny_config: Config, docs: Path, place: str) -> None:
    right = stored(whole, tiny_config)
    path = whole / "edge.db"
    size = path.stat().st_size
    middle = size // PAGE // 2 * PAGE + 1800
    cut = {"emptied": 0, "in the header": 60, "in a page": middle, "at the last byte": size - 1}[place]
    with path.open("r+b") as file:
        file.truncate(cut)
    assert not checked(whole, tiny_config, read_data=True, noting=False).sound
    report = mended(whole, tiny_config, [str(docs)])
    assert report.after.findings == []
    assert report.aside is not None
    assert (report.aside / "edge.db").stat().st_size == cut
    assert any("a new database holds" in action for action in report.actions)
    assert {row for row in right if row[0] != "mine"} <= stored(whole, tiny_config)


def test_only_the_vectors_of_a_damaged_segment_are_made_again(
    make: Make, docs: Path, tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of the other segments, and those that are in none yet, keep theirs."""
    embedded: list[int] = []
    embed = CollectionModels.embed
    monkeypatch.setattr(
        CollectionModels,
        "embed",
        lambda self, texts, **given: embedded.append(len(texts)) or embed(self, texts, **given),
    )
    path = tmp_path / "collection"
    with make() as collection:
        collection.index(docs)
        collection.compact()
        (first,) = (path / "segments").glob("*.blk")
        index = collection.vectors
        assert index is not None
        with collection.database.write() as db:  # half of the rows move to a segment of their own
            ids = index.verify(db, read_data=True).ids
            assert ids is not None
            moved = ids[: len(ids) // 2]
            vectors = index.vectors(db, moved)
            options = dataclasses.replace(index.options, pending_limit=0)
            monkeypatch.setattr(index, "options", options)
            index.delete(db, moved)
            index.add(db, moved, vectors)
        right = results(collection)
    others = [file for file in (path / "segments").glob("*.blk") if file != first]
    assert len(others) == 1
    data = bytearray(others[0].read_bytes())
    data[len(data) // 2] ^= 1
    others[0].write_bytes(data)
    embedded.clear()
    report = mended(path, tiny_config)
    assert report.after.findings == []
    assert sum(embedded) == len(moved)
    assert f"vectors of passages made again: {len(moved):,}" in report.actions
    assert look(path, tiny_config) == right


def test_a_repair_that_others_disturbed_says_once_what_it_did(
    whole: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = whole / "edge.db"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // PAGE // 2 * PAGE)
    done: list[bool] = []

    def disturbed(*given: Any, **options: Any) -> bool:
        done.append(len(done) > 0 and overwrite(*given, **options))
        return done[-1]

    monkeypatch.setattr("edge.apps.store.care.overwrite", disturbed)
    report = mended(whole, tiny_config)
    assert done == [False, True]
    assert report.after.findings == []
    assert sum("a new database holds" in action for action in report.actions) == 1
