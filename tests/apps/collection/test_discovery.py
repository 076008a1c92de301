"""Files that are found, added, gone, or mails."""

from __future__ import annotations

import io
import itertools
import mailbox
import shutil
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.collection import discovery
from edge.apps.collection.care import CollectionCare
from edge.apps.collection.collection import Collection
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import hit_from_json
from edge.apps.collection.paths import checked, storable
from edge.apps.collection.registry import locate
from edge.apps.documents.base import Mail
from edge.apps.store.care import check, repair
from edge.apps.store.failures import DamagedStore
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import InputError
from tests.apps.collection.conftest import Check, Make, names


def paths(collection: Collection) -> list[str]:
    return [file.path for file in collection.files()]


@pytest.mark.parametrize("root", [".", "docs", "parent"])
def test_each_file_is_found_once_under_its_new_path(
    folder: Any, tiny_config: Config, tmp_path: Path, root: str
) -> None:
    old = folder.path / "p" / "notes"
    for name in ("rivers.md", "bread.md", "deep/ice.md"):
        folder.write(f"p/notes/docs/{name}", f"The river rises in spring. {name}")
    with Collection(old / ".edge", config=tiny_config) as collection:
        collection.index([old / "docs" if root == "docs" else old])
        collection.describe(old / "docs", "what is known")
        collection.add(["An added text about the river"], ids=["p/notes"])
    new = folder.path / "q" / "moved"
    if root == "parent":
        (folder.path / "p").rename(folder.path / "q")
        new = folder.path / "q" / "notes"
    else:
        new.parent.mkdir()
        old.rename(new)
    with Collection(new / ".edge", config=tiny_config) as collection:
        report = collection.index([] if root == "docs" else [new])
        assert (report.indexed, report.removed, report.missing) == (0, 0, ())
        expected = [str(new / "docs" / name) for name in ("bread.md", "deep/ice.md", "rivers.md")]
        assert paths(collection) == [*expected, "p/notes"]
        assert collection.roots == [str(new / "docs" if root == "docs" else new)]
        assert collection.descriptions() == {str(new / "docs"): "what is known"}
        hits = collection.search("river", 20, rerank=False)
        assert sorted(hit.path for hit in hits) == [*expected, "p/notes"]
        assert hits[0].description in ("what is known", "")
    assert check(CollectionCare(new / ".edge", tiny_config, collection.budget), read_data=True).findings == []


@pytest.mark.parametrize("way", ["copied", "another disk", "elsewhere"])
def test_what_was_not_moved_keeps_its_paths(folder: Any, tiny_config: Config, tmp_path: Path, way: str) -> None:
    for number in range(5):
        folder.write(f"disk/{number}.txt", f"The river rises in year {number}.")
    home = folder.path / ("disk" if way == "copied" else "home")
    home.mkdir(exist_ok=True)
    place = home / (".edge" if way != "elsewhere" else "collection")
    with Collection(place, config=tiny_config) as collection:
        collection.index([folder.path / "disk"])
        before = paths(collection)
    if way == "copied":
        shutil.copytree(home, folder.path / "copy")
        place = folder.path / "copy" / ".edge"
    else:
        (folder.path / "disk").rename(folder.path / "away")
        folder.write("home/0.txt", "The river rises in year 0.")  # one of the same name and size
    with Collection(place, config=tiny_config) as collection:
        collection.index()
        assert paths(collection) == before


