"""Queries of many kinds made from documents alone: the form of a text shows that parts of it belong together.

Queries have one to about a hundred words. Sources of the ideas: inverse cloze task (Lee et al., "Latent Retrieval",
ACL 2019), neighbouring passages (Izacard et al., "Contriever", TMLR 2022), titles and headings as queries.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from .corpora import Corpus
from .documents import Document
from .mining import Request
from .pairs import sentences

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9+#.-]*[A-Za-z0-9]")
_MOST_WORDS = 100
_DEFINES = ("what is {}", "{}", "define {}", "meaning of {}", "{} definition", "what does {} mean?", "explain {}")
_NEEDS = (
    "I am interested in {}. {}",
    "{}. {}",
    "Looking for information about {}. {}",
    "Articles on {}. {}",
    "What is known about {}? {}",
    "Any text that deals with {}, for instance: {}",
    "{1} {0}",
    "Material on {} is wanted. {}",
)


@dataclass(frozen=True)
class Passage:
    """A part of a section: the numbers of its document and section, and the title and heading above it."""

    document: int
    section: int
    title: str
    heading: str
    text: str
    entry: bool

    @property
    def key(self) -> str:
        """An identifier of the text, by which stored questions find their passage."""
        return hashlib.blake2b(self.text.encode(), digest_size=8).hexdigest()


def passages(documents: Sequence[Document], shortest: int = 8, most: int = 25_000) -> list[Passage]:
    """Sections cut at sentences into passages of 40 to 180 words.

    The size varies from document to document, as it does between collections. Documents come in a random order that
    depends on ``documents`` alone, so that every program of a run cuts the same passages.

    Args:
        documents: the documents of one domain.
        shortest: smallest number of words in a passage.
        most: after this number of passages no further document is cut.
    """
    rng = random.Random(0)
    found: list[Passage] = []
    for number, document in enumerate(rng.sample(documents, len(documents))):
        if len(found) >= most:
            break
        size = rng.choice((40, 70, 100, 130, 180))
        for place, (heading, text) in enumerate(document.sections):
            parts = [part for part in _cut(text, size) if len(part.split()) >= shortest]
            found += [Passage(number, place, document.title, heading, part, document.entry) for part in parts]
    return found


def _cut(text: str, size: int) -> Iterator[str]:
    held: list[str] = []
    count = 0
    for sentence in sentences(text):
        words = sentence.split()
        for start in range(0, len(words), 2 * size):  # a list without full stops counts as one long sentence
            piece = words[start : start + 2 * size]
            if held and count + len(piece) > size:
                yield " ".join(held)
                held, count = [], 0
            held.append(" ".join(piece))
            count += len(piece)
    if held:
        yield " ".join(held)


def corpus(domain: str, found: Sequence[Passage]) -> Corpus:
    """The passages as a collection. A passage's title is made of the document's title and the passage's heading."""
    titles = [p.title if p.heading in {"", p.title} else f"{p.title} {p.heading}".strip() for p in found]
    return Corpus(domain, [str(n) for n in range(len(found))], titles, [p.text for p in found], {})


def requests(found: Sequence[Passage], rng: random.Random, each: float = 3.0) -> list[Request]:
    """About ``each`` queries for every passage, of the kinds that the passage's form allows."""
    maker = _Maker(found, rng)
    made: list[Request] = []
    for row in range(len(found)):
        kinds = maker.kinds(row)
        wanted = int(each) + (rng.random() < each % 1)
        for kind in rng.sample(kinds, min(wanted, len(kinds))):
            request = kind(row)
            if request is not None and request.query.strip():
                made.append(request)
    return made


