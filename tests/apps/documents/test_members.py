"""The members of archives are files of their own, within limits."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zipfile
from collections.abc import Mapping
from datetime import datetime
from email.message import EmailMessage
from pathlib import Path

import pytest

from edge.apps.documents import members
from edge.apps.documents.base import Reason, Skipped, place_in
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.file_types import choose
from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.trace import Trace
from tests.apps.documents.conftest import Read


def zipped(files: Mapping[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in files.items():
            made.writestr(zipfile.ZipInfo(name, (2024, 5, 14, 10, 30, 0)), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def tarred(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as made:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), int(datetime(2024, 5, 14, 10, 30).timestamp())
            made.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def mail() -> bytes:
    made = EmailMessage()
    made["From"], made["Subject"], made["Date"] = "Ann <ann@a.org>", "Keys", "Mon, 03 Mar 2025 10:00:00 +0000"
    made.set_content("Under the mat.")
    return made.as_bytes()


_FILES = {"letters/ann.txt": b"Dear Bo", "b.csv": b"name,town\nAnn,Moss\n", ".env": b"A=1", "__MACOSX/c.txt": b"no"}


@pytest.mark.parametrize(("name", "data"), [("a.zip", zipped(_FILES)), ("a.tar.gz", tarred(_FILES))])
def test_each_member_is_a_page_with_its_name_and_its_date(read: Read, name: str, data: bytes) -> None:
    document = read(name, data)
    assert choose(name, data).name == "archive"
    assert [(block.page, block.line_start, block.path, block.text) for block in document.blocks] == [
        (1, 1, ("letters/ann.txt",), "Dear Bo"),
        (2, 1, ("b.csv",), "name | town"),
        (2, 2, ("b.csv",), "name: Ann\ntown: Moss"),
    ]
    assert [mail.subject for mail in document.mails.values()] == ["letters/ann.txt", "b.csv"]
    assert all(mail.sent.startswith("2024-05-14T10:30") for mail in document.mails.values())
    assert place_in("archive", 2, 2, document.mails[2]) == " › b.csv:2"


def test_mails_and_archives_inside_keep_what_they_are(read: Read) -> None:
    inner = zipped({"deep.txt": "Quartz"})
    document = read("a.zip", zipped({"k.eml": mail(), "inner.zip": inner, "old.bin": b"\0\1\2"}))
    keys, deep = document.mails.values()
    assert (keys.sender, keys.subject, keys.sent) == ("Ann <ann@a.org>", "k.eml › Keys", "2025-03-03T10:00:00+00:00")
    assert deep.subject == "inner.zip › deep.txt"
    assert document.warning == "left out: old.bin (the file is binary)"


def test_an_attached_archive_is_read(read: Read) -> None:
    made = EmailMessage()
    made["From"], made["Subject"] = "ann@a.org", "x"
    made.set_content("See there.")
    made.add_attachment(zipped({"deep.txt": "Quartz"}), maintype="application", subtype="zip", filename="a.zip")
    assert [block.text for block in read("a.eml", made.as_bytes()).blocks][-1] == "Quartz"


def test_names_of_other_encodings(read: Read) -> None:
    data = zipped({"XXXXXX.txt": "Hello"}).replace(b"XXXXXX", "Письмо".encode("cp866"))
    assert [mail.subject for mail in read("a.zip", data).mails.values()] == ["Письмо.txt"]


def nested(depth: int) -> bytes:
    data = zipped({"word.txt": "Quartz"})
    for _ in range(depth):
        data = zipped({"next.zip": data})
    return data


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (nested(5), "next.zip.*read to a depth of 3"),
        (zipped({"bomb.txt": b"a" * 300_000}), r"bomb.txt \(more than"),
        (zipped({f"{at}.txt": b"a" * 90_000 for at in range(9)}), "unpacks to more than"),
        (zipped({f"{at}.txt": "x" for at in range(120)}), "more than 100 members"),
        (zipped({"a.txt": ""}), "no members"),
        (
            re.sub(rb"(?s)(PK\x01\x02.{6}).", rb"\g<1>" + b"\x06", zipped({"a.txt": "x"})),
            "compressed in a way that is not",
        ),
        (zipped({"a.txt": "long enough to be damaged by a cut"})[:-60], "damaged archive"),
        (gzip.compress(b"words " * 99)[:-30], "damaged|left out"),
    ],
)
def test_hostile_archives_give_one_sentence(
    read: Read, monkeypatch: pytest.MonkeyPatch, data: bytes, sentence: str
) -> None:
    monkeypatch.setattr(members, "MAX_PART_BYTES", 100_000)
    monkeypatch.setattr(members, "MAX_PARTS_BYTES", 500_000)
    monkeypatch.setattr(members, "MAX_MEMBERS", 100)
    try:
        said = read("a.gz" if data[:2] == b"\x1f\x8b" else "a.zip", data).warning
    except InputError as error:
        said = str(error)
    assert re.search(sentence, said)
    assert "\n" not in said


def test_the_first_members_count_when_the_time_is_over(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "_SECONDS", 0.0)
    clock = iter([0.0, 0.0, 1.0])
    monkeypatch.setattr(members.time, "process_time", lambda: next(clock))
    document = read("a.zip", zipped({"a.txt": "one", "b.txt": "two", "c.txt": "three"}))
    assert [block.text for block in document.blocks] == ["one"]
    assert document.warning == "left out: b.txt and what follows it, because the archive takes too long to read"


def test_other_containers_and_encrypted_ones_are_named(read: Read) -> None:
    with pytest.raises(Skipped, match="of a kind that is not read"):
        read("a.jar", zipped({"a.class": "x"}))
    data = bytearray(zipped({"a.txt": "secret"}))
    at = data.index(b"PK\1\2")
    data[at + 8] |= 1
    with pytest.raises(Skipped, match="needs a password") as error:
        read("a.zip", bytes(data))
    assert error.value.reason is Reason.ENCRYPTED


def test_a_small_archive_needs_no_second_worker(tmp_path: Path) -> None:
    """A read of the most bytes at once would take them all, and the worker has no room for that."""
    trace = Trace()
    files = {"a.zip": zipped(_FILES), "a.tar.gz": tarred(_FILES), "log.txt.gz": gzip.compress(b"The boiler failed.")}
    with Extractor(budget=MemoryBudget(10**11, baseline=0), trace=trace) as extractor:
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
            assert extractor.extract(tmp_path / name).chunks
    assert trace.counters["documents.worker_starts"] == 1
