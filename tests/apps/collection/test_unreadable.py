"""A file that cannot be read now is not gone: its passages stay, and commands say so. Permissions do not stop a
superuser, so a stand-in for the system refuses."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.apps.collection import writing
from edge.apps.collection.collection import Collection
from edge.apps.documents.base import Reason, Skipped
from edge.apps.documents.extraction import Extractor
from edge.errors import InputError
from tests.apps.collection.conftest import Check, names

Deny = Callable[..., None]


@pytest.fixture
def deny(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deny]:
    """Makes the system refuse to open some files and to list some folders; nothing given: no more."""
    denied: set[str] = set()
    real_scan, real_open = os.scandir, os.open

    def refuse(path: Any) -> None:
        if str(path) in denied:
            raise PermissionError(13, "Permission denied")

    def scandir(path: Any = ".") -> Any:
        refuse(path)
        return real_scan(path)

    def opened(path: Any, *arguments: Any, **options: Any) -> int:
        refuse(path)
        return real_open(path, *arguments, **options)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(os, "open", opened)

    def choose(*paths: Path) -> None:
        denied.clear()
        denied.update(map(str, paths))

    yield choose
    denied.clear()


ALL = ["ice.txt", "bread.md", "rivers.md"]


@pytest.mark.parametrize("moved", ["root", "folder above"])
def test_a_root_that_becomes_a_link_keeps_its_files(collection: Collection, small: Any, moved: str) -> None:
    """Links are not followed, so the folder would look empty. Indexed by its new name, the old one can go alone."""
    root = small.path if moved == "root" else small.path / "kitchen"
    collection.index(root)
    held = names(collection)
    big = small.path.with_name("big")
    os.rename(small.path, big)
    small.path.symlink_to(big)
    for report in (collection.index(), collection.update([root])):
        assert (report.missing, report.removed) == ((str(root),), 0)
    assert names(collection) == held
    collection.index(root)
    assert collection.roots == sorted([str(root), str(root.resolve())])
    assert collection.delete(root) >= len(held)  # also the file that was skipped
    assert collection.roots == [str(root.resolve())]
    assert [file.path for file in collection.files()] == sorted(str(root.resolve() / f) for f in relative(root))


def relative(folder: Path) -> list[Path]:
    found = [path for path in folder.resolve().rglob("*") if path.suffix in (".md", ".txt")]
    return [path.relative_to(folder.resolve()) for path in found]


@pytest.mark.parametrize("why", ["denied", "too many rules"])
def test_an_unreadable_folder_keeps_its_files(
    collection: Collection, small: Any, deny: Deny, consistent: Check, why: str
) -> None:
    """Also files that its rules name, until they can be read."""
    collection.index(small.path)
    kitchen, rules = small.path / "kitchen", small.path / "kitchen" / ".gitignore"
    deny(kitchen) if why == "denied" else rules.write_text("*.md\n" * 14_000)
    for report in (collection.index(), collection.update([kitchen])):
        assert (report.removed, report.unreadable) == (0, (str(kitchen),))
    assert names(collection) == ALL
    assert collection.search("bread flour", 3, rerank=False)[0].path.endswith("bread.md")
    deny()
    rules.unlink(missing_ok=True)
    report = collection.index()
    assert (report.unchanged, report.chunks, report.unreadable) == (3, 0, ())
    os.remove(kitchen / "bread.md")
    assert collection.index().removed == 1
    consistent(collection)


@pytest.mark.parametrize(
    "error", [None, OSError(5, "Input/output error"), Skipped(Reason.UNREADABLE, "cannot be read")]
)
def test_an_unreadable_file_keeps_what_was_read_of_it(
    collection: Collection, small: Any, deny: Deny, monkeypatch: pytest.MonkeyPatch,
    consistent: Check, error: Exception | None,
) -> None:  # fmt: skip
    """One that cannot be opened, or not be read after all."""
    collection.index(small.path)
    changed = small.write("ice.txt", "Ice is cold, and this cannot be read yet.")

    def fail(self: Extractor, path: Path, following: Any) -> Any:
        raise error or AssertionError("it was opened")

    deny(*[changed] * (error is None))
    with monkeypatch.context() as patch:
        patch.setattr(Extractor, "extract", fail)
        for _ in range(2):
            report = collection.index()
            assert (report.removed, report.indexed, report.failed) == (0, 0, 0)
            assert report.unreadable == (str(changed),)
    assert names(collection) == ALL
    assert "blue" in collection.search("ice", 1, rerank=False)[0].text
    assert collection.status().pending == 0
    deny()
    assert collection.index().indexed == 1
    assert "cold" in collection.search("ice", 1, rerank=False)[0].text
    consistent(collection)


def test_what_failed_is_tried_again_when_asked(
    collection: Collection, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Extractor, path: Path, following: Any) -> Any:
        raise InputError("took longer than 20 seconds to read")

    with monkeypatch.context() as patch:
        patch.setattr(Extractor, "extract", fail)
        assert collection.index(small.path).failed == 3
    assert collection.index(small.path).failed == 3
    assert collection.index(small.path, retry=True).indexed == 3


def test_what_was_skipped_is_looked_at_again_when_asked(collection: Collection, small: Any, deny: Deny) -> None:
    """As files that were unreadable under earlier versions, which stored that as settled."""
    deny(small.path / "ice.txt")
    collection.index(small.path)
    with collection.database.write() as db:
        db.execute("UPDATE files SET racy = 0")
    deny()
    assert collection.index(small.path).indexed == 0
    assert collection.index(small.path, retry=True).indexed == 1


@pytest.mark.parametrize("why", ["cannot be listed", "is empty all of a sudden"])
def test_a_root_of_which_nothing_is_seen_is_missing(collection: Collection, small: Any, deny: Deny, why: str) -> None:
    collection.index(small.path)
    away = small.path.with_name("unplugged")
    if why == "cannot be listed":
        deny(small.path)
    else:
        os.rename(small.path, away)
        small.path.mkdir()
    for report in (collection.index(), collection.update([small.path])):
        assert (report.removed, report.missing) == (0, (str(small.path),))
    assert names(collection) == ALL
    deny()
    if away.exists():
        small.path.rmdir()
        os.rename(away, small.path)
    assert collection.index().unchanged == 3


@pytest.mark.parametrize("mounted", [True, False])
def test_a_disk_that_goes_while_it_is_compared_has_lost_no_file(
    collection: Collection, small: Any, monkeypatch: pytest.MonkeyPatch, mounted: bool
) -> None:
    """Where a disk was, there may be an empty folder, or nothing."""
    collection.index(small.path)
    small.write("ice.txt", "Ice is cold, and is not read any more.")
    unplugged = small.path.with_name("unplugged")

    def unplug() -> None:
        os.rename(small.path, unplugged)
        if mounted:
            small.path.mkdir()

    real = writing.scan

    def before(*arguments: Any, **options: Any) -> Any:
        unplug()
        return real(*arguments, **options)

    def after(*arguments: Any, **options: Any) -> Any:
        yield from real(*arguments, **options)
        unplug()

    for scan in (before, after):
        with monkeypatch.context() as patch:
            patch.setattr(writing, "scan", scan)
            if mounted or scan is after:
                assert collection.index().removed == 0
            else:
                with pytest.raises(InputError, match="cannot be indexed"):
                    collection.index()
        assert names(collection) == ALL
        if mounted:
            small.path.rmdir()
        os.rename(unplugged, small.path)
    report = collection.index()
    assert (report.indexed, report.removed, report.unchanged) == (1, 0, 2)


@pytest.mark.parametrize("root", [True, False])
def test_a_file_that_could_not_be_read_at_first_is_taken_in_when_it_can(
    collection: Collection, small: Any, deny: Deny, root: bool
) -> None:
    """Permissions change neither its size nor its time."""
    ice = small.path / "ice.txt"
    given = ice if root else small.path
    deny(ice)
    for _ in range(2):
        report = collection.index(given)
        assert (report.skipped, report.unreadable) == (1 if root else 2, ())
    assert "ice.txt" not in names(collection)
    deny()
    assert collection.index(given).indexed == 1
    assert "ice.txt" in names(collection)
    assert collection.index(given).indexed == 0


@pytest.mark.parametrize(
    ("where", "error", "status"),
    [
        ("content_hash", OSError(5, "Input/output error"), "failed"),
        ("extract", OSError(5, "Input/output error"), "failed"),
        ("extract", Skipped(Reason.UNREADABLE, "cannot be read"), "skipped"),
    ],
)
def test_a_file_that_failed_in_the_middle_is_read_by_the_next_run(
    collection: Collection, folder: Any, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception, status: str
) -> None:
    folder.write("ice.txt", "Ice is blue.")

    def fail(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        if where == "extract":
            patch.setattr(Extractor, "extract", fail)
        else:
            patch.setattr("edge.apps.collection.intake.content_hash", fail)
        for _ in range(2):
            assert getattr(collection.index(folder.path), status) == 1
    assert collection.status().pending == 0
    assert collection.index(folder.path).indexed == 1
