"""`index`: brings a cluster up to date with folders. Files go to readers in groups. A group that was lost with its
reader is read again, and a run that was killed skips the files that the shards have."""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from edge.apps.cluster.calling import Places, Send, asked, first, received, unpacked_documents
from edge.apps.collection.paths import absence, check_there, listed, nearest, resolved
from edge.apps.documents.base import FoundFile, Reason, SkippedFile
from edge.apps.documents.scanner import scan
from edge.errors import Unreachable

if TYPE_CHECKING:
    from edge.apps.cluster.cluster import Cluster

_GROUP = 32

_AHEAD = 2
_PUBLISH_S = 60.0  # Then the files so far become searchable.
_TOLD = 100


@dataclass(slots=True)
class Indexed:
    counts: Counter[str] = field(default_factory=Counter)
    passages: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    missing: tuple[str, ...] = ()
    version: int = 0


def index(
    cluster: Cluster, readers: Sequence[Send], roots: Sequence[str], *, progress: Callable[[Indexed], object]
) -> Indexed:
    given = [resolved(root) for root in listed(roots)]
    check_there(given)
    done, seen = Indexed(), set[str]()
    with cluster.writing():
        identity = cluster.models.identity()
        assert identity is not None
        about = {"source": identity.source or identity.name, "fingerprint": identity.fingerprint}
        present = [root for root in given if absence(root, lambda root: any(cluster.below(root))) is None]
        done.missing = tuple(root for root in given if root not in present)
        groups = _groups(cluster, present, done, seen)
        idle = deque(list(readers) * _AHEAD)
        waiting: dict[Future[tuple[bytes, bytes]], Send] = {}
        published = time.monotonic()
        while True:
            for group in islice(groups, len(idle)):
                send = idle.popleft()
                head = json.dumps({"files": group, **about}).encode()
                waiting[send("read", head, b"")] = send
            if not waiting:
                break
            for future in first(cluster.places, waiting):
                idle.append(waiting.pop(future))
                answer, raw = asked(partial(_answer, cluster.places, future), "read")
                _take(cluster, done, answer, raw, identity.dim)
                progress(done)
            if time.monotonic() - published > _PUBLISH_S:
                cluster.publish()
                published = time.monotonic()
        for root in present:
            for paths in cluster.below(root):
                gone = [path for path in paths if nearest(path, seen) is None]
                done.counts["removed"] += cluster.remove(gone) if gone else 0
        done.version = cluster.finish()
    return done


def _groups(
    cluster: Cluster, roots: Iterable[str], done: Indexed, seen: set[str]
) -> Iterator[list[tuple[str, str]]]:  # fmt: skip
    """Notes as `seen` what is there or cannot be read."""
    if not (roots := list(roots)):
        return
    found = scan(roots, exclude=[cluster.catalogue.database.path.parent], budget=cluster.budget)
    left: list[tuple[str, str]] = []
    while some := list(islice(found, 8 * _GROUP)):
        files = {str(one.path): one for one in some if isinstance(one, FoundFile)}
        done.counts["skipped"] += len(some) - len(files)
        seen.update(str(one.path) for one in some if isinstance(one, SkippedFile) and one.reason is Reason.UNREADABLE)
        known = cluster.known(list(files))
        for path, file in files.items():
            seen.add(path)
            if path in known and (*known[path][:4], 0) == (*file.stamp, known[path][4]):
                done.counts["unchanged"] += 1
            else:
                left.append((path, str(file.root)))
        while len(left) >= _GROUP:
            yield left[:_GROUP]
            del left[:_GROUP]
    if left:
        yield left


def _take(cluster: Cluster, done: Indexed, answer: dict[str, Any], raw: bytes, dim: int) -> None:
    """Files that have no text any more are removed."""
    documents = unpacked_documents(answer["documents"], raw, dim)
    if documents:
        done.passages += cluster.put(documents)
    done.counts["indexed"] += len(documents)
    for path, outcome, reason in answer["others"]:
        done.counts[outcome] += 1
        if outcome in ("failed", "unreadable") and len(done.failed) < _TOLD:
            done.failed.append((path, reason))
    if empty := [path for path, outcome, _ in answer["others"] if outcome in ("skipped", "failed", "gone")]:
        cluster.remove(empty)


def _answer(places: Places, future: Future[tuple[bytes, bytes]], *_: object) -> tuple[bytes, bytes]:
    return received(places, future, lambda why: Unreachable(f"a reader of files does not answer: {why}"))
