"""Builds every training pool once: judged queries, titles, cloze sentences, documentation."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from .corpora import Corpus, joined, load
from .mining import Floats, Pool, Request
from .pairs import Pair, cloze, packages, tree
from .search import Depths, Searcher

Encode = Callable[[Sequence[str]], Floats]


def judged(corpus: Corpus) -> list[Request]:
    """The queries of the train split, with the documents that are judged relevant."""
    row = {i: n for n, i in enumerate(corpus.ids)}
    return [
        Request(corpus.queries[q], tuple(row[d] for d in grades), True, tuple(corpus.answers.get(q, ())))
        for q, grades in corpus.train.items()
    ]


def self_made(corpus: Corpus, rng: random.Random, limit: int) -> dict[str, list[Request]]:
    """Titles and cloze sentences of the corpus as queries, at most ``limit`` of each."""
    rows = list(range(len(corpus.ids)))
    rng.shuffle(rows)
    unique = len(set(corpus.titles)) * 2 > len(corpus.titles)
    titles = [Request(corpus.titles[r], (r,), False, bare=True) for r in rows if unique and corpus.titles[r]]
    clozes = []
    for r in rows:
        pair = cloze(corpus.titles[r], corpus.texts[r], rng)
        if pair is not None:
            clozes.append(Request(pair.query, (r,), False, replaced=pair.text))
    made = {"title": titles[:limit], "cloze": clozes[:limit]}
    return {kind: requests for kind, requests in made.items() if requests}


def documentation(pairs: Sequence[Pair]) -> tuple[Corpus, list[Request]]:
    """Mined pairs as one corpus. If several queries have the same passage, the first query is kept."""
    seen: dict[str, Pair] = {}
    for pair in pairs:
        seen.setdefault(pair.text, pair)
    kept = list(seen.values())
    corpus = Corpus("docs", [f"d{n}" for n in range(len(kept))], [p.title for p in kept], [p.text for p in kept], {})
    return corpus, [Request(p.query, (n,), False) for n, p in enumerate(kept)]


def prepare(
    data: Sequence[Path],
    encode: Encode,
    out: Path,
    search: Sequence[Path] = (),
    trees: Sequence[Path] = (),
    seed: int = 0,
    limit: int = 2500,
    device: torch.device | None = None,
) -> list[Path]:
    """Write ``out/SET.KIND.npz`` for each set and kind. An existing pool is kept."""
    out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for directory in data:
        corpus = load(directory).without_test_documents()
        if corpus.train:
            kinds = {"judged": judged(corpus), **self_made(corpus, random.Random(seed), limit)}
            written += _write(corpus, kinds, encode, out, device)
    if search or trees:
        rng = random.Random(seed)
        found, licences = packages(search, rng, limit=60)
        for directory in trees:
            found += tree(directory, rng, limit=800)
        corpus, requests = documentation(found)
        written += _write(corpus, {"mined": requests}, encode, out, device)
        (out / "licences.json").write_text(json.dumps(licences, indent=1, sort_keys=True), encoding="utf-8")
    return written


def _write(
    corpus: Corpus, kinds: dict[str, list[Request]], encode: Encode, out: Path, device: torch.device | None
) -> list[Path]:
    paths = {kind: out / f"{corpus.name}.{kind}.npz" for kind in kinds}
    missing = [kind for kind, path in paths.items() if not path.exists()]
    if missing:
        passages = [joined(t, x) for t, x in zip(corpus.titles, corpus.texts, strict=True)]
        engine = Searcher(passages, encode(passages), device or torch.device("cpu"))
        for kind in missing:
            requests = kinds[kind]
            vectors = encode([r.query for r in requests])
            lists = engine.mine(requests, vectors, Depths())
            Pool(corpus.name, corpus.titles, corpus.texts, lists).save(paths[kind])
            print(f"{paths[kind].name}: {len(lists)} lists over {len(passages)} documents", flush=True)
    return list(paths.values())
