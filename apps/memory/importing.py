"""Takes transcripts into a memory: streamed, each turn once, and without keys and tokens."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from edge.apps.documents.secrets import without_secrets
from edge.apps.memory.arguments import Clock, Scope, stamp
from edge.apps.memory.entries import goes_on
from edge.apps.memory.records import Record, find_record, stored
from edge.apps.memory.store import MemoryStore
from edge.apps.memory.transcripts import ImportReport, Spoken, files_of, turns
from edge.apps.memory.transfer import (
    ALWAYS_READ,
    LINES_BESIDE,
    NBYTES_TOGETHER,
    PER_LINE,
    TOGETHER,
    Line,
    read_memory,
    store_lines,
)
from edge.errors import InputError, StorageError

_NAMES = uuids.UUID("5b0a6ed9-0d5c-4a75-9a0f-5b3f7a1f2f6c")
_PER_CHARACTER = 16


def import_transcripts(store: MemoryStore, scope: Scope, source: Path, clock: Clock, *, dry_run: bool) -> ImportReport:
    """See `Memory.import_transcripts`."""
    report = ImportReport()
    waiting: list[Line] = []
    with store.budget.reserve("imported turns", 0) as lease:
        for line in _read(store, scope, source, clock, report):
            needed = PER_LINE + _PER_CHARACTER * len(line.record.text)
            if waiting and (len(waiting) >= TOGETHER or lease.nbytes + needed > NBYTES_TOGETHER):
                report.new += _take(store, waiting, clock, dry_run)
                waiting = []
                lease.resize(0)
            lease.resize(lease.nbytes + needed)
            waiting.append(line)
        report.new += _take(store, waiting, clock, dry_run)
    return report


def _read(store: MemoryStore, scope: Scope, source: Path, clock: Clock, report: ImportReport) -> Iterator[Line]:
    files = files_of(source)
    for path in files:
        before: tuple[Spoken, Record] | None = None
        most = max(ALWAYS_READ, store.budget.free // LINES_BESIDE)
        try:
            for turn in turns(path, most, report):
                try:
                    line = _line(turn, before, scope, stamp(clock()), report)
                except InputError:
                    report.skipped += 1
                    continue
                before = (turn, line.record)
                report.turns += 1
                yield line
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
        except InputError:
            if len(files) == 1:
                raise
            report.skipped += 1  # a folder may hold other files
            continue
        report.files += 1


def _line(turn: Spoken, before: tuple[Spoken, Record] | None, scope: Scope, now: str, report: ImportReport) -> Line:
    text, secrets = without_secrets(turn.text)
    name = str(uuids.uuid5(_NAMES, "\n".join((*(str(value) for value in scope), turn.run, turn.key))))
    report.secrets += secrets
    if turn.document is not None:
        return read_memory({"id": name, **turn.document, "memory": text}, scope, now)
    whose = replace(scope, run_id=scope.run_id or turn.run or None)
    said = stored({"timestamp": turn.when})
    record = Record.new(name, text, whose, now, role=turn.role, metadata=dict(turn.metadata), **said)
    follows = None
    if before is not None and turn.run and before[0].run == turn.run and goes_on(before[1], record):
        follows = before[1].uuid
    return Line(record, [], follows, [])


def _take(store: MemoryStore, lines: list[Line], clock: Clock, dry_run: bool) -> int:
    if not dry_run or not lines:
        return store_lines(store, lines, clock)
    with store.read() as db:
        return sum(find_record(db, line.record.uuid, Scope()) is None for line in lines)