class _Maker:
    def __init__(self, found: Sequence[Passage], rng: random.Random) -> None:
        self._found, self._rng = found, rng
        self._sections: dict[tuple[int, int], list[int]] = {}
        for row, passage in enumerate(found):
            self._sections.setdefault((passage.document, passage.section), []).append(row)
        counts = Counter(w for p in found for w in {w.lower() for w in _WORD.findall(p.text)})
        self._weight = {w: math.log(len(found) / c) for w, c in counts.items()}

    def kinds(self, row: int) -> list[Callable[[int], Request | None]]:
        """The methods that can make a query from the passage. A method that is listed twice is drawn more often."""
        passage = self._found[row]
        if passage.entry:
            return [self.term, self.term, self.opening, self.words]
        kinds: list[Callable[[int], Request | None]]
        kinds = [self.opening, self.cloze, self.words, self.words, self.need, self.need, self.neighbour]
        if 1 <= len(passage.heading.split()) <= 14 or 2 <= len(passage.title.split()) <= 20:
            kinds += [self.title, self.title]
        if passage.section and self._sections.get((passage.document, 0)):
            kinds.append(self.beginning)
        return kinds

    def _siblings(self, row: int) -> list[int]:
        passage = self._found[row]
        return self._sections[passage.document, passage.section]

    def term(self, row: int) -> Request | None:
        """The name of a term is the query for its explanation."""
        query = self._rng.choice(_DEFINES).format(self._found[row].title.replace("{", "("))
        return Request(query, (row,), False, bare=self._rng.random() < 0.5)

    def title(self, row: int) -> Request | None:
        """Title and heading are the query for the section."""
        passage = self._found[row]
        heading = "" if passage.heading == passage.title else passage.heading
        parts = [p for p in (heading, passage.title) if p] if self._rng.random() < 0.7 else [heading or passage.title]
        self._rng.shuffle(parts)
        return Request(_limited(" ".join(parts)), tuple(self._siblings(row)[:4]), False, bare=True)

    def opening(self, row: int) -> Request | None:
        """The first sentence is the query for the rest of the passage."""
        parts = sentences(self._found[row].text)
        if len(parts) < 2 or len(" ".join(parts[1:]).split()) < 8:
            return None
        return Request(self._said(parts[0]), (row,), False, replaced=" ".join(parts[1:]))

    def cloze(self, row: int) -> Request | None:
        """One sentence is the query for the passage. In nine of ten cases it is removed from the passage; in the tenth
        it stays, which teaches exact overlap."""
        parts = sentences(self._found[row].text)
        if len(parts) < 3:
            return None
        chosen = self._rng.randrange(len(parts))
        rest = parts if self._rng.random() < 0.1 else parts[:chosen] + parts[chosen + 1 :]
        return Request(self._said(parts[chosen]), (row,), False, replaced=" ".join(rest))

    def neighbour(self, row: int) -> Request | None:
        """One to three sentences of the previous or the next passage are the query for this passage."""
        rows = self._siblings(row)
        place = rows.index(row)
        near = [rows[n] for n in (place - 1, place + 1) if 0 <= n < len(rows)]
        if not near:
            return None
        parts = sentences(self._found[self._rng.choice(near)].text)
        count = self._rng.randint(1, 3)
        start = self._rng.randint(0, max(0, len(parts) - count))
        return Request(self._said(" ".join(parts[start : start + count])), (row,), False)

    def beginning(self, row: int) -> Request | None:
        """The first sentences of the document, often an abstract, are the query for a later section."""
        passage = self._found[row]
        parts = sentences(self._found[self._sections[passage.document, 0][0]].text)
        return Request(self._said(" ".join(parts[: self._rng.randint(1, 4)])), (row,), False)

    def words(self, row: int) -> Request | None:
        """One to six words that distinguish this passage from the others are the query."""
        chosen = self._telling(row, self._rng.randint(1, 6))
        return Request(" ".join(chosen), (row,), False) if chosen else None

    def need(self, row: int) -> Request | None:
        """A long description of an information need: the subject, and one to three sentences that are removed from the
        passage."""
        passage = self._found[row]
        parts = sentences(passage.text)
        count = self._rng.randint(1, 3)
        if len(parts) < count + 2:
            return None
        chosen = sorted(self._rng.sample(range(len(parts)), count))
        rest = [p for n, p in enumerate(parts) if n not in chosen]
        subject = passage.heading or passage.title
        if not subject or self._rng.random() < 0.4:
            subject = " and ".join(self._telling(row, 2))
        told = self._said(" ".join(parts[n] for n in chosen))
        query = self._rng.choice(_NEEDS).replace("{1}", "\0").replace("{0}", "{}")
        query = query.replace("{}", subject, 1).replace("{}", told, 1).replace("\0", told)
        return Request(_limited(query), (row,), False, replaced=" ".join(rest))

    def _telling(self, row: int, count: int) -> list[str]:
        found = Counter(w.lower() for w in _WORD.findall(self._found[row].text) if len(w) > 2)
        best = sorted(found, key=lambda w: -self._weight.get(w, 0.0) * (1 + math.log(found[w])))[:14]
        return self._rng.sample(best, min(count, len(best)))

    def _said(self, text: str) -> str:
        """The text, in half of the cases without some of its words, so that word overlap alone does not find the
        passage."""
        words = text.split()[:_MOST_WORDS]
        if self._rng.random() < 0.5:
            share = self._rng.uniform(0.1, 0.5)
            kept = [w for w in words if self._rng.random() > share]
            words = kept if len(kept) >= 3 else words
        return " ".join(words)


def _limited(text: str) -> str:
    return " ".join(text.split()[:_MOST_WORDS])


def by_domain(documents: Iterable[Document]) -> dict[str, list[Document]]:
    """The documents of each domain, in the given order."""
    found: dict[str, list[Document]] = {}
    for document in documents:
        found.setdefault(document.domain, []).append(document)
    return found
