"""`edge index` and `edge watch`: bring a collection up to date with folders, once or continuously. `edge index --tune`
chooses the parameters of its vector index, and says why."""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from edge.apps.collection.collection import Collection
from edge.apps.collection.paths import absence, check_there, contains, from_here, resolved
from edge.apps.collection.registry import PROJECT, holds_collection, locate
from edge.apps.collection.report import IndexReport
from edge.apps.commands.texts import read_texts
from edge.apps.console import ProgressBar, notice, tell
from edge.apps.options import ManyOptions, Report, Setup, collection_option, report_options, setup_options
from edge.apps.verbs.options import RequestOptions, option
from edge.config import Config, counted, format_size, parse_size
from edge.errors import InputError
from edge.ivf.base import Goal, IndexOptions, IndexTuning, Parameters
from edge.resident import ResidentWatch
from edge.text.control_characters import escaped
from edge.trace import Trace

_REASONS = 10

_paths = click.argument("paths", nargs=-1, metavar="[DIR]...")
_embedder = click.option("--embedder", help="Model for a new collection: a known name or the path of a packed model.")
_poll = click.option("--poll", is_flag=True, help="Watch by comparing, for network drives that send no notifications.")


@dataclass(frozen=True, slots=True)
class TuneOptions(RequestOptions):
    """What the parameters of the vector index are chosen for; None where it was not given."""

    tune: bool = option(False, "Choose the parameters of the vector index by measuring, and train it anew.", "--tune")
    recall: float | None = option(
        None, "With --tune: share of the 10 nearest passages that a search must find (0.95 without --within).",
        "--recall",
    )  # fmt: skip
    within: float | None = option(None, "With --tune: milliseconds that a query may take.", "--within", metavar="MS")
    lists_size: str | None = option(
        None, "With --tune: most bytes of all lists, such as 100MB.", "--lists-size", metavar="SIZE"
    )
    questions: str | None = option(
        None, "With --tune: file with questions such as yours, one per line; made from passages if not given.",
        "--questions", metavar="FILE",
    )  # fmt: skip

    def goal(self) -> Goal | None:
        if not self.tune:
            if alone := next(iter(self.to_json()), None):
                raise InputError(f"--{alone.replace('_', '-')} says what the index is tuned to: it needs --tune")
            return None
        recall = self.recall
        if recall is None and self.within is None:
            recall = IndexOptions().recall_target
        seconds = None if self.within is None else self.within / 1e3
        return Goal(recall, seconds, None if self.lists_size is None else parse_size(self.lists_size))


@click.command(cls=ManyOptions, everyday=("watch", "retry", "collection", "memory", "as_json"))
@_paths
@click.option("--watch", is_flag=True, help="Go on, and index every change as it happens.")
@click.option("--retry", is_flag=True, help="Try files again that failed or were skipped before.")
@click.option("--rebuild", is_flag=True, help="First embed every passage again, where vectors are damaged.")
@_poll
@_embedder
@click.option("--cluster", metavar="ADDRESS", help="Fill a collection in shards, which Ray at ADDRESS reaches.")
@click.option("--readers", type=click.IntRange(1), help="With --cluster: processes that read and embed files.")
@TuneOptions.add_to
@collection_option
@setup_options()
@report_options
def index(
    paths: tuple[str, ...],
    watch: bool,
    retry: bool,
    rebuild: bool,
    poll: bool,
    embedder: str | None,
    cluster: str | None,
    readers: int | None,
    options: TuneOptions,
    collection: Path | None,
    setup: Setup,
    report: Report,
) -> None:
    """Make the files in DIR ... searchable, or bring the index up to date.

    Only changed files are read. Without DIR, all indexed folders are compared. Hidden files, binary files and files
    that .gitignore or .edgeignore excludes are skipped; `edge status` shows the reasons.
    """
    config = setup.config(embedder=embedder)
    if cluster is not None:
        if watch or retry or rebuild or options.goal() is not None or report.stats or report.trace is not None:
            raise InputError("--watch, --retry, --rebuild, --stats, --trace and tuning do not go with --cluster")
        from edge.apps.cluster.command import indexed

        indexed(cluster, collection, config, paths, readers=readers or 0, as_json=report.as_json)
        return
    if readers is not None:
        raise InputError("--readers needs --cluster")
    _run(paths, collection, config, report, watch=watch, poll=poll, retry=retry, rebuild=rebuild, tuning=options)


@click.command("watch")
@_paths
@_poll
@_embedder
@collection_option
@setup_options()
@report_options
def watch_command(
    paths: tuple[str, ...], poll: bool, embedder: str | None, collection: Path | None, setup: Setup, report: Report
) -> None:
    """Keep the index of DIR ... (of all indexed folders, if not given) up to date until interrupted."""
    config = setup.config(embedder=embedder)
    _run(paths, collection, config, report, watch=True, poll=poll)


