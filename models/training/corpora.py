"""Judged sets in BEIR layout (``corpus.jsonl[.gz]``, ``queries.jsonl``, ``qrels/{train,test}.tsv``).

The layout is that of Thakur et al., "BEIR" (NeurIPS 2021). Grades of zero or less count as not relevant.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Qrels = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Corpus:
    """One judged set: document ids in file order, their titles and texts, queries and judgements."""

    name: str
    ids: list[str]
    titles: list[str]
    texts: list[str]
    queries: dict[str, str]
    train: Qrels = field(default_factory=dict)
    test: Qrels = field(default_factory=dict)
    answers: dict[str, list[str]] = field(default_factory=dict)

    def passages(self) -> list[str]:
        """Title and text of each document, joined by a space. The retrievers and the reranker read these passages."""
        return [joined(title, text) for title, text in zip(self.titles, self.texts, strict=True)]

    def scope(self, identifier: str) -> str:
        """The sub-collection that an id belongs to ("conv-26/q0" -> "conv-26"); empty if there is none."""
        return identifier.split("/", 1)[0] if "/" in identifier else ""

    def without_test_documents(self) -> Corpus:
        """The part that training may see: without test queries and without documents judged relevant to one.

        Some sets are split by article, so that many paragraphs share a title. From such a set all paragraphs of a test
        article are removed, because the neighbours of a test paragraph have the same subject.
        """
        judged = {doc for grades in self.test.values() for doc, grade in grades.items() if grade > 0}
        shared = len(set(self.titles)) * 4 < len(self.titles)
        barred = {t for i, t in zip(self.ids, self.titles, strict=True) if i in judged} if shared else set()
        keep = [
            n
            for n, (i, t) in enumerate(zip(self.ids, self.titles, strict=True))
            if i not in judged and not (t and t in barred)
        ]
        kept = {self.ids[n] for n in keep}
        train: Qrels = {}
        for query, grades in self.train.items():
            left = {doc: grade for doc, grade in grades.items() if doc in kept}
            if left and query not in self.test:
                train[query] = left
        return Corpus(
            self.name,
            [self.ids[n] for n in keep],
            [self.titles[n] for n in keep],
            [self.texts[n] for n in keep],
            {q: self.queries[q] for q in train},
            train,
            {},
            {q: self.answers[q] for q in train if q in self.answers},
        )


def joined(title: str, text: str) -> str:
    return f"{title} {text}".strip()


def load(directory: Path) -> Corpus:
    """Read one set. A missing split is read as an empty one. A missing corpus or query file is an error."""
    corpus = directory / "corpus.jsonl.gz"
    rows = list(_rows(corpus if corpus.exists() else directory / "corpus.jsonl"))
    queries = {str(row["_id"]): str(row["text"]) for row in _rows(directory / "queries.jsonl")}
    return Corpus(
        directory.name,
        [str(row["_id"]) for row in rows],
        [str(row.get("title") or "") for row in rows],
        [str(row["text"]) for row in rows],
        queries,
        _qrels(directory / "qrels" / "train.tsv"),
        _qrels(directory / "qrels" / "test.tsv"),
        _answers(directory / "answers.json"),
    )


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def _qrels(path: Path) -> Qrels:
    found: Qrels = {}
    if not path.exists():
        return found
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            if int(row["score"]) > 0:
                found.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    return found


def _answers(path: Path) -> dict[str, list[str]]:
    """Gold answer strings by query id. Entries that are not a list of strings are skipped."""
    if not path.exists():
        return {}
    found: dict[str, list[str]] = {}
    for query, value in json.loads(path.read_text(encoding="utf-8")).items():
        if isinstance(value, list):
            strings = [str(v) for v in value if isinstance(v, str) and v]
            if strings:
                found[str(query)] = strings
    return found
