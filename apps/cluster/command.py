"""`edge cluster`: a collection on several machines. `searched`: the work of `edge search --cluster`; `index`: of `edge
index --cluster`, where files go to readers in groups. A group that was lost with its reader is read again, and a run
that was killed skips the files that the shards have."""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge.apps.cluster.calling import Places, Send, asked, first, received, unpacked_documents
from edge.apps.cluster.catalogue import Catalogue, Replica
from edge.apps.cluster.cluster import Cluster
from edge.apps.cluster.places import LocalPlaces
from edge.apps.collection.paths import absence, check_there, listed, nearest, resolved
from edge.apps.collection.query import Query
from edge.apps.collection.registry import holds_collection, locate
from edge.apps.console import notice
from edge.apps.documents.base import FoundFile, Reason, SkippedFile
from edge.apps.documents.scanner import scan
from edge.apps.options import CommandGroup, Setup, collection_option, json_option, setup_options
from edge.apps.store.lexical import respelled
from edge.apps.verbs.requests import SearchOptions
from edge.apps.verbs.work import UNKNOWN, SearchOutcome, figures
from edge.config import Config, counted, format_size, parse_size
from edge.errors import CollectionMissing, InputError, Unreachable
from edge.resident import ResidentWatch
from edge.trace import Trace

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


HERE = "here"
"""The address that opens all shards in the command's own process, without Ray."""

_address = click.option(
    "--cluster", "address", default="auto", show_default=True, metavar="ADDRESS",
    help=f"HOST:PORT of Ray's head; auto: the one on this machine; {HERE}: all shards in this process.",
)  # fmt: skip
_shards = click.option(
    "--shard", "shards", multiple=True, required=True, metavar="NAME=[PLACE:]DIR",
    help="A shard, the place (of `edge cluster node`) that holds it, and its empty folder there; the same name again "
    "is a further copy.",
)  # fmt: skip


def existing(*chosen: Path | str | None) -> Path:
    if len(chosen) > 1:
        raise InputError("with --cluster one collection is searched; name one")
    folder = locate(*chosen)
    if not Catalogue.exists(folder):
        raise CollectionMissing(f"there is no collection in shards in {folder}; `edge cluster create` makes one")
    return folder


@contextmanager
def opened(
    address: str, chosen: Sequence[Path | str | None], config: Config, trace: Trace | None = None
) -> Iterator[Cluster]:
    folder = existing(*chosen)
    with connected(address, config) as places, Cluster(folder, places, config=config, trace=trace) as cluster:
        yield cluster


@contextmanager
def connected(address: str, config: Config) -> Iterator[Places]:
    if address == HERE:
        places: Places = LocalPlaces(config=config)
    else:
        from edge.apps.cluster.places import RayPlaces

        places = RayPlaces(address, config=config)
    try:
        yield places
    finally:
        places.close()


def searched(
    address: str, collections: Sequence[str], config: Config, trace: Path | None, query: str, options: SearchOptions,
    *, partial: bool,
) -> SearchOutcome:  # fmt: skip
    recorder = Trace(events=trace is not None)
    with ResidentWatch() as resident, opened(address, collections, config, recorder) as cluster:
        view = cluster.view("", partial=partial)
        spelled = view.spelled(query)
        nonsense = view.is_nonsense(respelled(query, spelled))
        hits = [] if nonsense else view.search(query, options=options, spelled=spelled)
        troubles, version, limit = (
            [str(one) for one in view.health()],
            cluster.catalogue.version()[0],
            view.budget.limit,
        )
    counters = recorder.snapshot()
    seconds = sum(counters.get(f"search.{stage}_s", 0.0) for stage in ("embed", "search", "rerank"))
    if trace is not None:
        recorder.write(trace)
    told = figures(counters, {}, seconds, resident.high_water, limit)
    told |= {"version": version, "missing": list(view.missing), "spelled": spelled}
    told["without"] = Query.parse(query).without
    return SearchOutcome(hits, {"": troubles}, troubles, UNKNOWN if nonsense else "", told)


def indexed(
    address: str, chosen: Path | None, config: Config, roots: Sequence[str], *, readers: int, as_json: bool
) -> None:
    from edge.apps.cluster.command import index

    if not roots:
        raise InputError("with --cluster the folders are named each time")

    def tell(done: Indexed) -> None:
        click.echo(f"{counted(done.counts['indexed'], 'file')}, {counted(done.passages, 'passage')}", err=True)

    with opened(address, [chosen], config) as found:
        done = index(found, found.places.readers(readers), roots, progress=tell)
    if as_json:
        failed = [{"path": path, "reason": reason} for path, reason in done.failed]
        click.echo(json.dumps({
            "files": dict(done.counts), "passages": done.passages, "failed": failed, "missing": list(done.missing),
            "version": done.version,
        }))  # fmt: skip
        return
    told = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(done.counts.items()) if count)
    click.echo(f"{told or 'no files'}; {counted(done.passages, 'passage')} added; version {done.version}")
    for path, reason in done.failed:
        notice(f"{path}: {reason}")
    for root in done.missing:
        notice(f"{root} is not there now; its files stay")


