"""Examples for the reader: questions with passages, and where in the passage the answer stands, if it stands there."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from html import unescape
from pathlib import Path

from edge.text import sentences

from .corpora import Corpus
from .mining import BM25

_ARTICLE = re.compile(r'<h1 id="title">(.*?)</h1>', re.S)
_PARAGRAPH = re.compile(r"<pre>(.*?)</pre>(.*?)(?=<pre>|$)", re.S)
_QUESTION = re.compile(r'<strong class="question">(.*?)</strong>(.*?)(?=<strong class="question">|$)', re.S)
_ANSWER = re.compile(r'<span class="answer">(.*?)</span>', re.S)
_MANY_LINES = 6
_MOST_PLACES = 4
"""A short answer that a passage holds more often than this says little about the place that answers."""


@dataclass(frozen=True)
class Example:
    """One question and one passage.

    Attributes:
        spans: start and end of every place of the answer, in characters; empty if the passage does not answer.
        source: the name of the data that it is from.
    """

    question: str
    passage: str
    spans: tuple[tuple[int, int], ...]
    source: str


def places(passage: str, answers: Iterable[str], most: int = _MOST_PLACES) -> tuple[tuple[int, int], ...]:
    """Where a passage holds one of the answers as whole words. The longest answers come first; none if there are more
    than ``most`` places."""
    for answer in sorted(answers, key=len, reverse=True):
        found = [m.span() for m in re.finditer(rf"(?<!\w){re.escape(answer.strip())}(?!\w)", passage)]
        if answer.strip() and 0 < len(found) <= most:
            return tuple(found)
    return ()


def explorer(pages: Path, source: str) -> Iterator[tuple[str, list[Example]]]:
    """The articles of a folder of SQuAD's explorer pages, each with its title and examples.

    SQuAD: Rajpurkar et al. (EMNLP 2016); with questions that have no answer: Rajpurkar, Jia and Liang (ACL 2018).
    """
    for path in sorted(pages.glob("*.html")):
        page = path.read_text(encoding="utf-8")
        title = _ARTICLE.search(page)
        found: list[Example] = []
        for paragraph in _PARAGRAPH.finditer(page):
            text = unescape(paragraph[1])
            for question in _QUESTION.finditer(paragraph[2]):
                answers = [unescape(answer) for answer in _ANSWER.findall(question[2])]
                spans = places(text, answers)
                if spans or not answers:
                    found.append(Example(unescape(question[1]).strip(), text, spans, source))
        if title is not None and found:
            yield unescape(title[1]).replace("_", " "), found


def judged(corpus: Corpus, split: str) -> list[Example]:
    """The questions of a judged set with their passages, where the passage holds a gold answer."""
    row = {i: n for n, i in enumerate(corpus.ids)}
    found = []
    for query, grades in (corpus.train if split == "train" else corpus.test).items():
        for document in grades:
            text = corpus.texts[row[document]]
            spans = places(text, corpus.answers.get(query, ()), 8)
            if spans:
                found.append(Example(corpus.queries[query], text, spans, corpus.name))
    return found


def unanswered(examples: Sequence[Example], passages: Sequence[str], rng: random.Random, top: int = 8) -> list[Example]:
    """The questions with a similar passage that holds none of the answer's words in their order (BM25)."""
    search = BM25(passages)
    found = []
    for example in examples:
        answers = {example.passage[start:end].lower() for start, end in example.spans}
        order = (-search.scores(example.question)).argsort(kind="stable")[:top]
        near = [passages[n] for n in order if not any(answer in passages[n].lower() for answer in answers)]
        if near:
            passage = near[min(int(rng.expovariate(0.7)), len(near) - 1)]
            found.append(replace(example, passage=passage, spans=(), source=f"{example.source}-without"))
    return found


def window(example: Example, rng: random.Random, words: int) -> Example:
    """The example with neighbouring sentences of its passage (lines, where it has many), about as many words as wanted,
    the answer included."""
    bounds = sentences.spans(example.passage)
    if example.passage.count("\n") >= _MANY_LINES:
        bounds = [line.span() for line in re.finditer(r"[^\n]*\S[^\n]*", example.passage)]
    held = {n for n, (low, high) in enumerate(bounds) if any(low < e and s < high for s, e in example.spans[:1])}
    if not bounds or (example.spans and not held):
        return example
    first = min(held, default=rng.randrange(len(bounds)))
    last = max(held, default=first)

    def size() -> int:
        return len(example.passage[bounds[first][0] : bounds[last][1]].split())

    while size() < words and (first > 0 or last + 1 < len(bounds)):
        if first > 0 and (last + 1 == len(bounds) or rng.random() < 0.5):
            first -= 1
        else:
            last += 1
    low, high = bounds[first][0], bounds[last][1]
    spans = tuple((s - low, e - low) for s, e in example.spans if low <= s and e <= high)
    return replace(example, passage=example.passage[low:high], spans=spans) if spans or not example.spans else example


def titled(example: Example, title: str) -> Example:
    """The example below the title of its document, as a search shows passages to the reranker."""
    lead = f"{title}\n" if title else ""
    moved = tuple((s + len(lead), e + len(lead)) for s, e in example.spans)
    return replace(example, passage=lead + example.passage, spans=moved)


def write(path: Path, examples: Iterable[Example]) -> int:
    """Writes one JSON line for each example, compressed, and returns their number."""
    count = 0
    with gzip.open(path, "wt", encoding="utf-8") as out:
        for example in examples:
            out.write(json.dumps(asdict(example), ensure_ascii=False) + "\n")
            count += 1
    return count


def read(path: Path) -> list[Example]:
    """The examples of a file that `write` made."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [Example(r["question"], r["passage"], tuple(map(tuple, r["spans"])), r["source"]) for r in rows]
