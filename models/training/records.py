"""Records the scores of every part of the default order: ``python -m edge.models.training.records``.

The program retrieves the candidates of a sample of test queries with BM25, with vectors, and with both fused as in the
collection's search. It adds the scores of rerankers, so that blends can be fitted and judged without running a model
again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from ..blending import BM25_WEIGHT, Floats64
from .corpora import Corpus
from .corpora import load as read_corpus
from .encoder import BiEncoder
from .mining import Floats
from .model import LayeredReranker, batches, padded, pair_tokenizer
from .precision import CHOICES, in_bfloat16
from .search import Searcher


@dataclass(frozen=True)
class Recorded:
    """One judged set: the texts, and each query's candidates (rows of the texts, in fused order), scores and grades."""

    name: str
    texts: list[str]
    queries: list[dict[str, Any]]


def load(path: Path) -> Recorded:
    """Read one file of records."""
    with gzip.open(path, "rt", encoding="utf-8") as source:
        data = json.load(source)
    return Recorded(data["name"], data["texts"], data["queries"])


def build(corpus: Corpus, encoder: BiEncoder, device: torch.device, limit: int, depth: int = 100) -> Recorded:
    """The candidates of at most ``limit`` test queries, drawn with seed 0. Ids "a/b" are searched within "a" only.

    A query's record holds ``docs``, the rows of its candidates in the texts; ``words`` and ``near``, the scores of BM25
    and of the vectors, null for a candidate that is not among the first ``depth`` of that ranking; ``fused``, the
    fused scores; ``grades`` of the candidates; ``ideal``, all judged grades.
    """
    chosen = sorted(corpus.test)
    random.Random(0).shuffle(chosen)
    chosen = sorted(chosen[:limit], key=corpus.scope)
    texts = corpus.passages()
    vectors, asked = encoder.encode(texts), encoder.encode([corpus.queries[q] for q in chosen])
    rows_of: dict[str, list[int]] = {}
    for row, identifier in enumerate(corpus.ids):
        rows_of.setdefault(corpus.scope(identifier), []).append(row)
    found: list[dict[str, Any]] = []
    for scope, group in groupby(range(len(chosen)), lambda n: corpus.scope(chosen[n])):
        numbers, rows = list(group), rows_of[scope]
        engine = Searcher([texts[r] for r in rows], vectors[rows], device)
        for part, lexical, dense in engine.scores([corpus.queries[chosen[n]] for n in numbers], asked[numbers]):
            for n, words, near in zip(part, lexical.cpu().numpy(), dense.cpu().numpy(), strict=True):
                found.append(_record(corpus, chosen[numbers[n]], rows, words, near, depth))
    return Recorded(corpus.name, texts, found)


def _record(corpus: Corpus, query: str, rows: Sequence[int], words: Floats, near: Floats, depth: int) -> dict[str, Any]:
    first = [int(n) for n in np.argsort(-words, kind="stable")[:depth] if words[n] > 0]
    second = [int(n) for n in np.argsort(-near, kind="stable")[:depth]]
    last, best = float(near[second[-1]]), max(1.0, float(words.max()))
    lexical = {n: float(words[n]) for n in first}
    dense = {n: float(near[n]) for n in second}
    score = {
        n: BM25_WEIGHT * lexical.get(n, 0.0) / best + (1 - BM25_WEIGHT) * max(0.0, dense.get(n, last))
        for n in {**lexical, **dense}
    }
    order = sorted(score, key=lambda n: (-score[n], n))
    grades = corpus.test[query]

    def rounded(value: float | None) -> float | None:
        return None if value is None else round(value, 5)

    return {
        "id": query,
        "query": corpus.queries[query],
        "docs": [rows[n] for n in order],
        "words": [rounded(lexical.get(n)) for n in order],
        "near": [rounded(dense.get(n)) for n in order],
        "fused": [round(score[n], 5) for n in order],
        "grades": [grades.get(corpus.ids[rows[n]], 0) for n in order],
        "ideal": sorted(grades.values(), reverse=True),
    }