@click.group(cls=CommandGroup)
def cluster() -> None:
    """A collection in shards on several machines, searched as one."""


@cluster.command()
@click.option("--join", metavar="HOST:PORT", help="The head of a cluster; if not given, this machine is the head.")
@click.option("--place", required=True, help="Name of this machine, by which shards are put there.")
@click.option("--listen", default="127.0.0.1", show_default=True, help="Address of this machine for the others.")
@click.option("--port", default=6379, show_default=True, help="Port of the head.")
@click.option("--object-store", default="80MB", show_default=True, help="Shared memory for Ray.")
def node(join: str | None, place: str, listen: str, port: int, object_store: str) -> None:
    """Start Ray on this machine: without its dashboard and reports of use, and with a token.

    The token is in ~/.ray/auth_token (or RAY_AUTH_TOKEN_PATH). Every machine needs the same file. `ray stop` ends it.
    """
    from edge.apps.cluster.places import start_node, token_file

    start_node(join, place=place, listen=listen, port=port, nbytes=parse_size(object_store))
    where = f"{listen}:{port}" if join is None else join
    click.echo(f"place {place} is in the cluster at {where}; the token is in {token_file()}", err=True)


@cluster.command()
@_shards
@_address
@click.option("--embedder", help="Model of the vectors: a known name or the path of a packed model.")
@collection_option
@setup_options()
def create(shards: tuple[str, ...], address: str, embedder: str | None, collection: Path | None, setup: Setup) -> None:
    """Make an empty collection in shards. --memory is the limit of each shard, Ray's part included."""
    folder = locate(collection)
    if holds_collection(folder):
        raise InputError(f"{folder} holds a collection already; name another folder for the catalogue")
    config = setup.config(embedder=embedder)
    replicas = _replicas(shards, config.memory)
    with connected(address, config) as places, Cluster(folder, places, config=config) as made:
        made.create(replicas)
    click.echo(f"{counted(len(shards), 'shard')} made; `edge index --cluster {address} DIR` fills them", err=True)


@cluster.command()
@_shards
@_address
@collection_option
@setup_options()
def grow(shards: tuple[str, ...], address: str, collection: Path | None, setup: Setup) -> None:
    """Add a shard, and move its share of the documents to it. Searches go on meanwhile. --memory is its limit."""
    config = setup.config()
    with opened(address, [collection], config) as found:
        moved = found.grow(_replicas(shards, config.memory))
    click.echo(f"{counted(moved, 'document')} moved", err=True)


@cluster.command()
@_address
@collection_option
@setup_options()
@json_option
def status(address: str, collection: Path | None, setup: Setup, as_json: bool) -> None:
    """Print the shards: their documents, their memory, and the version that searches see."""
    with opened(address, [collection], setup.config()) as found:
        number, held = found.catalogue.version()
        states = found.states()
        replicas = {one.name: one for one in found.catalogue.replicas()}
    if as_json:
        about = {name: {**state, "place": replicas[name].place, "folder": replicas[name].folder}
                 for name, state in states.items()}  # fmt: skip
        click.echo(json.dumps({"version": number, "shards": about}))
        return
    click.echo(f"version {number}")
    for name, state in states.items():
        one = replicas[name]
        seen = "" if (one.shard, one.number) in held else ", not searched yet"
        click.echo(
            f"{name:12} {one.place or 'anywhere'}:{one.folder}  {counted(state['documents'], 'document')}, "
            f"{counted(state['passages'], 'passage')}{seen}; {format_size(state['resident'])} of "
            f"{format_size(state['limit'])}, {format_size(state['began'])} of it before the collection was opened, and "
            f"{format_size(state['shared'])} shared"
        )


def _replicas(texts: Sequence[str], memory: int) -> list[Replica]:
    found: list[Replica] = []
    for text in texts:
        name, _, where = text.partition("=")
        place, colon, folder = where.partition(":")
        if not colon:
            place, folder = "", place
        if not (name.isidentifier() and folder):
            raise InputError(f"{text!r} is no shard: write NAME=[PLACE:]DIR, the name of letters, digits and _")
        number = sum(one.shard == name for one in found)
        found.append(Replica(name, number, place, folder if place else str(Path(folder).absolute()), memory))
    return found
