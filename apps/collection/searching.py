"""`PassageSource`: the operations that a search asks of one collection, for all queries of a batch. `candidates`: the
stages of a search over one or several collections before reranking."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from edge.apps.collection.catalog import (
    FULL_TEXT,
    Catalog,
    description_of,
    groups,
    is_mail,
    not_stored,
    read_descriptions,
    verify_file,
    verify_place,
    verify_text,
)
from edge.apps.collection.filters import Filters, NoSuchType
from edge.apps.collection.hits import Hit, Stages, modified
from edge.apps.collection.query import (
    AGAIN,
    BEGINNING,
    CODE_KIND,
    Names,
    best_sentence,
    checked_query,
    left_out,
    mostly_code,
    snippet,
    whole_files,
)
from edge.apps.documents.base import Mail, unpacked
from edge.apps.documents.kinds import plain, unpacked_parts
from edge.apps.store.database import Database
from edge.apps.store.lexical import (
    FUNCTION_WORDS,
    LexicalIndex,
    Statistics,
    nearest_in,
    nearest_word,
    shown_terms,
    shown_weights,
    stems_like,
    unknown_words,
    words_of,
)
from edge.apps.store.rebuilding import remedy
from edge.apps.store.rows import PER_JSON, HeldDict, HeldList, Row, held, held_by_key
from edge.budget import MemoryBudget
from edge.ivf.base import Connection, Found, Ids
from edge.ivf.index import VectorIndex
from edge.models.blending import BM25_WEIGHT, FULL_MATCH, convex_combination
from edge.models.registry import cosine_floor, language_gap
from edge.text.languages import language_of
from edge.trace import Trace

if TYPE_CHECKING:
    from edge.apps.collection.models import CollectionModels
    from edge.cache.lookahead import Lookahead
    from edge.runtimes.scoring import LayerReport

DEPTH = 100
"""Results that each ranking contributes at first."""

_DEEPER = 4

_DEEPEST = 6_400  # Passages beyond it are not found by a query.

Floats = npt.NDArray[np.float32]

Ranking = list[tuple[int, float]]
"""Passages by id, each with its score."""

Key = tuple[int, int]

_EVERY = 2**31

_MAIL_OF_CHUNK = "LEFT JOIN mails ON mails.file = files.id AND mails.page = ifnull(chunks.page, 0)"
_PASSING = f"SELECT chunks.id FROM files CROSS JOIN chunks ON chunks.file = files.id {_MAIL_OF_CHUNK} WHERE {{}}"

_ROWS = 2

_FOUND_NBYTES = 300


class Seen(Protocol):
    def fused(self, hits: list[Hit]) -> None:
        """Called with the results in the order of BM25 and vectors, before reranking."""

    def judged(self, hits: Sequence[Hit], report: LayerReport) -> None:
        """After each layer, in the reranker's thread, which it must not block."""


@dataclass(slots=True)
class Within:
    """The bounds of one search of the vectors: seconds for all queries (None: as long as the recall target needs), a
    lookahead that ends when the search begins, whether to probe all lists, the embedder's name, the seconds spent so
    far, and the searches that share the rest."""

    seconds: float | None = None
    window: Lookahead | None = None
    exhaustive: bool = False
    embedder: str = ""
    took: float = 0.0
    waiting: int = 1

    @property
    def share(self) -> float | None:
        return None if self.seconds is None else max(0.0, self.seconds - self.took) / self.waiting


class Source(Protocol):
    """The passages of one collection, here or elsewhere; see `PassageSource`, which raises the same errors."""

    def view(self) -> AbstractContextManager[object]: ...
    def statistics(self, queries: Sequence[str]) -> Statistics: ...
    def gather(
        self, queries: Sequence[tuple[str, Floats | None]], depth: int, whole: Statistics | None, where: Filters,
        within: Within,
    ) -> list[tuple[Ranking, Ranking]]: ...  # fmt: skip
    def resembling(self, word: str) -> dict[str, int]: ...
    def places(self, ids: Sequence[int]) -> dict[int, tuple[str, int]]: ...
    def hits(self, ids: Sequence[int]) -> dict[int, Hit]: ...


Result = TypeVar("Result")


class Fan(Protocol):
    def __call__(self, calls: Sequence[Callable[[], Result]]) -> list[Result]: ...