def save(recorded: Recorded, path: Path) -> None:
    """Write one file of records, with the texts of all candidates."""
    used = sorted({d for q in recorded.queries for d in q["docs"]})
    place = {d: n for n, d in enumerate(used)}
    queries = [{**q, "docs": [place[d] for d in q["docs"]]} for q in recorded.queries]
    with gzip.open(path, "wt", encoding="utf-8") as out:
        json.dump({"name": recorded.name, "texts": [recorded.texts[d] for d in used], "queries": queries}, out)


def pools(recorded: Recorded, depth: int) -> list[tuple[str, list[str]]]:
    """Each query with the texts of its first ``depth`` candidates."""
    return [(q["query"], [recorded.texts[d] for d in q["docs"][:depth]]) for q in recorded.queries]


@torch.inference_mode()
def layer_scores(
    model: LayeredReranker,
    tokenizer: Tokenizer,
    pools: Sequence[tuple[str, list[str]]],
    tokens: int = 6000,
    precision: str = "auto",
) -> list[Floats64]:
    """For each query the head's scores before the sigmoid: layers x candidates."""
    model.eval()
    owner = [(n, k) for n, (_, passages) in enumerate(pools) for k in range(len(passages))]
    encoded = tokenizer.encode_batch([(pools[n][0], pools[n][1][k]) for n, k in owner])
    found = [np.zeros((model.depth, len(passages))) for _, passages in pools]
    for group in batches(encoded, tokens):
        ids, mask, types = (part.to(model.device) for part in padded([encoded[i] for i in group]))
        with torch.autocast(model.device.type, torch.bfloat16, enabled=in_bfloat16(precision, model.device.type)):
            scores = model(ids, mask, types).double().cpu().numpy()
        for column, i in enumerate(group):
            n, k = owner[i]
            found[n][:, k] = scores[:, column]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Write ``OUT/MODEL.SET.npz`` for every model and set.

    The array ``scores`` is float16, queries x layers x candidates. It is NaN where a pool has fewer candidates.
    """
    parser = argparse.ArgumentParser(prog="edge.models.training.records", description=__doc__)
    parser.add_argument("--models", nargs="+", required=True, metavar="NAME=DIR", help="Hugging Face directories")
    parser.add_argument("--data", type=Path, required=True, help="folder of judged sets in BEIR layout")
    parser.add_argument("--base", type=Path, required=True, help="bi-encoder")
    parser.add_argument("--queries", type=int, default=300, help="test queries per set at most")
    parser.add_argument("--out", type=Path, required=True, help="folder of SET.json.gz (kept) and MODEL.SET.npz")
    parser.add_argument("--depth", type=int, default=60)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=6000, help="of one batch")
    parser.add_argument("--precision", choices=CHOICES, default="auto")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    device = torch.device(options.device)
    sets = []
    for directory in sorted(p.parent.parent for p in options.data.glob("*/qrels/test.tsv")):
        path = options.out / f"{directory.name}.json.gz"
        if not path.exists():
            encoder = BiEncoder(options.base, 256, device)
            save(build(read_corpus(directory), encoder, device, options.queries), path)
        sets.append(load(path))
    print(f"candidates after {time.monotonic() - started:.0f} s", flush=True)
    for named in options.models:
        name, _, directory = named.partition("=")
        model = LayeredReranker.from_directory(Path(directory), device=device)
        tokenizer = pair_tokenizer(Path(directory) / "tokenizer.json", options.max_tokens)
        for recorded in sets:
            found = pools(recorded, options.depth)
            scores = layer_scores(model, tokenizer, found, options.tokens, options.precision)
            table = np.full((len(found), model.depth, options.depth), np.nan, np.float16)
            for row, part in enumerate(scores):
                table[row, :, : part.shape[1]] = part
            np.savez_compressed(options.out / f"{name}.{recorded.name}.npz", scores=table)
            print(f"{name} {recorded.name}: {len(found)} queries, {time.monotonic() - started:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
