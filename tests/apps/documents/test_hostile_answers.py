"""A document may take over the process that reads it, which then answers anything: only this file fails."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.apps.documents import extraction
from edge.apps.documents.base import LARGEST_INTEGER, Stamp
from edge.apps.documents.extraction import Extractor, WorkerProcess
from edge.errors import InputError

DOCUMENT = {"kind": "text", "title": "t", "encoding": None, "warning": ""}
CHUNK = ["text", "context", 1, 1, None, None, ""]
MAIL = [0, "from", "to", "subject", "", "", ""]
END = {"end": True}

TOO_LARGE = 2**63


def changed(values: list[Any], place: int, value: Any) -> list[Any]:
    return [*values[:place], value, *values[place + 1 :]]


ODD = (
    None,
    -1,
    TOO_LARGE,
    10**400,
    1.5,
    float("nan"),
    True,
    "\ud800",
    "x" * 10_000_001,
    [],
    {},
    [TOO_LARGE],
    ["\ud800"],
)

ANSWERS: list[list[Any]] = [
    [DOCUMENT, [], END], [DOCUMENT, [1], END], [DOCUMENT, CHUNK[:-1], END], [CHUNK, END], [{}, CHUNK, END],
    [DOCUMENT, {"mail": None}, CHUNK, END], [DOCUMENT, {"mail": []}, CHUNK, END], [{"error": None}],
    [{"error": "x"}], [{"error": "x", "reason": "no such"}], [{"error": "x", "reason": []}],
    [{"error": "\ud800", "reason": None}],
    *([DOCUMENT, changed(CHUNK, place, value), END] for place in range(len(CHUNK)) for value in ODD),
    *([{**DOCUMENT, name: value}, CHUNK, END] for name in DOCUMENT for value in ODD),
    *([DOCUMENT, {"mail": changed(MAIL, place, value)}, CHUNK, END] for place in range(len(MAIL)) for value in ODD),
]  # fmt: skip


class _Taken:
    """A process that a document has taken over."""

    alive, ran_short = True, False
    answers: Any = ()

    def __init__(self, **options: Any) -> None:
        pass

    def ask(self, request: Any, path: Path, *, seconds: float) -> Iterator[Any]:
        yield from json.loads(json.dumps(self.answers))

    def resident(self) -> int:
        return 0

    def kill(self) -> None:
        pass


def test_whatever_the_worker_answers_only_the_file_fails(
    extractor: Extractor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.txt"
    path.write_text("A text.")
    taken = 0
    monkeypatch.setattr(extraction, "WorkerProcess", _Taken)
    for number, answers in enumerate(ANSWERS):
        _Taken.answers = answers
        try:
            found = extractor.extract(path)
        except InputError:
            continue
        except Exception as error:
            raise AssertionError(f"answer {number}, {str(answers)[:200]}: {error!r}") from error
        taken += 1
        assert all(len(text) <= 100_000 for text in (found.kind, found.title, found.warning))
        for chunk in found.chunks:
            chunk.text.encode(), chunk.context.encode()
            assert all(type(n) is int and n <= LARGEST_INTEGER for n in (chunk.line_start, chunk.line_end))
            assert chunk.page is None or chunk.page <= LARGEST_INTEGER
        assert all(page <= LARGEST_INTEGER for page in found.mails)
    assert 0 < taken < len(ANSWERS) / 3, "some odd values may be stored"


@pytest.mark.parametrize("line", [b"no JSON\n", b"[" * 100_000 + b"\n", b"\xff\n", b'"text"\n', b"1\n", b"NaN\n"])
def test_an_answer_that_is_no_json_fails_the_file(
    extractor: Extractor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    path = tmp_path / "file.txt"
    path.write_text("A text.")
    real = WorkerProcess.ask

    def ask(worker: WorkerProcess, *arguments: Any, **named: Any) -> Any:
        worker._process.stdout = io.BytesIO(line)
        return real(worker, *arguments, **named)

    monkeypatch.setattr(WorkerProcess, "ask", ask)
    with pytest.raises(InputError, match="crashed the process"):
        extractor.extract(path)


@pytest.mark.parametrize("time", [-(10**30), -(2**63) - 1, -1, 0, 2**63 - 1, 2**63, 10**30])
def test_times_of_files_can_be_stored(time: int, tmp_path: Path) -> None:
    class Status:
        st_size, st_ino, st_mtime_ns, st_ctime_ns = 1, 2**64 - 1, time, time

    stamp = Stamp.of(Status())  # type: ignore[arg-type]
    assert all(-LARGEST_INTEGER <= value <= LARGEST_INTEGER for value in stamp if value is not None)
    assert stamp.mtime_ns == max(-LARGEST_INTEGER, min(time, LARGEST_INTEGER))