def in_turn(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    return [call() for call in calls]


class PassageSource:
    """The passages of one collection."""

    def __init__(
        self, database: Database, lexical: LexicalIndex, index: Callable[[], VectorIndex | None],
        budget: MemoryBudget, trace: Trace,
    ) -> None:  # fmt: skip
        self._database = database
        self._lexical = lexical
        self._index = index
        self._budget = budget
        self._trace = trace

    def view(self) -> AbstractContextManager[object]:
        """While it is open, all operations of this thread see one committed state."""
        return self._database.read()

    def statistics(self, queries: Sequence[str]) -> Statistics:
        with self._database.read() as db:
            return self._lexical.statistics(db, [term for query in queries for term in self._lexical.terms(query)])

    def gather(
        self, queries: Sequence[tuple[str, Floats | None]], depth: int, whole: Statistics | None, where: Filters,
        within: Within,
    ) -> list[tuple[Ranking, Ranking]]:  # fmt: skip
        """For each query (its words, and vectors [n, dim] of which the nearest counts; both may be missing) the `depth`
        passages with the highest BM25 scores and cosines, and those that equal the last of them. `whole` has the
        statistics of all collections; None if this is the only one."""
        with self._database.read() as db:
            clause, params = where.where(db) if where else ("", [])
            if left_out := self._lexical.left_out(where.without):
                clause += f" AND chunks.id NOT IN (SELECT rowid FROM {FULL_TEXT} WHERE {FULL_TEXT} MATCH ?)"
                params.append(left_out)
            with self._trace.span("full text", "search"):
                condition = f"+rowid IN ({_PASSING.format(clause)})" if where else ""
                words: list[Ranking] = []
                for query, _ in queries:
                    words.append(self._lexical.search(
                        db, query, depth, whole=whole, where=condition, params=params, budget=self._budget
                    ))  # fmt: skip
            near: list[Ranking] = [[] for _ in queries]
            given = [
                (number, row)
                for number, (_, rows) in enumerate(queries)
                if rows is not None
                for row in np.atleast_2d(rows)
            ]
            if (index := self._index()) is not None and given:
                with self._trace.span("vectors", "search"):
                    found = self._nearest(db, index, np.stack([row for _, row in given]), depth, clause, params, within)
                with self._budget.reserve("found passages", _FOUND_NBYTES * found.ids.size):
                    for (number, _), ids, scores in zip(given, found.ids.tolist(), found.scores.tolist(), strict=True):
                        near[number] += [pair for pair in zip(ids, scores, strict=True) if pair[0] >= 0]
                    for ranking in near:  # of a query's vectors the nearest counts
                        best = dict(sorted(ranking, key=lambda pair: pair[1]))
                        order = sorted(best.items(), key=lambda pair: (-pair[1], pair[0]))
                        ranking[:] = [pair for pair in order if pair[1] >= order[min(depth, len(order)) - 1][1]]
        return list(zip(words, near, strict=True))

    def resembling(self, word: str) -> dict[str, int]:
        """The words of the passages that a misspelled word resembles, each with the number of passages that hold its
        stem. None while files wait to be read, which may hold the word itself."""
        found: dict[str, int] = {}
        with self._database.read() as db:
            if db.execute("SELECT EXISTS (SELECT 1 FROM files WHERE due)").fetchone()[0]:
                return found
            for stem, count in stems_like(db, FULL_TEXT, word).items():
                rows = [row for row, _ in self._lexical.search(db, stem, _ROWS)]
                if near := nearest_in(word, [hit.passage for hit in read_hits(db, rows).values()]):
                    found[near] = max(count, found.get(near, 0))
        return found

    def places(self, ids: Sequence[int]) -> dict[int, tuple[str, int]]:
        """The path of each passage's file, and its place in it. Ids would order ties by the time of indexing."""
        with self._database.read() as db:
            sql = "SELECT chunks.id, path, ordinal FROM chunks JOIN files ON files.id = chunks.file WHERE chunks.id IN"
            return held_by_key(db, _in_groups(db, sql, ids), lambda row: (row[0], row[1:]))

    def hits(self, ids: Sequence[int]) -> dict[int, Hit]:
        """Without score and snippet. `DamagedStore` if one is not there, or not what was stored."""
        with self._database.read() as db:
            found = read_hits(db, ids)
        for identifier in ids:
            if identifier not in found:
                raise self._database.damaged(f"is damaged: passage {identifier} is indexed and not there")
        return found

    def show(self, query: str, hits: Iterable[Hit]) -> list[Hit]:
        with self._database.read() as db:
            weights = shown_weights(query, self._lexical.statistics(db, shown_terms(query).values()))
            described = read_descriptions(db)
        return [shown(replace(hit, description=description_of(hit.path, described)), weights) for hit in hits]

    def _nearest(
        self, db: Connection, index: VectorIndex, vectors: Floats, depth: int, clause: str, params: Sequence[object],
        within: Within,
    ) -> Found:  # fmt: skip
        """The `depth` nearest passages to each of `vectors` [n, dim], those that equal the last of them, and some
        more."""

        def search(allowed: Ids | None = None) -> Found:
            k, window = depth + 1, within.window
            while True:
                started = time.perf_counter()
                found = index.search(
                    db, vectors, k, nprobe=_EVERY if within.exhaustive else None, seconds=within.share,
                    allowed=allowed, window=window,
                )  # fmt: skip
                within.took += time.perf_counter() - started
                tied = (found.ids[:, -1] >= 0) & (found.scores[:, -1] == found.scores[:, depth - 1])
                if not tied.any() or k >= _DEEPEST:
                    return found
                k, window = min(_DEEPER * k, _DEEPEST), None

        with remedy("edge index --rebuild"):
            if not clause:
                found = search()
            else:
                count = db.execute(f"SELECT count(*) FROM ({_PASSING.format(clause)})", params).fetchone()[0]
                # 16 bytes for each id: it is read and then sorted.
                with self._budget.reserve("filter", 16 * count):
                    rows = db.execute(_PASSING.format(clause), params)
                    allowed = np.fromiter((row[0] for row in rows), np.int64, count)
                    allowed.sort()
                    found = search(allowed=allowed)
        for name in ("lists_read", "bytes_read", "hits", "lists_cut"):
            self._trace.count(f"index.{name}", getattr(found, name))
        return found


def candidates(
    sources: Mapping[str, Source],
    queries: Sequence[str],
    vectors: Sequence[Sequence[Floats | None]],
    k: int,
    *,
    where: Filters,
    within: Within | None = None,
    fan: Fan = in_turn,
) -> list[list[Hit]]:
    """The best `k` passages of all sources for each query, by the fused scores of BM25 and vectors. Of passages with
    the same wording only the best is returned. Results do not depend on how passages are distributed over sources.
    `vectors` has for each source and query [n, dim], of which the nearest counts, or None. Sources have the names that
    hits get as `collection`. A `fan` other than `in_turn` needs sources that are not bound to a thread."""
    within = within or Within()
    named = list(sources.items())
    results: list[list[Hit]] = [[] for _ in queries]
    left, depth = list(range(len(queries))), max(DEPTH, k)
    with ExitStack() as views:
        for _, source in named:
            views.enter_context(source.view())
        whole = None
        if len(named) > 1 or language_gap(within.embedder):
            whole = sum(fan([partial(source.statistics, queries) for _, source in named]), Statistics())
        fusion = [_Fusion.of(query, within.embedder, whole) for query in queries]
        while left:
            asked = [[(queries[i], own[i]) for i in left] for own in vectors]
            calls = [
                partial(_gathered, source, own, depth, whole, where, within, len(named) - at if fan is in_turn else 1)
                for at, ((_, source), own) in enumerate(zip(named, asked, strict=True))
            ]
            answers = fan(calls)
            refusals = [answer for answer in answers if isinstance(answer, NoSuchType)]
            if len(refusals) == len(answers):
                raise refusals[0]
            gathered: list[list[tuple[Ranking, Ranking]]] = [
                [([], []) for _ in left] if isinstance(answer, NoSuchType) else answer for answer in answers
            ]
            scarce = []
            for number, *found in zip(left, *gathered, strict=True):
                words, near = (
                    _best(named, [((at, i), score) for at, one in enumerate(found) for i, score in one[part]], depth)
                    for part in (0, 1)
                )
                results[number] = _distinct(named, words, near, k, fusion[number])
                if len(results[number]) < k and max(len(words), len(near)) >= depth < _DEEPEST:
                    scarce.append(number)
            left, depth = scarce, min(_DEEPER * depth, _DEEPEST)
    return results


def misspelled(query: str, sources: Sequence[Source], models: CollectionModels, fan: Fan = in_turn) -> dict[str, str]:
    words = unknown_words(BEGINNING.sub(" ", left_out(checked_query(query))[0]), FUNCTION_WORDS)
    held = {word: sum(fan([partial(one.statistics, [word]) for one in sources]), Statistics()) for word in words}
    lacking = [word for word, found in held.items() if not any(found.counts.values())]
    if not lacking or models.identity() is None:
        return {}
    whole = models.whole_words(lacking)
    found: dict[str, str] = {}
    for word in set(lacking) - whole:
        counts = Counter[str]()  # a word is as frequent as it is in all sources together
        for near in fan([partial(one.resembling, word) for one in sources]):
            counts.update(near)
        if other := nearest_word(word, counts):
            found[word] = other
    return found


def is_nonsense(query: str, sources: Sequence[Source], models: CollectionModels) -> bool:
    words = words_of(query)
    if not words or any(char.isdigit() for char in query) or models.identity() is None:
        return False
    held = sum((source.statistics([query]) for source in sources), Statistics())
    return not any(held.counts.values()) and not models.whole_words(words)


def _gathered(
    source: Source, queries: Sequence[tuple[str, Floats | None]], depth: int, whole: Statistics | None,
    where: Filters, within: Within, waiting: int,
) -> list[tuple[Ranking, Ranking]] | NoSuchType:  # fmt: skip
    """A type that a source's files do not have is no error while another source has such files."""
    within.waiting = waiting
    try:
        return source.gather(queries, depth, whole, where, within)
    except NoSuchType as error:
        return error


def _best(
    named: Sequence[tuple[str, Source]], scored: Sequence[tuple[Key, float]], k: int | None = None
) -> list[tuple[Key, float]]:
    """The `k` passages with the highest scores, best first; ties in the order of their paths and places in a file."""
    counts = Counter(score for _, score in scored)
    places: dict[Key, tuple[str, int]] = {}
    for number, (_, source) in enumerate(named):
        tied = [identifier for (at, identifier), score in scored if at == number and counts[score] > 1]
        places.update(((number, identifier), place) for identifier, place in source.places(tied).items())
    return sorted(scored, key=lambda found: (-found[1], places.get(found[0], ("", 0)), found[0]))[:k]


_ENGLISH_GAP = 0.5  # English questions' cosines differ less between languages.


@dataclass(frozen=True, slots=True)
class _Fusion:
    """How the scores of one query are fused: `floor` and `full` of `convex_combination`, the `names` that raise those
    of code, and the language beside which passages in others get a `bonus`."""

    names: Names
    floor: float
    full: float = 0.0
    language: str = ""
    bonus: float = 0.0

    @classmethod
    def of(cls, query: str, embedder: str, whole: Statistics | None) -> _Fusion:
        names, floor, gap = Names(query), cosine_floor(embedder), language_gap(embedder)
        if not gap or whole is None:
            return cls(names, floor)
        full, language = FULL_MATCH * whole.whole_score(Catalog().lexical.terms(query)), language_of(query)
        gap *= _ENGLISH_GAP if language == "en" else 1.0
        return cls(names, floor, full, language, (1 - BM25_WEIGHT) * gap / (1 - floor))

    def raised(self, hits: Sequence[Hit]) -> Iterator[Hit]:
        others = (self.language and language_of(hit.text) not in ("", self.language) for hit in hits)
        scores = [
            min(1.0, self.names.raised(hit) + self.bonus * bool(other)) for hit, other in zip(hits, others, strict=True)
        ]
        if mostly_code(hits):
            scores = whole_files(list(zip(scores, hits, strict=True)))
        order = sorted(zip(scores, hits, strict=True), key=lambda pair: -pair[0])
        files = Counter[int]()
        for at, (score, hit) in enumerate(order):
            if hit.kind == CODE_KIND:
                order[at] = score * AGAIN ** files[hit.file], hit
                files[hit.file] += 1
        order.sort(key=lambda pair: -pair[0])
        for rank, (score, hit) in enumerate(order, 1):
            yield replace(hit, score=score, stages=replace(hit.stages, fused_rank=rank, fused_score=score))


def _distinct(
    named: Sequence[tuple[str, Source]],
    words: Sequence[tuple[Key, float]],
    near: Sequence[tuple[Key, float]],
    k: int,
    fusion: _Fusion,
) -> list[Hit]:
    ranks = [{key: (rank, score) for rank, (key, score) in enumerate(ranking, 1)} for ranking in (words, near)]
    fused = convex_combination(dict(words), dict(near), BM25_WEIGHT, full=fusion.full, floor=fusion.floor)
    fused = _best(named, fused)
    hits: HeldList[Hit] = HeldList()
    hits.rows = groups = list[object]()
    seen: set[str] = set()
    while fused and len(hits) < k:
        # As many as are enough if none of them repeats a wording.
        group, fused = fused[: k - len(hits)], fused[k - len(hits) :]
        rows = [source.hits([i for (at, i), _ in group if at == number]) for number, (_, source) in enumerate(named)]
        groups.append(rows)
        for key, score in group:
            hit = rows[key[0]][key[1]]
            if hit.wording in seen:
                continue
            seen.add(hit.wording)
            (rank, lexical), (near_rank, cosine) = (ranking.get(key, (None, None)) for ranking in ranks)
            stages = Stages(rank, lexical, near_rank, cosine, len(hits) + 1, score)
            # File numbers must be unique over all sources, because `merge` joins neighbours with equal file numbers.
            file = hit.file * len(named) + key[0]
            hits.append(replace(hit, score=score, stages=stages, collection=named[key[0]][0], file=file))
    if fusion.language or any(hit.kind == CODE_KIND for hit in hits):
        hits[:] = fusion.raised(tuple(hits))
    return hits


def shown(hit: Hit, weights: Mapping[str, float]) -> Hit:
    found = snippet(plain(hit.text) if hit.kind == "markdown" else hit.text, weights)
    line = hit.line_at(best_sentence(hit.text, weights))
    return replace(hit, snippet=found.text, marks=found.marks, line=line)


def read_hits(db: Connection, ids: Sequence[int]) -> dict[int, Hit]:
    found: HeldDict[int, Hit] = HeldDict()
    sql = (
        "SELECT chunks.id, path, line_start, line_end, chunks.page, text, title, kind, context, files.id, ordinal, "
        "chunks.hash, lines, kinds, chunks.checksum, files.checksum, mtime_ns, mails.checksum, sender, recipients, "
        f"subject, sent, mails.id, thread FROM chunks JOIN files ON files.id = chunks.file {_MAIL_OF_CHUNK} "
        "WHERE chunks.id IN"
    )
    found.rows = rows = held(db, _in_groups(db, sql, ids), tuple, _unpacked_nbytes)
    for (
        identifier, path, line_start, line_end, page, text, title, kind, context, file, ordinal, stored, lines,
        kinds, place_sum, file_sum, mtime_ns, mail_sum, *fields,
    ) in rows:  # fmt: skip
        verify_text(identifier, context, text, stored)
        place = (file, ordinal, line_start, line_end, page, lines, kinds, stored)
        verify_place(identifier, place, place_sum)
        verify_file(path, kind, title, file_sum)
        mail = None if mail_sum is None else Mail(*fields)
        if mail is not None and not is_mail(file, page or 0, mail, mail_sum):
            raise not_stored(f"the mail on page {page or 0} of file {file}")
        try:
            numbers = unpacked(lines, line_start, line_end, text.count("\n") + 1)
            parts, when = unpacked_parts(kinds), modified(mtime_ns)
        except (ArithmeticError, OSError, RecursionError, TypeError, ValueError):
            raise not_stored(f"passage {identifier}") from None
        found[identifier] = Hit(
            id=identifier, path=path, line_start=line_start, line_end=line_end, page=page, score=0.0, snippet="",
            text=text, title=title, kind=kind, context=context, file=file, ordinals=(ordinal, ordinal),
            numbers=numbers, kinds=parts, mail=mail, modified=when,
        )  # fmt: skip
    return found


_PER_LINE, _PER_PART = 40, 120


def _unpacked_nbytes(row: Row) -> int:
    text, lines, kinds = str(row[5]), row[12] or "", row[13] or b""
    packed = PER_JSON * len(lines) if isinstance(lines, str) else 0
    return packed + _PER_LINE * text.count("\n") + (_PER_PART * len(kinds) if isinstance(kinds, bytes) else 0)


def _in_groups(db: Connection, sql: str, ids: Sequence[int]) -> Iterator[Row]:
    return (row for group in groups(ids) for row in db.execute(f"{sql} ({', '.join('?' * len(group))})", group))