def _run(
    paths: tuple[str, ...],
    chosen: Path | None,
    config: Config,
    report: Report,
    *,
    watch: bool,
    poll: bool,
    retry: bool = False,
    rebuild: bool = False,
    tuning: TuneOptions | None = None,
) -> None:
    goal = None if tuning is None else tuning.goal()
    check_there(named := [resolved(path) for path in paths])  # before a collection is made
    place = locate(chosen)
    if os.path.realpath(place) in named and not holds_collection(place):  # `edge index notes -c notes`
        raise InputError(
            f"the collection would lie among the files of {place}: `edge collections add {place.name}` names one "
            f"that lies among your data, and `-c {chosen}/{PROJECT}` one in a folder of its own"
        )
    recorder = Trace(events=report.trace is not None)
    with ResidentWatch() as resident, Collection(place, config=config, trace=recorder) as collection:
        output = _Output(collection, resident, as_json=report.as_json, stats=report.stats)
        if rebuild:
            with ProgressBar(" passages") as bar:
                made = collection.rebuild(progress=bar)
            click.echo(f"{counted(made, 'passage')} embedded again", err=True)
        roots = _roots(collection, paths, chosen)
        with ProgressBar(" passages") as bar:
            done = collection.index(roots, retry=retry, progress=bar)
        tuned = tune(collection, goal, tuning.questions) if tuning is not None and goal is not None else None
        output(done, tuned)
        tell(collection.health())
        if watch:
            _watch(collection, output, poll, [resolved(root) for root in roots])
    if report.trace is not None:
        recorder.write(report.trace)


def _watch(collection: Collection, output: _Output, poll: bool, named: list[str]) -> None:
    """The roots in `named`, or all if it is empty, until the user interrupts."""
    from edge.apps.collection.watching import Watcher

    roots = named or collection.roots
    more = f" and {len(roots) - _REASONS:,} more" if len(roots) > _REASONS else ""
    click.echo(escaped(f"watching {', '.join(roots[:_REASONS])}{more}; stop with Ctrl-C"), err=True)
    output.names_files = True
    try:
        Watcher(collection, report=output, notice=notice, poll=poll, roots=named or None).run(threading.Event())
    except KeyboardInterrupt:
        notice("stopped watching")


def _roots(collection: Collection, paths: tuple[str, ...], chosen: Path | None) -> list[str]:
    """Of a project's collection, which may have been cloned, only roots within."""
    if paths or chosen is not None or collection.path.name != PROJECT:
        return list(paths)
    inside = allowed_roots(collection, chosen)
    if not inside:
        raise InputError("the collection has no folder to index yet; name one: `edge index DIR`")
    return inside


def allowed_roots(collection: Collection, chosen: Path | None) -> list[str]:
    """Roots of a project's collection outside the project are reported and left out."""
    remembered = collection.roots
    if chosen is not None or collection.path.name != PROJECT:
        return remembered
    project = str(collection.path.parent)
    inside = [root for root in remembered if contains(project, root)]
    for root in remembered:
        if root not in inside:
            notice(f"{root} lies outside {project}: name it to index it")
    return inside


class _Output:
    def __init__(self, collection: Collection, resident: ResidentWatch, *, as_json: bool, stats: bool) -> None:
        self._collection = collection
        self._resident = resident
        self._json = as_json
        self._stats = stats
        self.names_files = False

    def __call__(self, report: IndexReport, tuned: IndexTuning | None = None) -> None:
        limit = self._collection.budget.limit
        figures: dict[str, Any] = report.to_json() | {"peak_resident": self._resident.high_water, "limit": limit}
        for root in report.missing:
            reason = absence(root, lambda root: True) or "was not there"
            notice(f"{root} {reason}; what was indexed of it stays searchable, until `edge remove` takes it out")
        for path in report.unreadable[:_REASONS]:
            notice(f"{path} cannot be read, and `edge status` says why; what was indexed of it stays searchable")
        if len(report.unreadable) > _REASONS:
            notice(f"... nor can {len(report.unreadable) - _REASONS} more")
        if self._json:
            click.echo(json.dumps(figures | ({} if tuned is None else {"tuning": as_figures(tuned)})))
        else:
            names = f": {', '.join(map(from_here, report.named))}" if self.names_files and report.named else ""
            more = report.indexed + report.removed - len(report.named)
            click.echo(escaped(f"{_sentence(report)}{names}{f' and {more:,} more' if names and more else ''}"))
        if tuned is not None and not self._json:
            click.echo(sentence(tuned))
        if (report.failed or report.incomplete) and not self._json:
            _print_left_out(report)
        if self._stats:
            _print_stats(report, self._resident.high_water, limit)
        sys.stdout.flush()


