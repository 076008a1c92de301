"""Pools over gathered texts: ``python -m edge.models.training.wide --texts FILE... --base DIR --out DIR``.

Each domain is one pool: its passages, the queries made from their form (`wording`) and the queries that a model wrote
(`questions`), mined by BM25 and the bi-encoder. A passage that shares eight words in a row with a test document or a
test query of a judged set is never used as a positive.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import torch

from .corpora import Corpus, load
from .documents import read
from .encoder import BiEncoder
from .mining import Pool, Request, words
from .questions import Written
from .questions import load as load_written
from .search import Depths, Searcher
from .wording import Passage, by_domain, corpus, passages, requests

RUN = 8
"""The number of equal words in a row that count as an overlap."""


def runs(text: str) -> set[int]:
    """Hashes of all runs of eight words, valid in this process."""
    found = words(text)
    return {hash(tuple(found[n : n + RUN])) for n in range(len(found) - RUN + 1)}


def test_runs(data: Path) -> set[int]:
    """Runs of words in every test query of all judged sets, and in every document that is judged for a test query.

    In a set without a train split every document counts as a test document.
    """
    found: set[int] = set()
    for directory in sorted(p.parent.parent for p in data.glob("*/qrels/test.tsv")):
        held = load(directory)
        judged = {doc for grades in held.test.values() for doc in grades}
        for identifier, text in zip(held.ids, held.passages(), strict=True):
            if identifier in judged or not held.train:
                found |= runs(text)
        for query in held.test:
            found |= runs(held.queries[query])
    return found


def asked(found: Sequence[Passage], written: Sequence[Written], rng: random.Random, each: float) -> list[Request]:
    """All queries over the passages of one domain.

    Raises:
        ValueError: a query was written for a text that is not among the passages.
    """
    made = requests(found, rng, each)
    rows = {passage.key: row for row, passage in enumerate(found)}
    for answer in written:
        if answer.key not in rows:
            raise ValueError("the questions were written for other texts: a passage that they name is not there")
        made += [Request(query, (rows[answer.key],), False) for query in answer.queries.values()]
    return made


def clean(found: Sequence[Passage], barred: set[int]) -> set[int]:
    """Rows of the passages that share no run of words with test material."""
    return {n for n, p in enumerate(found) if not barred or barred.isdisjoint(runs(f"{p.title} {p.text}"))}


def pool(
    domain: str, found: Sequence[Passage], made: Sequence[Request], encoder: BiEncoder, device: torch.device, seed: int
) -> Pool:
    """The lists of one domain, mined on ``device``."""
    held: Corpus = corpus(domain, found)
    shown = held.passages()
    engine = Searcher(shown, encoder.encode(shown), device)
    lists = engine.mine(made, encoder.encode([r.query for r in made]), Depths(), seed)
    return Pool(domain, held.titles, held.texts, lists)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write ``OUT/wide.DOMAIN.npz`` for every domain that has no file yet."""
    parser = argparse.ArgumentParser(prog="edge.models.training.wide", description=__doc__)
    parser.add_argument("--texts", type=Path, nargs="+", required=True, help="files that `gather` wrote")
    parser.add_argument("--questions", type=Path, nargs="*", default=[], help="files that `questions` wrote")
    parser.add_argument("--data", type=Path, help="judged sets, whose test material is kept out")
    parser.add_argument("--base", type=Path, required=True, help="bi-encoder")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--each", type=float, default=3.0, help="queries made for each passage")
    parser.add_argument("--part", default="0/1", help="0/2 and 1/2 share the domains between two processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    device = torch.device(options.device)
    options.out.mkdir(parents=True, exist_ok=True)
    part, parts = (int(n) for n in options.part.split("/"))
    domains = by_domain(chain.from_iterable(read(path) for path in options.texts))
    barred = test_runs(options.data) if options.data else set[int]()
    written = load_written(options.questions)
    encoder = BiEncoder(options.base, 256, device)
    for name in sorted(domains)[part::parts]:
        path = options.out / f"wide.{name}.npz"
        if path.exists():
            continue
        found = passages(domains[name])
        kept = clean(found, barred)
        try:
            made = asked(found, written.get(name, []), random.Random(f"{options.seed}:{name}"), options.each)
        except ValueError as error:
            parser.error(f"{name}: {error}")
        made = [r for r in made if kept.issuperset(r.positive)]
        if not made:
            continue
        mined = pool(name, found, made, encoder, device, options.seed)
        mined.save(path)
        print(
            f"{name}: {len(mined.lists)} lists of {len(made)} over {len(kept)} of {len(found)} passages, "
            f"{time.monotonic() - started:.0f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
