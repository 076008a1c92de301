"""`Searcher`: fuses BM25 and vector search, then reranks. A question about a person is asked in the first person,
because its vector is near that of "I am allergic to peanuts". A reranker trained on passages gives that little
relevance for "what can I eat?": the benchmark `memory-relevance` fits the weight of each signal."""

from __future__ import annotations

import json
import math
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from string import punctuation
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.apps.memory.arguments import Clock, Scope, age_days
from edge.apps.memory.filters import Condition
from edge.apps.memory.records import SELECT, Record, held_records, read_records, visible
from edge.apps.memory.store import REBUILD, MemoryStore
from edge.apps.memory.validity import ORDERS, Asked, chains, in_chains
from edge.apps.store.lexical import FUNCTION_WORDS
from edge.apps.store.rebuilding import remedy
from edge.apps.verbs.memories import RecallOptions
from edge.ivf.base import Connection
from edge.models.blending import FULL_MATCH, convex_combination
from edge.models.evidence import Evidence, log_odds
from edge.text.sentences import sentences

SHARE = 0.3
"""The weight of a conversation's score beside that of a turn's own. docs/decisions/search.md says how it was chosen."""

_COUNTED = 5
"""The best turns of a conversation that count, each with half of the weight of the one before."""

READ = 300
"""The most turns of a conversation whose words are counted, evenly spaced."""

_CENTRAL = 3
_LENGTH = 0.7
"""The power of a sentence's number of words that its weight is divided by: 1 prefers short sentences, 0 long ones."""


def conversation_scores(turns: Iterable[tuple[int, float]], first: Mapping[int, int]) -> dict[int, float]:
    """The score of each conversation: its best turns' scores, added up with falling weights."""
    scores: dict[int, float] = defaultdict(float)
    counted: Counter[int] = Counter()
    for turn, score in turns:
        conversation = first[turn]
        if counted[conversation] < _COUNTED:
            scores[conversation] += score * 0.5 ** counted[conversation]
            counted[conversation] += 1
    return scores


def beside_their_conversations(
    turns: Sequence[tuple[int, float]], first: Mapping[int, int], share: float = SHARE
) -> list[tuple[int, float]]:
    """Turns with scores in 0 to 1, mixed with their conversations', best first. The other arguments are those of
    `conversation_scores`."""
    scores = conversation_scores(turns, first)
    mixed = [(turn, (1 - share) * score + share * scores[first[turn]]) for turn, score in turns]
    return [(turn, min(1.0, score)) for turn, score in sorted(mixed, key=lambda item: (-item[1], item[0]))]


REPLY = 0.15
"""What the fused score of an assistant's turn loses: most questions are about what a person said, in fewer words."""

REPLIED = 0.9
"""The share of its reply's score that a person's turn has at least. Both were chosen on twenty of BEAM's chats."""


_OVERVIEW = re.compile(
    r"\b(?:summar[iy]|overview|recap(?:s|itul\w*)?\b|zusammenfass|überblick|résum|resum(?:en|ir|o|a)\b|riassun|riepilog|"
    r"samenvat|overzicht|podsum|streszcz)",
    re.IGNORECASE,
)
"""Words that ask for an overview, of which replies tell as much as what a person said."""

_TOLD_IN_ORDER = re.compile(
    r"(?=.*\b(?:I|my|we|our)\b)(?!.*\b(?:should|did you|you (?:\w+ed|told|said|gave))\b)"
    r".*\b(?:in (?:\w+ )?order\b(?! (?:to|for|that|of)\b)|(?<!in )(?:order|sequence|timeline) (?:in which|of|did)\b)|"
    r".*\b(?:in welcher reihenfolge (?:haben?|hatten?) (?:ich|wir)|dans quel ordre (?:ai|avons)|"
    r"en qué orden (?:he|hemos)|in (?:che|quale) ordine (?:ho|abbiamo)|in welke volgorde (?:heb|hebben)|"
    r"w jakiej kolejności)\b",
    re.IGNORECASE | re.DOTALL,
)
"""Words that ask in what order a person told something, over many conversations. A reply seldom answers them."""

