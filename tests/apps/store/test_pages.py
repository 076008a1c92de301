"""Pages that differ from their checksums, and those that another process is only just writing."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.apps.store import pages
from edge.apps.store.pages import PAGE, damaged_pages, with_checksum

WHOLE = [with_checksum(bytes([number]) * PAGE) for number in range(1, 10)]


def test_a_page_is_damaged_if_it_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page 3 is being written; 5 and 8 are damaged; a part of a page lies at the end. All are waited for together."""
    path = tmp_path / "file"
    torn = [page if number not in (3, 5, 8) else page[:-1] + b"x" for number, page in enumerate(WHOLE, 1)]
    path.write_bytes(b"".join(torn) + b"part of a page")
    waits = []

    def another_writes(seconds: float) -> None:
        waits.append(seconds)
        with path.open("r+b") as file:
            file.seek(2 * PAGE)
            file.write(WHOLE[2])

    monkeypatch.setattr(pages.time, "sleep", another_writes)
    assert list(damaged_pages(path)) == [5, 8, 10]
    assert len(waits) == 2


def test_a_sound_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"".join(WHOLE))
    monkeypatch.setattr(pages.time, "sleep", lambda seconds: pytest.fail("nothing is to be waited for"))
    assert list(damaged_pages(path)) == []


def test_the_numbers_of_many_damaged_pages_are_not_all_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are waited for and given out part by part."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * (2_000 * PAGE))
    waits: list[float] = []
    monkeypatch.setattr(pages, "_SUSPECTS", 500)
    monkeypatch.setattr(pages.time, "sleep", waits.append)
    found = damaged_pages(path)
    assert next(found) == 1
    assert len(waits) == 2
    assert list(found) == list(range(2, 2_001))
    assert 4 <= len(waits) // 2 <= 5
