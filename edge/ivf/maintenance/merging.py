"""Merging of small segments, and removal of deleted rows.

A segment is rewritten, together with all smaller ones, once its deleted rows and the rows of the smaller ones make up a
tenth of it. Each further part of a list costs a search more than scanning the part's rows. With this rule, an index
that grows to a million rows by flushes of 2,048 rows has three segments at most and has copied a row 16 times on
average (simulated). Merging at a half would copy a row eight times and leave five segments.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from edge.ivf.maintenance.rewriting import Source, live_rows, put_in_place, retire
from edge.ivf.maintenance.work import Work
from edge.ivf.storage.manifest import Manifest
from edge.ivf.storage.segment_writer import SegmentWriter

_RATIO = 0.1

_SLICE_NBYTES = 8 << 20
"""Memory for reading one part of a source (at most 4 MiB, and a copy without the deleted rows)."""


def merge(work: Work) -> None:
    """Merges the segments that are due; if `work.full`, all of them into one without deleted rows.

    Raises:
        BudgetExceeded, CorruptBlock, StorageError: a segment cannot be read or written; nothing has changed.
    """
    with work.write() as db:
        manifest = Manifest(db)
        sources = list(work.sources(manifest).values())
        training, number_of_training = work.snapshots.training(manifest), manifest.state().training
    chosen = _everything(sources) if work.full else _due(sources)
    if not chosen:
        return
    total = live_rows(chosen)
    spec = training.codec.spec
    with (
        work.budget.reserve("index merge", _SLICE_NBYTES),
        SegmentWriter(work.folder, spec, work.budget) as writer,
    ):
        done = 0
        numbers = [source.segment.parts["list"] for source in chosen]
        for number in np.unique(np.concatenate(numbers)).tolist():
            work.check("merge", done, total)
            for source, lists in zip(chosen, numbers, strict=True):
                low, high = np.searchsorted(lists, (number, number + 1))
                for block in source.stream(range(int(low), int(high))):
                    writer.append(number, block.ids, block.codes, block.vectors)
                    done += len(block.ids)
        copy = work.copied(chosen, writer, spec) if total else None
        with work.write() as db:
            manifest = Manifest(db)
            work.check_state(manifest, number_of_training, chosen)
            stamp = manifest.touch()
            if copy is not None:
                put_in_place(manifest, copy, stamp)
            else:
                retire(manifest, chosen)
    reclaimed = sum(len(source.deleted) for source in chosen)
    work.merged += total
    work.reclaimed += reclaimed
    work.trace.count("index.merged", total)
    work.trace.count("index.reclaimed", reclaimed)


def _everything(sources: list[Source]) -> list[Source]:
    return sources if len(sources) > 1 or any(len(source.deleted) for source in sources) else []


def _due(sources: Iterable[Source]) -> list[Source]:
    by_size = sorted(sources, key=lambda source: source.live)
    chosen = 0
    smaller = 0
    for position, source in enumerate(by_size):
        worn = smaller + len(source.deleted)
        if worn and worn >= _RATIO * source.live:
            chosen = position + 1
        smaller += source.live
    return by_size[:chosen]