REPLY_IN_ORDER, SHARE_IN_ORDER = 0.5, 0.15
"""`REPLY` and `SHARE` of such questions, chosen on ten of BEAM's chats and confirmed on ten others."""


def said_before_replies(
    turns: Sequence[tuple[int, float]], replies: Mapping[int, int | None], loss: float = REPLY
) -> dict[int, float]:
    """The scores of turns, in 0 to 1, beside what was said by whom; `replies`: as of `Retrieved`."""
    alone = dict(turns)
    scores = {turn: max(0.0, score - loss) if turn in replies else score for turn, score in turns}
    for reply, turn in replies.items():
        if turn in scores and turn not in replies:
            scores[turn] = max(scores[turn], REPLIED * alone[reply])
    return scores


def central_sentences(texts: Iterable[str], terms: Callable[[str], Iterable[str]]) -> list[str]:
    """The sentences that share most with the others, in their order. A word weighs much if several sentences have it,
    but not most, and nothing once it is chosen (Nenkova and Vanderwende, "The Impact of Frequency on Summarization",
    2005)."""
    said = {sentence: dict.fromkeys(terms(sentence)) for text in texts for sentence in sentences(text)}
    counts = Counter(word for words in said.values() for word in words)
    weights = {word: math.log(1 + count) * math.log((1 + len(said)) / count) for word, count in counts.items()}
    chosen: set[str] = set()
    for _ in range(min(_CENTRAL, len(said))):
        best = max(
            (sentence for sentence in said if sentence not in chosen),
            key=lambda sentence: sum(map(weights.__getitem__, said[sentence])) / max(3, len(said[sentence])) ** _LENGTH,
        )
        chosen.add(best)
        weights |= dict.fromkeys(said[best], 0.0)
    return [sentence for sentence in said if sentence in chosen]


Ids = npt.NDArray[np.int64]

_NONE = np.empty(0, np.int64)

DEPTH = 100
"""The least number of results that each of the two rankings contributes."""

FORMER = 30
"""The number of results that each of the two rankings contributes of memories that do not hold."""

POOL = 40
"""The least number of fused candidates that are reranked."""

BM25_WEIGHT, BESIDE_REPLIES = 0.5, 0.4
"""The weight of BM25 beside the vectors' (the benchmark `memory`), and where an assistant's long turns are among the
results (BEAM), which hold many words."""

_STANDING = 3
"""The most memories of a chain that are judged for the one that holds."""

_LISTED = 1_000
"""The most ids that are given to the full-text search as a list; few memories of a large scope have ended."""

_REMEMBERED = 2
"""The sets of ids that are cached: the memories that hold, and those of chains that do not."""


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The results of the first stage, by row number: BM25 scores (`words`), cosines (`near`), the `first` turn of each
    result's conversation, and for results that do not fit the time asked about, the memory of their chain that does
    (`instead`). `replies`: the results that an assistant said, and the turn before each; `in_order`: whether the order
    is asked for in which a person told something. `pool`: the best with fused scores."""

    words: Mapping[int, float]
    near: Mapping[int, float]
    whole: float = 0.0
    first: Mapping[int, int] = field(default_factory=dict)
    instead: Mapping[int, int] = field(default_factory=dict)
    replies: Mapping[int, int | None] = field(default_factory=dict)
    in_order: bool = False
    pool: Sequence[tuple[int, float]] = ()
    records: Mapping[int, Record] = field(default_factory=dict)

    def fused(self) -> list[tuple[int, float]]:
        """The fused scores of all results by id, best first, each with a share of its conversation's."""
        share = SHARE_IN_ORDER if self.in_order else SHARE
        return beside_their_conversations(self._alone(), self.first, share)

    def conversations(self) -> list[tuple[int, float]]:
        """The scores of the conversations by their first turns, best first."""
        scores = conversation_scores(self._alone(), self.first)
        return sorted(scores.items(), key=lambda item: (-item[1], item[0]))

    def _alone(self) -> list[tuple[int, float]]:
        weight = BESIDE_REPLIES if self.replies else BM25_WEIGHT
        turns = convex_combination(self.words, self.near, weight, full=FULL_MATCH * self.whole)
        scores = said_before_replies(turns, self.replies, REPLY_IN_ORDER if self.in_order else REPLY)
        return sorted(scores.items(), key=lambda item: (-item[1], item[0]))

    def best(self, count: int) -> list[tuple[int, float]]:
        """The best of `fused` that stand for `count` memories, at most `_STANDING` for each."""
        chosen: list[tuple[int, float]] = []
        stand_for: Counter[int] = Counter()
        for identifier, score in self.fused():
            memory = self.instead.get(identifier, identifier)
            if memory not in stand_for and len(stand_for) == count:
                break
            stand_for[memory] += 1
            if stand_for[memory] <= _STANDING:
                chosen.append((identifier, score))
        return chosen


