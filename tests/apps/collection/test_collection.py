"""Indexing and searching as a whole, on tiny random models; readers beside a writer, and many paths at once."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from edge.apps.collection.collection import Collection
from edge.apps.collection.filters import Filters
from edge.errors import InputError
from tests.apps.collection.conftest import Check, Make, names


def test_index_search_and_index_again(collection: Collection, small: Any, consistent: Check) -> None:
    first = collection.index(small.path)
    assert (first.indexed, first.unchanged, first.skipped, first.failed, first.removed) == (3, 0, 1, 0, 0)
    assert first.chunks == 3
    again = collection.index(small.path)
    assert (again.indexed, again.unchanged, again.skipped, again.chunks) == (0, 3, 1, 0)
    assert not again.changed
    hits = collection.search("when does the river flood", 2)
    assert len(hits) == 2
    hit = next(hit for hit in hits if hit.path == str(small.path / "rivers.md"))
    assert "river floods in spring" in hit.text
    assert {"river", "floods"} <= {hit.snippet[a:b] for a, b in hit.marks}
    assert (hit.line_start, hit.line_end, hit.page) == (1, 3, None)
    assert hit.citation == f"{hit.path}:3"  # the sentence, not the heading above it
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    consistent(collection)


def test_an_unchanged_file_is_not_even_opened(
    collection: Collection, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.index(small.path)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a file was opened")

    monkeypatch.setattr("edge.apps.documents.scanner.OpenedFile", refuse)
    monkeypatch.setattr("edge.apps.collection.intake.content_hash", refuse)
    assert collection.index(small.path).unchanged == 3


def test_only_what_changed_is_embedded(
    collection: Collection, folder: Any, monkeypatch: pytest.MonkeyPatch, consistent: Check
) -> None:
    parts = [f"# Part {i}\n\n" + f"Sentence number {i} about topic {i}. " * 40 + "\n\n" for i in range(6)]
    folder.write("book.md", "".join(parts))
    collection.index(folder.path)
    with collection.database.read() as db:
        before = dict(db.execute("SELECT text, id FROM chunks"))
    embedded: list[str] = []
    embed = collection.models.embed

    def count(texts: list[str], **options: Any) -> Any:
        embedded.extend(texts)
        return embed(texts, **options)

    monkeypatch.setattr(collection._writer._models, "embed", count)
    parts[2] = parts[2].replace("topic", "subject")
    folder.write("book.md", "".join(parts))
    report = collection.index(folder.path)
    assert report.indexed == 1
    assert 0 < len(embedded) < len(before)
    assert all("subject" in text for text in embedded)
    with collection.database.read() as db:
        rows = db.execute("SELECT ordinal, line_start, line_end, text, id FROM chunks ORDER BY ordinal").fetchall()
    assert [row[0] for row in rows] == list(range(len(rows)))
    assert all(before[text] == identifier for _, _, _, text, identifier in rows if text in before)
    lines = "".join(parts).split("\n")
    for _, start, end, text, _ in rows:
        assert text.split("\n")[0].strip() in lines[start - 1]
        assert text.split("\n")[-1].strip() in lines[end - 1]
    consistent(collection)


@pytest.mark.parametrize("way", ["written in place", "another file moved there"])
def test_a_file_with_the_same_size_and_time_is_read_again(collection: Collection, folder: Any, way: str) -> None:
    note = folder.path / "note.txt"
    note.write_text("The river floods.")
    os.utime(note, ns=(10**18, 10**18))
    collection.index(folder.path)
    other = note if way == "written in place" else folder.path.parent / "restored.txt"
    other.write_text("The river drains.")
    os.utime(other, ns=(10**18, 10**18))
    os.replace(other, note)
    assert collection.index(folder.path).indexed == 1
    assert collection.index(folder.path).unchanged == 1


def test_a_file_that_has_just_been_saved_has_its_time_and_is_read_again(collection: Collection, folder: Any) -> None:
    note = folder.path / "note.txt"
    note.write_text("The river floods.")
    moment = time.time_ns() + 3600 * 10**9  # however slow the machine is, the file is read shortly after this time
    os.utime(note, ns=(moment, moment))
    collection.index(folder.path)
    with collection.database.read() as db:
        assert db.execute("SELECT racy FROM files").fetchall() == [(1,)]
    assert [file.mtime_ns for file in collection.files()] == [moment]
    today = f"after:{datetime.fromtimestamp(moment / 1e9):%Y-%m-%d}"
    assert [file.path for file in collection.files(today)] == [str(note)]
    note.write_text("The river drains.")
    os.utime(note, ns=(moment, moment))  # the file system's clock is coarse
    assert collection.index(folder.path).indexed == 1
    earlier = time.time_ns() - 10**10
    os.utime(note, ns=(earlier, earlier))
    assert [collection.index(folder.path).unchanged for _ in range(2)] == [1, 1]


def test_files_that_went_or_are_ignored_now_are_removed(collection: Collection, small: Any, consistent: Check) -> None:
    collection.index(small.path)
    os.remove(small.path / "ice.txt")
    small.write(".gitignore", "kitchen/\n")
    report = collection.index(small.path)
    assert (report.removed, report.unchanged) == (2, 1)
    assert names(collection) == ["rivers.md"]
    assert all("bread" not in hit.text.lower() for hit in collection.search("bread flour", 10))
    os.remove(small.path / ".gitignore")
    assert collection.index(small.path).indexed == 1
    consistent(collection)


def test_one_bad_file_is_recorded_and_stops_nothing(collection: Collection, small: Any, consistent: Check) -> None:
    small.write("broken.pdf", b"%PDF-1.7\n" + b"nothing of a PDF" * 50)
    report = collection.index(small.path)
    assert (report.indexed, report.failed) == (3, 1)
    failed = collection.status().failed
    assert [Path(file.path).name for file in failed] == ["broken.pdf"]
    assert failed[0].reason
    assert collection.index(small.path).failed == 1
    small.write("broken.pdf", "not a PDF any more")
    assert collection.index(small.path).failed == 0
    consistent(collection)


def test_an_interrupted_run_goes_on_where_it_stopped(
    collection: Collection, folder: Any, monkeypatch: pytest.MonkeyPatch, consistent: Check
) -> None:
    monkeypatch.setattr("edge.apps.collection.intake.BATCH", 2)
    monkeypatch.setattr("edge.apps.store.rebuilding.BATCH", 2)
    for number in range(6):
        folder.write(f"{number}.txt", "".join(f"Sentence {i} of text {number}. " for i in range(100)))
    embed, calls = collection.models.embed, iter(range(100))

    def interrupted(texts: list[str], **options: Any) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return embed(texts, **options)

    with monkeypatch.context() as patch:
        patch.setattr(collection.models, "embed", interrupted)
        with pytest.raises(KeyboardInterrupt):
            collection.index(folder.path)
    consistent(collection)
    status = collection.status()
    assert status.pending == 0, "all words are there"
    assert status.vectors is not None
    assert status.vectors.rows == 4
    found = collection.search("lex: text", 20, rerank=False)
    assert {Path(hit.path).name for hit in found} == {f"{number}.txt" for number in range(6)}
    embedded: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(collection.models, "embed", lambda texts, **more: embedded.extend(texts) or embed(texts, **more))
        report = collection.index(folder.path)
    assert (report.failed, report.indexed, len(embedded)) == (0, 0, status.chunks - 4)
    assert collection.status().vectors.rows == status.chunks  # type: ignore[union-attr]
    assert collection.health().state == "ok"
    consistent(collection)


def test_a_folder_is_searched_by_its_words_before_the_first_vector(collection: Collection, folder: Any) -> None:
    folder.write("a.txt", "A river floods in spring.")
    folder.write("b.txt", "Bread needs time.")
    embed, seen = collection.models.embed, []

    def looked(texts: list[str], **options: Any) -> Any:
        if not options.get("query"):
            (trouble,) = [each for each in collection.health() if each.kind == "rebuilding"]
            seen.append(str(trouble))
            assert [hit.path for hit in collection.search("lex: river", rerank=False)] == [str(folder.path / "a.txt")]
        return embed(texts, **options)

    collection.models.embed = looked  # type: ignore[method-assign]
    collection.index(folder.path)
    assert seen == ["passages that can be searched by their words, and not yet by meaning: 2"]


def test_progress_counts_passages_and_moves_within_a_batch(collection: Collection, small: Any) -> None:
    said: list[tuple[int, int]] = []
    collection.index(small.path, progress=lambda done, total, place: said.append((done, total)))
    assert said[0][0] == 0
    assert said[-1] == (3, 3)
    assert {1, 2} & {done for done, _ in said}  # they are one batch, so a layer of the embedder moved it
    assert all(done <= total for done, total in said)
    said.clear()
    collection.index(small.path, progress=lambda done, total, place: said.append((done, total)))
    assert said == []


def test_a_missing_root_is_an_error_and_keeps_what_it_had(collection: Collection, small: Any) -> None:
    with pytest.raises(InputError, match="does not exist"):
        collection.index(small.path / "absent")
    with pytest.raises(InputError, match="no folder to index yet"):
        collection.index()
    collection.index([small.path])
    shutil.move(small.path, small.path.with_name("unplugged"))
    report = collection.index()
    assert report.missing == (str(small.path),)
    assert report.removed == 0
    assert len(collection.files()) == 3
    with pytest.raises(InputError, match="does not exist"):
        collection.index(small.path)


def test_roots_may_lie_in_each_other(collection: Collection, small: Any, consistent: Check) -> None:
    small.write(".gitignore", "kitchen/\n")
    assert collection.index(small.path).indexed == 2
    assert collection.index(small.path / "kitchen").indexed == 1
    for _ in range(2):
        report = collection.index(small.path)
        assert (report.unchanged, report.removed) == (3, 0)
    small.write("kitchen/salt.md", "Salt dissolves.")
    os.remove(small.path / "kitchen" / "bread.md")
    assert collection.index(small.path).removed == 1
    single = small.write("kitchen/cake.md", "Cake needs sugar.")
    assert collection.add([single]) == [str(single)]
    assert collection.roots == [str(small.path), str(small.path / "kitchen"), str(single)]
    os.remove(single)
    assert collection.index().missing == (str(single),)
    consistent(collection)


def test_texts_are_added_found_replaced_and_deleted(collection: Collection, consistent: Check) -> None:
    names = collection.add(["The river floods in spring.", "Bread needs time."], title="Facts")
    assert len(set(names)) == 2
    assert collection.add(["The river floods in spring."]) == names[:1]
    collection.add("Ice is blue.", ids=["ice"])
    assert {hit.path for hit in collection.search("river", 5)} == {*names, "ice"}
    collection.add("Ice is cold.", ids=["ice"])
    texts = {hit.path: hit.text for hit in collection.search("ice", 5)}
    assert texts["ice"] == "Ice is cold."
    assert collection.delete(["ice", names[0]]) == 2
    assert [hit.path for hit in collection.search("river", 5)] == [names[1]]
    with pytest.raises(InputError, match="is empty"):
        collection.add("  \n ")
    with pytest.raises(InputError, match="2 items came with 1 ids"):
        collection.add(["a", "b"], ids=["a"])
    collection.add(["Salt dissolves.", "Oil floats."], ids=["salt", "oil"], title=["In water", "On water"])
    titles = {hit.path: hit.title for hit in collection.search("salt oil", 5)}
    assert (titles["salt"], titles["oil"]) == ("In water", "On water")
    with pytest.raises(InputError, match="2 items came with 1 titles"):
        collection.add(["a", "b"], title=["A"])
    consistent(collection)


def test_filters_hold_for_words_and_for_vectors(collection: Collection, small: Any) -> None:
    collection.index(small.path)
    found = collection.search("ice bread river", 10, where=["type:markdown"])
    assert {Path(hit.path).name for hit in found} == {"rivers.md", "bread.md"}
    found = collection.search("ice bread river", 10, where="type:text")
    assert {Path(hit.path).name for hit in found} == {"ice.txt"}
    found = collection.search("ice bread river", 10, where=Filters(paths=("kitchen/**",)))
    assert {Path(hit.path).name for hit in found} == {"bread.md"}
    assert collection.search("river", 10, where=["smaller:1B"]) == []
    assert collection.search("river", 10, rerank=False, min_score=1.0) != collection.search("river", rerank=False)
    for least in ({"min_score": 1.01}, {"min_score": -0.1}, {"min_score": float("nan")}):
        with pytest.raises(InputError, match="must be 0 to 1"):
            collection.search("river", 10, **least)
    first, *others = collection.search("river", 10)
    assert all(0 < hit.score < first.score < 1 for hit in others)
    assert collection.search("river", 10, min_score=first.score) == [first]


def test_an_empty_query_and_no_results_are_refused(collection: Collection) -> None:
    with pytest.raises(InputError, match="query is empty"):
        collection.search("  ")
    for count in (0, 10_001, 10**18):
        with pytest.raises(InputError, match="must be 1 to 10,000, not"):
            collection.search("river", count)
        with pytest.raises(InputError, match="candidates to rerank"):
            collection.search("river", 1, pool=count)
    assert collection.search("river") == []


def test_texts_are_judged_in_the_order_they_were_given(collection: Collection) -> None:
    texts = ["the river floods", "a bridge", "snow melts in spring"]
    found = collection.relevance("when does the river flood", texts)
    ranked = {r.index: r.relevance for r in collection.reranker.rank("when does the river flood", texts)}
    assert found == [ranked[index] for index in range(3)]
    assert len(set(found)) == 3
    assert collection.relevance("anything", []) == []


KEY = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC" * 4 + "\n"


def test_an_unchanged_secret_leaves_when_it_is_not_asked_for(collection: Collection, folder: Any) -> None:
    folder.write("backup.txt", KEY)
    folder.write("note.txt", "An ordinary note.")
    folder.write(".edgeignore", "!backup.txt\n")
    assert collection.index(folder.path).indexed == 2
    assert collection.index().unchanged == 2
    folder.write(".edgeignore", "!*.txt\n")
    assert collection.index().unchanged == 1
    assert names(collection) == ["note.txt"]


MARK = re.compile(r"v(\d+)")


def test_searches_see_whole_states_while_files_change(collection: Collection, folder: Any, consistent: Check) -> None:
    def write(version: int) -> None:
        for name in ("a", "b", "c"):
            paragraph = f"The river of {name} in version v{version} floods the valley. " * 30
            folder.write(f"{name}.md", f"# {name}\n\n{paragraph}")

    write(0)
    collection.index(folder.path)
    stop = threading.Event()
    errors: list[BaseException] = []
    searches = 0

    def read(rerank: bool) -> None:
        nonlocal searches
        try:
            while not stop.is_set():
                hits = collection.search("river valley", 10, rerank=rerank)
                assert hits
                for path in {hit.path for hit in hits}:
                    versions = {v for hit in hits if hit.path == path for v in MARK.findall(hit.text)}
                    assert len(versions) == 1, (Path(path).name, versions)
                searches += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(rerank,)) for rerank in (False, False, True)]
    for thread in threads:
        thread.start()
    for version in range(1, 6):
        write(version)
        assert collection.index(folder.path).indexed == 3
    collection.delete(folder.path / "c.md")
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert searches >= 3
    consistent(collection)


def test_two_collections_on_one_directory(make: Make, small: Any) -> None:
    """As two processes would: each its own connections, caches and snapshots."""
    writer, reader = make(), make(read_only=False)
    writer.index(small.path)
    assert len(reader.files()) == 3
    first = {hit.path for hit in reader.search("river", 5)}
    small.write("new.txt", "A new river.")
    writer.index(small.path)
    assert {hit.path for hit in reader.search("river", 5)} == first | {str(small.path / "new.txt")}
    reader.delete(small.path / "new.txt")
    assert {hit.path for hit in writer.search("river", 5)} == first


COUNT = 1_000


def test_a_thousand_paths_are_indexed_updated_and_removed(
    collection: Collection, folder: Any, consistent: Check
) -> None:
    paths = [folder.write(f"{number}.txt", f"Text {number}.") for number in range(COUNT)]
    first = collection.index(paths)
    assert (first.indexed, first.failed, len(collection.roots)) == (COUNT, 0, COUNT)
    assert collection.index().unchanged == COUNT
    for path in paths[:3]:
        folder.write(path.name, "Something else.")
    changed = collection.update(paths)
    assert (changed.indexed, changed.unchanged) == (3, COUNT - 3)
    assert collection.delete(paths[1:]) == COUNT - 1
    assert (collection.roots, len(collection.files())) == ([str(paths[0])], 1)
    consistent(collection)