def _print_left_out(report: IndexReport) -> None:
    for name, count, files in (
        ("failed", report.failed, report.failed_files), ("incomplete", report.incomplete, report.incomplete_files)
    ):  # fmt: skip
        for file in files:
            click.echo(escaped(f"{name}: {from_here(file.path)}: {file.reason}"), err=True)
        if count > len(files):
            click.echo(f"... and {count - len(files):,} more: `edge status`", err=True)


def _sentence(report: IndexReport) -> str:
    left = ", ".join(
        f"{count:,} {name}"
        for name, count in (
            ("incomplete", report.incomplete), ("unchanged", report.unchanged), ("removed", report.removed),
            ("skipped", report.skipped), ("failed", report.failed),
        )
        if count
    )  # fmt: skip
    if not report.indexed:
        said = "up to date" if report.unchanged or report.removed else "there was no file to index"
        return said + (f": {left}" if left else "")
    rate = report.chunks / report.seconds if report.seconds else 0.0
    work = f"{counted(report.chunks, 'passage')} in {report.seconds:.1f} s, {rate:.0f} per second"
    return f"indexed {counted(report.indexed, 'file')} ({work})" + (f", {left}" if left else "")


def _print_stats(report: IndexReport, peak: int, limit: int) -> None:
    for line in (
        f"memory   {format_size(peak)} peak of {format_size(limit)} allowed",
        f"time     {report.seconds:.2f} s: scan {report.scan_s:.2f}, embedder {report.embed_s:.2f}, waited for files "
        f"{report.wait_s:.2f}, transactions {report.commit_s:.2f}, vector index {report.maintain_s:.2f}",
        f"share    {report.outside:.1%} of the time outside the embedder",
        f"passages {report.chunks:,} added, {report.reused:,} of them with the vector of an equal one",
    ):
        click.echo(line, err=True)


def tune(collection: Collection, goal: Goal, questions: str | None) -> IndexTuning:
    index = collection.vectors
    if index is None:
        raise InputError("the collection has no vectors yet; index something before it is tuned")
    given = None if questions is None else _embedded(collection, questions)
    with ProgressBar(" rows") as bar:
        return index.tune(
            collection.database.write, goal, questions=given, progress=lambda stage, done, total: bar(done, total)
        )


def _embedded(collection: Collection, questions: str) -> npt.NDArray[np.float32]:
    embedder, budget = collection.embedder, collection.budget
    documents = read_texts(questions, budget.limit)
    with budget.reserve("questions", sum(document.nbytes for document in documents)):
        return embedder.embed([document.text for document in documents], query=True)


def as_figures(done: IndexTuning) -> dict[str, Any]:
    chosen = asdict(done.tuned)
    return {"changed": done.changed, **chosen.pop("parameters"), **chosen}


def sentence(done: IndexTuning) -> str:
    chosen = done.tuned
    aim = wished(chosen.goal)
    verb = "tuned" if done.changed else "already tuned"
    reason = "the highest recall" if chosen.goal.recall is None else "the fastest"
    what = described(chosen.parameters, chosen.rows, chosen.nprobe)
    return (
        f"{verb} for {aim}: {what}. Of all parameters that keep this goal, these are predicted to be {reason}: "
        f"{chosen.seconds * 1e3:.2f} ms per query, a recall of {chosen.recall:.3f} on the sampled questions, "
        f"{format_size(chosen.nbytes)} of lists."
    )


def wished(goal: Goal) -> str:
    parts = [
        f"a recall of {goal.recall:g}" if goal.recall is not None else "",
        f"{goal.seconds * 1e3:g} ms per query" if goal.seconds is not None else "",
        f"lists of at most {format_size(goal.nbytes)}" if goal.nbytes is not None else "",
    ]
    return " and ".join(filter(None, parts))


def described(p: Parameters, rows: int, nprobe: int) -> str:
    if p.lists == 1:
        return f"one list of {counted(rows, 'vector')}, scanned exactly"
    codes = {
        "flat": "exact vectors", "sq8": "one byte per component", "pq": f"codes of {counted(p.code_size, 'byte')}",
        "opq": f"codes of {counted(p.code_size, 'byte')} after a rotation",
    }[p.codec]  # fmt: skip
    scored = "" if p.codec == "flat" else f", and at most {counted(p.rescore, 'exact score')} per result"
    return f"{counted(p.lists, 'list')} of {counted(rows, 'vector')} ({p.codec}: {codes}), {nprobe:,} probed{scored}"