class Searcher:
    def __init__(self, store: MemoryStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._remembered: dict[object, tuple[Ids, bool]] = {}
        self._lease = store.budget.reserve("memory scope", 0)

    def search(
        self, query: str, scope: Scope, whose: Condition, options: RecallOptions, asked: Asked
    ) -> tuple[list[Candidate], list[dict[str, Any]]]:
        """The best of the memories of `scope` that meet `whose`, and the best conversations, best first."""
        top_k, rerank = options.count, options.rerank
        if top_k == options.conversations == 0:
            return [], []
        self._store.models.check_room("searching", rerank=rerank, candidates=max(DEPTH, top_k))
        query = first_person(query, scope)  # a name that all memories of its owner are about distinguishes none
        found = self.retrieve(query, scope, whose, top_k, asked)
        candidates = [
            Candidate(
                found.records[identifier],
                score,
                min(1.0, max(0.0, found.near[identifier])),
                _details(identifier, score, rank, found),
            )
            for rank, (identifier, score) in enumerate(found.pool, 1)
        ]
        if rerank and candidates:
            # Recency and importance may lift any candidate, so with them all candidates need their final scores.
            beside = sum(candidate.record.id in found.instead for candidate in candidates)
            most = min(max(top_k, LOOKED) + beside, len(candidates))
            candidates = self._rerank(query, candidates, None if options.weighs else most)
        candidates = list(_each_once(candidates, found))
        # A question about a time or with a number may ask for the older value.
        if not (asked.before or asked.start) and not any(map(str.isdigit, query)):
            candidates = newer_first(candidates, self._older(candidates[:LOOKED]))
        if options.weighs:
            candidates = weigh(candidates, options, self._clock())
        if options.threshold is not None:
            candidates = [candidate for candidate in candidates if candidate.score >= options.threshold]
        return candidates[:top_k], self._conversations(found, options.conversations, whose)

    def _older(self, candidates: Sequence[Candidate]) -> dict[int, list[int]]:
        records = [candidate.record for candidate in candidates]
        pairs = [
            (old, new)
            for new, later in enumerate(records)
            for old, earlier in enumerate(records)
            if earlier.since < later.since and earlier.of_the_same(later)
        ]
        older: dict[int, list[int]] = defaultdict(list)
        index = self._store.index
        if pairs and index is not None:
            with self._store.read() as db:
                ids = np.array([record.id for record in records], np.int64)
                vectors = index.vectors(db, ids, absent_as_zero=True)
            chances = self._store.judge.compare(
                [(records[old].text, records[new].text, float(vectors[old] @ vectors[new])) for old, new in pairs]
            )
            for (old, new), chance in zip(pairs, chances, strict=True):
                if chance >= ORDERS:
                    older[new].append(old)
        return older

    def _conversations(self, found: Retrieved, most: int, whose: Condition) -> list[dict[str, Any]]:
        """The best conversations of more than one turn, each with its place, its times, and what it was about."""
        told: list[dict[str, Any]] = []
        with self._store.read() as db:
            for first, _ in found.conversations():
                if len(told) >= most:
                    break
                turns = f"FROM memories WHERE (id = ? OR conversation = ?) AND {whose.sql}"
                params = (first, first, *whose.params)
                count, last = db.execute(f"SELECT count(*), max(id) {turns}", params).fetchone()
                if count > 1:
                    rows = islice(
                        db.execute(f"SELECT id {turns} ORDER BY id", params), 0, None, math.ceil(count / READ)
                    )
                    read = read_records(db, {*(turn for (turn,) in rows), last})
                    said = [read[turn] for turn in sorted(read)]
                    began, ended = (record.timestamp or record.created_at for record in (said[0], said[-1]))
                    told.append({
                        "id": said[0].uuid, **{name: value for name, value in said[0].scope.items() if value},
                        "began": began, "ended": ended, "turns": count,
                        "about": central_sentences((record.text for record in said), self._store.lexical.terms),
                    })  # fmt: skip
        return told

    def retrieve(self, query: str, scope: Scope, shown: Condition, top_k: int, asked: Asked) -> Retrieved:
        """The best memories by full text and by vectors, in one consistent view. A memory is also found by what it
        superseded, and by what superseded it: the best `FORMER` memories that do not hold at the time asked about."""
        index = self._store.index
        if index is None:
            return Retrieved({}, {})
        vector = self._store.embed([query], query=True)
        overview, in_order = _OVERVIEW.search(query) is not None, _TOLD_IN_ORDER.match(query) is not None
        with self._store.read() as db, self._store.trace.span("candidates", "memory"):
            near: dict[int, float] = {}
            words: dict[int, float] = {}
            parts = asked.conditions(db)
            for most, part in zip((max(DEPTH, 5 * top_k), FORMER), parts, strict=False):
                whose = Condition.all_of([shown, part])
                allowed, everything = self._allowed(db, whose)
                if len(allowed) == 0:
                    continue
                with remedy(REBUILD):
                    found = index.search(db, vector, most, allowed=None if everything else allowed)
                near |= {int(i): float(s) for i, s in zip(found.ids[0], found.scores[0], strict=True) if i >= 0}
                words |= self._lexical(db, query, most, whose, None if everything else allowed)
            first, replies = self._said(db, [*{**near, **words}])
            beside = {turn: reply for reply, turn in replies.items() if turn is not None and turn not in first}
            shown_ids, everything = self._allowed(db, Condition.all_of([shown, parts[0]])) if beside else (_NONE, True)
            for turn, reply in beside.items():
                if everything or turn in shown_ids:
                    first[turn] = first[reply]
            unknown = [identifier for identifier in first if identifier not in near]
            if unknown:  # the vector search did not return these, or a rebuild has not made their vectors yet
                vectors = index.vectors(db, np.array(unknown, np.int64), absent_as_zero=True)
                near |= zip(unknown, (vectors @ vector[0]).tolist(), strict=True)
            instead, gone = self._instead(db, asked, near, shown) if len(parts) > 1 else ({}, [])
            for identifier in gone:
                del near[identifier]
                words.pop(identifier, None)
            replies = {} if overview else {reply: turn for reply, turn in replies.items() if reply in near}
            whole = self._store.lexical.whole_score(db, query)
            retrieved = Retrieved(words, near, whole, first, instead, replies, in_order)
            pool = retrieved.best(max(POOL, top_k))
            chosen = {identifier for identifier, _ in pool}
            chosen |= {instead[identifier] for identifier in chosen & instead.keys()}
            records = read_records(db, chosen)
            for identifier in chosen - records.keys():
                raise self._store.database.damaged(f"is damaged: memory {identifier} is indexed and not there")
            return replace(retrieved, pool=pool, records=records)

    @staticmethod
    def _said(db: Connection, ids: Sequence[int]) -> tuple[dict[int, int], dict[int, int | None]]:
        """The first turn of the conversation of each memory, and the turn before each that an assistant said."""
        rows = db.execute(
            "SELECT id, coalesce(conversation, id), role, follows FROM memories "
            "WHERE id IN (SELECT value FROM json_each(?))",
            (json.dumps(ids),),
        ).fetchall()
        return {row[0]: row[1] for row in rows}, {row[0]: row[3] for row in rows if row[2] == "assistant"}

    def _instead(
        self, db: Connection, asked: Asked, ids: Iterable[int], shown: Condition
    ) -> tuple[dict[int, int], list[int]]:
        """For the memories of chains among `ids`, the shown one that answers at the time asked about, if it is another;
        and those that neither answer nor have one that does."""
        members = in_chains(db, ids)
        asking = asked.in_place_of_others(members)
        chosen: dict[int, int] = {}
        for chain in chains(db, [member.uuid for member in asking], shown):
            best = asked.best([member for member in chain if member.shown])
            if best is not None:
                chosen |= {member.id: best.id for member in chain}
        instead = {one.id: chosen[one.id] for one in asking if chosen.get(one.id, one.id) != one.id}
        return instead, [one.id for one in members if one.id not in instead and not asked.fits(one)]

    def listed(self, whose: Condition, limit: int, offset: int) -> list[Record]:
        with self._store.read() as db:
            rows = db.execute(
                f"{SELECT} WHERE {whose.sql} ORDER BY memories.created_at DESC, memories.id DESC LIMIT ? OFFSET ?",
                (*whose.params, limit, offset),
            )
            return held_records(db, rows)

    def neighbours(self, record: Record, count: int, *, show_expired: bool) -> list[tuple[int, Record]]:
        """The turns around a turn: `count` stored before and after it under the same ids, with their relative
        positions, in order."""
        sql, params = record.scope.exactly()
        same = self.shown(Scope(), Condition(sql, tuple(params)), show_expired=show_expired)
        around: list[tuple[int, Record]] = []
        with self._store.read() as db:
            for sign, comparison, order in ((-1, "<", "DESC"), (1, ">", "ASC")):
                rows = db.execute(
                    f"{SELECT} INDEXED BY memories_turns WHERE {same.sql} AND memories.id {comparison} ? "
                    f"ORDER BY memories.id {order} LIMIT ?",
                    (*same.params, record.id, count),
                )
                around += [(sign * place, one) for place, one in enumerate(held_records(db, rows), 1)]
        return sorted(around, key=lambda pair: pair[0])

    def shown(self, scope: Scope, condition: Condition, *, show_expired: bool) -> Condition:
        """The condition for a memory to be returned: it is in the scope, passes the filters, and is shown."""
        sql, params = scope.condition()
        parts = [Condition(sql, tuple(params)), condition]
        if not show_expired:
            visibly, today = visible(self._clock())
            parts.append(Condition(visibly, tuple(today)))
        return Condition.all_of(parts)

    def close(self) -> None:
        with self._lock:
            self._remembered = {}
            self._lease.release()

    def _allowed(self, db: Connection, whose: Condition) -> tuple[Ids, bool]:
        """The ids that may be returned, ascending, and whether they are all of the index; cached until a write."""
        generation = db.execute("SELECT value FROM settings WHERE name = 'generation'").fetchone()[0]
        key = (generation, whose.sql, whose.params)
        with self._lock:
            if key in self._remembered:
                return self._remembered[key]
        # The ids are read as one text, because 100,000 rows of one id take three times as long.
        sql = f"SELECT group_concat(memories.id) FROM memories WHERE {whose.sql}"
        text = db.execute(sql, whose.params).fetchone()[0]
        allowed = np.sort(np.fromstring(text, np.int64, sep=",")) if text else np.empty(0, np.int64)
        total = self._store.count(db)
        with self._lock:
            latest = list(self._remembered.items())[1 - _REMEMBERED :]
            self._lease.resize(allowed.nbytes + sum(ids.nbytes for _, (ids, _) in latest))
            self._remembered = {**dict(latest), key: (allowed, len(allowed) == total)}
        return allowed, len(allowed) == total

    def _lexical(
        self, db: Connection, query: str, depth: int, whose: Condition, allowed: Ids | None
    ) -> dict[int, float]:
        """The BM25 scores of the best `depth` memories of `whose`, whose ids are `allowed`; None for all."""
        # The plus sign keeps SQLite from running the whole full-text query once for every id of the set.
        where, params = f"+rowid IN (SELECT memories.id FROM memories WHERE {whose.sql})", whose.params
        if allowed is None:
            where, params = "", ()
        elif len(allowed) <= _LISTED:
            where, params = "+rowid IN (SELECT value FROM json_each(?))", (json.dumps(allowed.tolist()),)
        found = self._store.lexical.search(db, query, depth, where=where, params=params, budget=self._store.budget)
        return dict(found[:depth])

    def _rerank(self, query: str, candidates: Sequence[Candidate], top_k: int | None) -> list[Candidate]:
        """The best `top_k` candidates (all if None), in the reranker's order blended with retrieval's. It reads a turn
        with the turn before, because few answers name their subject."""
        answered = {c.record.follows for c in candidates if c.record.follows is not None}
        with self._store.read() as db:
            before = read_records(db, answered)
        docs = []
        for record in (candidate.record for candidate in candidates):
            turn = before.get(record.follows) if record.follows is not None else None
            docs.append(record.indexed_text if turn is None else f"{turn.text}\n{record.indexed_text}")
        with self._store.trace.span("rerank", "memory"):
            ranked = self._store.models.rank(query, docs, top_k, retrieved=[c.order for c in candidates])
        fitted = self._store.models.evidence(NAME, SIGNALS)
        found, value = [], 1.0
        for r in ranked:
            candidate = candidates[r.index]
            own = relevance(fitted, r.relevance, candidate.details["semantic"])
            value = min(value, own)  # a better place is at least as relevant
            details = {**candidate.details, "reranker": r.relevance}
            found.append(replace(candidate, order=r.score, score=value, details=details))
        return found


def _details(identifier: int, score: float, rank: int, found: Retrieved) -> dict[str, float | int]:
    details: dict[str, float | int] = {"semantic": found.near[identifier], "fused": score, "fused_rank": rank}
    return details | ({"bm25": found.words[identifier]} if identifier in found.words else {})


NAME = "memories"
SIGNALS = ("reranker", "cosine")
"""The reranker's log-odds, and the memory's cosine with the question, which is in the first person."""

_ALWAYS = ("the user",)
_BEFORE_THINGS = ("the", "a", "an", "this", "my", "our", "your", "which", "every", "no")
_OF_NO_THING = "".join(rf"(?<!\b{word} )" for word in _BEFORE_THINGS)
"""No such word stands before a name: "which test" does not ask about the user "test"."""

_OF_NO_OTHER = r"(?!(?-i:\s+[A-Z]))"
"""No capital follows a name: "Mark Woods" is not the user "mark"."""

_VERBS = {"does": "do", "is": "am", "has": "have"}
_AUXILIARIES = frozenset({
    "are", "can", "could", "did", "do", "does", "had", "has", "have", "is", "may", "might", "must", "shall", "should",
    "was", "were", "will", "would",
})  # fmt: skip


def first_person(question: str, names: Iterable[str | None]) -> str:
    """A question about a person, rewritten in the first person. A name that is a function word ("will") stays.

    >>> first_person("what can Ada eat?", ["ada"]), first_person("who is Ada's boss?", ["ada"])
    ('what can I eat?', 'who is my boss?')
    """
    words = (name for name in names if name and re.search(r"[^\W\d_]", name) and name.casefold() not in FUNCTION_WORDS)
    known = [*words, *_ALWAYS]
    person = "|".join(re.escape(name) for name in sorted(known, key=len, reverse=True))
    named = re.compile(
        rf"(?P<verb>\b(?:does|is|has)\s+)?(?<!\w){_OF_NO_THING}(?P<name>{person})"
        rf"(?:(?P<owner>['’]s?)(?!\w)|(?!['’\w]){_OF_NO_OTHER})",
        re.IGNORECASE,
    )

    def asked(match: re.Match[str]) -> str:
        if not match["owner"] and _is_thing(match["name"], question[: match.start("name")]):
            return match[0]
        verb = match["verb"] or ""
        if verb and not match["owner"]:
            verb = f"{_VERBS[verb.split()[0].lower()]} "
        return verb + ("my" if match["owner"] else "I")

    return named.sub(asked, question)


def _is_thing(name: str, before: str) -> bool:
    """Whether a name in small letters is a word here. Its writer begins with a capital, or a noun or verb precedes it;
    but behind an auxiliary verb a bare noun is rare."""
    if not (name.isalpha() and name.islower()):
        return False
    last = "".join(before.rsplit(maxsplit=1)[-1:]).strip(punctuation).casefold()
    return last not in _AUXILIARIES and (before[:1].isupper() or (bool(last) and last not in FUNCTION_WORDS))


def relevance(fitted: Evidence | None, reranker: float, cosine: float) -> float:
    """The probability that a memory helps to answer; the reranker's own if no model was fitted for the models in
    use."""
    return reranker if fitted is None else fitted.probability((log_odds(reranker), cosine))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A memory that passes through the stages of a search. `order` orders the results of one search; `score` is shown,
    and can be compared between queries; `newer_than`: ids of older results that it may end."""

    record: Record
    order: float
    score: float
    details: Mapping[str, float | int] = field(default_factory=dict)
    newer_than: tuple[str, ...] = ()

    def to_json(self, *, explain: bool) -> dict[str, Any]:
        document = {**self.record.to_json(), "score": self.score}
        if self.newer_than:
            document["newer_than"] = list(self.newer_than)
        return document | ({"score_details": {**self.details, "order": self.order}} if explain else {})


def _each_once(candidates: Sequence[Candidate], found: Retrieved) -> Iterator[Candidate]:
    """The candidates, each as the memory that it stands for, which has the place of the best of them."""
    seen: set[int] = set()
    for candidate in candidates:
        memory = found.instead.get(candidate.record.id, candidate.record.id)
        if memory not in seen:
            seen.add(memory)
            yield replace(candidate, record=found.records[memory])


LOOKED = 10
"""The best results among which a newer statement is put before an older one that it may end."""


def newer_first(candidates: Sequence[Candidate], older: Mapping[int, Sequence[int]]) -> list[Candidate]:
    """The candidates, each in front of the better ones that it may end, with their score. `older` has the places of
    these."""
    placed: list[tuple[int, Candidate]] = []
    for number, one in enumerate(candidates):
        ended = older.get(number, ())
        place = next((place for place, (other, _) in enumerate(placed) if other in ended), len(placed))
        if place < len(placed):
            one = replace(one, order=placed[place][1].order, score=placed[place][1].score)
        ids = tuple(candidates[other].record.uuid for other in ended)
        placed.insert(place, (number, replace(one, newer_than=ids)))
    return [one for _, one in placed]


def weigh(candidates: Sequence[Candidate], options: RecallOptions, now: datetime) -> list[Candidate]:
    weighed = []
    for candidate in candidates:
        record = candidate.record
        age = 0.0 if record.pinned else age_days(record.timestamp or record.created_at, now)
        recency = 0.5 ** (age / options.half_life)
        importance = 1.0 if record.pinned else 0.5 if record.importance is None else record.importance
        rest = 1.0 - options.recency - options.importance
        order = rest * candidate.order + options.recency * recency + options.importance * importance
        details = {**candidate.details, "recency": recency, "importance": importance}
        weighed.append(replace(candidate, order=order, details=details))
    return sorted(weighed, key=lambda candidate: -candidate.order)