@pytest.fixture
def disk(folder: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder below the root with files, which counts as another device while it is not empty."""
    place: Path = folder.path / "media" / "disk"
    folder.write("here.txt", "Bread needs time.")
    for number in range(5):
        folder.write(f"media/disk/deep/{number}.txt", f"The river rises in year {number}.")
    real = discovery.device

    def device(path: str) -> int:
        inside = path == str(place) or path.startswith(f"{place}/")
        return 7 if inside and any(place.iterdir()) else real(path)

    monkeypatch.setattr(discovery, "device", device)
    return place


@pytest.mark.parametrize("way", ["empty", "gone", "below a file's change"])
def test_a_missing_mount_keeps_its_files(collection: Collection, folder: Any, disk: Path, way: str) -> None:
    assert collection.index([folder.path]).indexed == 6
    away = disk.rename(folder.path.parent / "away")
    if way != "gone":
        disk.mkdir()
    if way == "below a file's change":
        report = collection.update([disk / "deep" / "1.txt", disk, disk.parent])
    else:
        report = collection.index()
    assert report.removed == 0
    assert report.unreadable == (str(disk),)
    assert len(collection.files()) == 6
    assert len(collection.search("river", 9, rerank=False)) >= 5
    assert collection.index().removed == 0, "it is known in the next runs, too"
    if disk.exists():
        disk.rmdir()
    away.rename(disk)
    (disk / "deep" / "2.txt").unlink()
    report = collection.index()
    assert (report.removed, report.unreadable) == (1, ()), "with the disk, what is not on it is gone"


@pytest.mark.parametrize("value", ["{", "[1]", '["relative"]', "3", "[" * 100_000])
def test_a_foreign_list_of_mounts_is_damage(collection: Collection, folder: Any, value: str) -> None:
    folder.write("here.txt", "Bread needs time.")
    collection.index([folder.path])
    with collection.database.write() as db:
        db.execute("INSERT OR REPLACE INTO settings VALUES ('mounts', ?)", (value,))
    with pytest.raises(Exception, match="the setting of mounts"):
        collection.index()


HALF, EMPTY = "half \ud800", "is empty"
NO_TEXT = "is not valid Unicode: character [0-9]+ is half of one|is no path: it holds half of a character"
REFUSED: list[tuple[str | None, Callable[[Collection], Any]]] = [
    (NO_TEXT, lambda collection: collection.add([HALF])),
    (NO_TEXT, lambda collection: collection.add(["text"], ids=[HALF])),
    (NO_TEXT, lambda collection: collection.add(["text"], title=HALF)),
    (NO_TEXT, lambda collection: collection.add(Path(HALF))),
    (NO_TEXT, lambda collection: collection.index(HALF)),
    (NO_TEXT, lambda collection: collection.update([HALF])),
    (NO_TEXT, lambda collection: collection.delete([HALF])),
    (NO_TEXT, lambda collection: collection.search(HALF)),
    (NO_TEXT, lambda collection: collection.embed_queries([HALF])),
    ("holds a NUL", lambda collection: collection.index(Path("a\0b"))),
    ("holds a NUL", lambda collection: collection.update(["a\0b"])),
    ("holds a NUL", lambda collection: collection.delete(Path("a\0b"))),
    ("holds a NUL", lambda collection: collection.add(Path("a\0b"))),
    ("holds a NUL", lambda collection: collection.describe("a\0b", "A folder.")),
    (None, lambda collection: Collection(Path("a\0b"), config=collection.config)),
    (None, lambda collection: collection.index(bytearray(b"a"))),
    (None, lambda collection: collection.index(range(3))),
    (None, lambda collection: collection.add(np.array("a"))),
    (None, lambda collection: collection.delete(memoryview(b"a"))),
    (None, lambda collection: collection.search("river", where=np.array(["type:md"]))),
    (None, lambda collection: collection.files(bytearray(b"type:md"))),
    (None, lambda collection: collection.embed_queries(range(3))),
    (None, lambda collection: collection.rerank("river", ["a text"])),
    (None, lambda collection: collection.relevance("river", np.array(["a text"]))),
    (None, lambda collection: collection.check_room("x", extra=np.zeros(3))),
    (EMPTY, lambda collection: collection.delete("")),
    (EMPTY, lambda collection: collection.delete(["ice", ""])),
    (EMPTY, lambda collection: collection.index("")),
    (EMPTY, lambda collection: collection.index([Path.cwd(), ""])),
    (EMPTY, lambda collection: collection.update([Path.cwd(), ""])),
    (EMPTY, lambda collection: collection.add(["text"], ids=[""])),
    ("'h' is empty", lambda collection: collection.add(["Bread needs time.", ""], ids=["g", "h"])),
    ("'h' is empty", lambda collection: collection.add(["Bread needs time.", " \n"], ids=["g", "h"])),
    ("'h' is empty", lambda collection: collection.add(["Bread needs time.", "\x00\x1b"], ids=["g", "h"])),
    ("does not exist", lambda collection: collection.add(["Bread needs time.", Path("absent.txt")])),
]


@pytest.mark.parametrize(("said", "use"), REFUSED)
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    collection: Collection,
    small: Any,
    monkeypatch: pytest.MonkeyPatch,
    said: str | None,
    use: Callable[[Collection], Any],
) -> None:
    monkeypatch.chdir(small.path)
    collection.add("Ice is blue.", ids=["ice"])
    with pytest.raises(InputError, match=said):
        use(collection)
    assert rows(collection) == [("ice", "indexed", 0)]
    assert collection.roots == []


def test_names_that_no_file_can_have(collection: Collection) -> None:
    assert not Collection.exists("x" * 5000)
    assert not Collection.exists("~nobody-of-this-name/notes")
    assert locate("~nobody-of-this-name/notes").name == "notes"
    assert collection.delete("a\0b") == 0
    collection.add("A river floods.", ids=["a\0b"])
    assert collection.delete("a\0b") == 1


def rows(collection: Collection) -> list[tuple[Any, ...]]:
    """The rows of the collection, in any state."""
    with collection.database.read() as db:
        return db.execute("SELECT path, status, due FROM files ORDER BY path").fetchall()


@given(st.text(st.characters(codec=None) | st.just("\ud800"), max_size=5))
def test_what_is_storable_is_what_utf_8_can_say(text: str) -> None:
    half = any(0xD800 <= ord(char) < 0xE000 for char in text)
    assert storable(text) == (not half)
    if half:
        with pytest.raises(InputError) as caught:
            checked(text, "it")
        assert str(caught.value).isascii()
    else:
        assert checked(text, "it") == text


@pytest.mark.parametrize("stem", ["doc", "/doc"])
def test_a_text_has_no_texts_below_it(collection: Collection, consistent: Check, stem: str) -> None:
    ids = [f"{stem}/1", f"{stem}/1/2", f"{stem}/10"]
    collection.add(["One.", "Two.", "Ten."], ids=ids)
    assert collection.delete([ids[0]]) == 1
    assert collection.delete(stem) == 0
    assert [file.path for file in collection.files()] == sorted(ids[1:])
    consistent(collection)


def test_a_text_goes_before_a_folder_of_its_name(
    collection: Collection, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small.path)
    collection.index(["kitchen", "ice.txt"])
    collection.add(["Bread is old.", "Ice is old."], ids=["kitchen", "ice.txt"])
    assert collection.delete(["kitchen", "ice.txt"]) == 2
    assert sorted(names(collection)) == ["bread.md", "ice.txt"]
    assert collection.roots == [str(small.path / "ice.txt"), str(small.path / "kitchen")]
    assert collection.delete(["kitchen", "ice.txt"]) == 2
    assert (names(collection), collection.roots) == ([], [])


def test_a_path_is_no_text(collection: Collection, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(small.path)
    collection.index("kitchen")
    collection.add("Bread is old.", ids=["kitchen"])
    assert collection.delete(Path("kitchen")) == 1
    assert (names(collection), collection.roots) == (["kitchen"], [])


SENDERS = ("Ann Lee <ann@a.org>", "Bo <bo@b.org>", "Çağla <c@c.org>")


def mail(number: int, earlier: Iterable[int] = (), replied: int | None = None) -> EmailMessage:
    made = EmailMessage()
    made["From"], made["To"], made["Cc"] = SENDERS[number % 3], "dora@d.org", f"Eve {number} <eve@e.org>"
    made["Subject"], made["Date"] = f"Re: The cheese {number}", f"0{number} Mar 2024 10:00:00 +0100"
    made["Message-ID"] = f"<{number}@x>"
    if earlier:
        made["References"] = " ".join(f"<{n}@x>" for n in earlier)
    if replied is not None:
        made["In-Reply-To"] = f"Your message of Monday <{replied}@x>"
    made.set_content(f"The cheese of number {number} is ripe.")
    return made


def found(collection: Collection, *filters: str) -> list[str]:
    return sorted(
        hit.mail.id if hit.mail else Path(hit.path).name
        for hit in collection.search("cheese ripe", 20, rerank=False, where=filters)
    )


@pytest.fixture
def mails(make: Make, folder: Any) -> Collection:
    box = mailbox.mbox(folder.path / "box.mbox")
    for made in (mail(1), mail(2, [1]), mail(3, [1, 2])):
        box.add(made)
    box.close()
    folder.write("box.mbox", (folder.path / "box.mbox").read_bytes())
    folder.write("four.eml", mail(4, replied=3).as_bytes())
    folder.write("five.eml", mail(5).as_bytes())
    folder.write("note.md", "The cheese of the note is ripe.")
    collection = make()
    collection.index(folder.path)
    return collection


def test_a_hit_has_its_mail(mails: Collection) -> None:
    (first,) = mails.search("cheese", rerank=False, where=["from:ANN", "subject:cheese 3"])
    assert first.mail == Mail(
        "Ann Lee <ann@a.org>", "dora@d.org, Eve 3 <eve@e.org>", "Re: The cheese 3", "2024-03-03T10:00:00+01:00", "3@x",
        "1@x",
    )  # fmt: skip
    assert first.to_json()["mail"]["thread"] == "1@x"
    assert "mail" not in mails.search("note", 1, rerank=False, where="type:markdown")[0].to_json()
    assert hit_from_json(asdict(first)) == first


def test_filters(mails: Collection) -> None:
    for filters, ids in (
        (["from:ann"], ["3@x"]),
        (["from:lee <ANN"], ["3@x"]),
        (["from:ÇAĞLA", "from:ann"], ["2@x", "3@x", "5@x"]),
        (["to:eve 4"], ["4@x"]),
        (["to:dora", "from:bo"], ["1@x", "4@x"]),
        (["subject:CHEESE 2"], ["2@x"]),
        (["thread:3@x"], ["1@x", "2@x", "3@x", "4@x"]),
        (["thread:<1@x>", "after:2024-03-03T00:00+00:00"], ["3@x", "4@x"]),
        (["thread:5@x"], ["5@x"]),
        (["thread:9@x"], []),
        (["before:2024-03-02T00:00+00:00"], ["1@x"]),
        (["after:2024-03-05T00:00+00:00"], ["5@x", "note.md"]),
        (["after:2024-03-03T09:00+00:00", "before:2024-03-04T09:00+00:00"], ["3@x"]),
        (["from:%"], []),
    ):
        assert found(mails, *filters) == ids, filters
        assert Filters.parse(Filters.parse(filters).texts) == Filters.parse(filters)
    assert [Path(file.path).name for file in mails.files("to:dora")] == ["box.mbox", "five.eml", "four.eml"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(1, 5)))[::5])
def test_a_thread_is_the_same_in_any_order_of_arrival(make: Make, folder: Any, order: tuple[int, ...]) -> None:
    chain = {1: mail(1), 2: mail(2, replied=1), 3: mail(3, replied=2), 4: mail(4, [3])}
    with make(f"order{order}") as collection:
        for number in order:
            folder.write(f"{number}.eml", chain[number].as_bytes())
            collection.index(folder.path)
        threads = {hit.mail.thread for hit in collection.search("cheese", 9, rerank=False) if hit.mail}
    assert threads == {"1@x"}


def test_mails_change_and_go_with_their_file(mails: Collection, folder: Any) -> None:
    folder.write("four.eml", mail(4).as_bytes().replace(b"Bo <bo@b.org>", b"New <n@n.org>"))
    (folder.path / "box.mbox").unlink()
    mails.index(folder.path)
    assert found(mails, "to:dora") == ["4@x", "5@x"]
    assert found(mails, "from:new") == ["4@x"]
    assert found(mails, "thread:4@x") == ["4@x"]


def test_another_sender_is_damage_and_a_repair_reads_mails_again(mails: Collection, tiny_config: Any) -> None:
    with mails.database.write() as db:
        db.execute("UPDATE mails SET sender = 'Mallory' WHERE id = '4@x'")
    with pytest.raises(DamagedStore, match="the mail on page 0 of file"):
        mails.search("cheese", 9, rerank=False)
    path = mails.path
    mails.close()
    repair(CollectionCare(path, tiny_config, MemoryBudget(10**10)), budget=MemoryBudget(10**10))
    with Collection(path, config=tiny_config) as mended:
        report = mended.index()
        assert report.chunks == 0, "no vector is made again"
        assert found(mended, "thread:1@x") == ["1@x", "2@x", "3@x", "4@x"]


def test_events_chats_and_members_of_archives_are_filtered_as_mails_are(make: Make, folder: Any) -> None:
    events = "".join(
        f"BEGIN:VEVENT\nSUMMARY:Cheese ripe {month}\nDTSTART:2024{month:02}05T100000Z\n"
        f"ATTENDEE;CN=Guest {month}:mailto:guest@x.org\nEND:VEVENT\n"
        for month in (1, 6)
    )
    folder.write("events.ics", events)
    folder.write(
        "chat.txt", "".join(f"[05.{month:02}.24, 10:00:00] Ann: Cheese {month} ripe.\n" * 2 for month in (2, 7))
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for month in (3, 8):
            archive.writestr(zipfile.ZipInfo(f"{month}.txt", (2024, month, 5, 10, 0, 0)), f"Cheese {month} is ripe.")
    folder.write("letters.zip", buffer.getvalue())
    collection = make()
    collection.index(folder.path)

    def months(*filters: str) -> list[str]:
        hits = collection.search("cheese ripe", 20, rerank=False, where=filters)
        return sorted(hit.mail.sent[5:7] for hit in hits if hit.mail)

    assert months() == ["01", "02", "03", "06", "07", "08"]
    assert months("after:2024-05-01", "before:2024-08-01") == ["06", "07"]
    assert months("from:ann") == ["02", "07"]
    assert months("to:guest 6") == ["06"]
    assert months("type:archive", "subject:8.txt") == ["08"]
    (hit,) = collection.search("cheese", where=["subject:8.txt"], rerank=False)
    assert hit.citation == f"{folder.path / 'letters.zip'} › 8.txt:1"
