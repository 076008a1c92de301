"""The senders, recipients, subjects, dates and threads of mails: stored, shown and filtered."""

from __future__ import annotations

import io
import itertools
import mailbox
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from edge.apps.collection.collection import Collection
from edge.apps.collection.damage import CollectionCare
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import hit_from_json
from edge.apps.documents.base import Mail
from edge.apps.store.care import repair
from edge.apps.store.failures import DamagedStore
from edge.budget import MemoryBudget

Make = Callable[..., Collection]
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


def test_files_with_a_mail_that_passes_are_listed_once(mails: Collection) -> None:
    assert [Path(file.path).name for file in mails.files("to:dora")] == ["box.mbox", "five.eml", "four.eml"]
    assert [Path(file.path).name for file in mails.files("before:2024-03-04T00:00+00:00")] == ["box.mbox"]


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
