"""Evaluates a reranker: ``python -m edge.models.training.evaluation --model DIR --base DIR --data DIR``.

For every set it prints nDCG@10 of BM25, of the bi-encoder, of their fused order, of the reranker alone and
blended, then of the reranker's head at every layer. Pools are the fused top 30 of a seeded sample of test queries.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from ..blending import WEIGHT, Floats64, retrieval_scores
from .measures import blended, ndcg
from .mining import Floats
from .model import LayeredReranker, batches, padded, pair_tokenizer
from .precision import CHOICES, in_bfloat16
from .testpools import TestQuery, cached


@dataclass(frozen=True)
class Row:
    """nDCG@10 values of one set, each the mean over ``queries`` queries. ``layers`` starts with the first layer."""

    name: str
    queries: int
    lexical: float
    dense: float
    fused: float
    alone: float
    blended: float
    layers: list[float]
    layers_blended: list[float]


@torch.inference_mode()
def layer_scores(
    model: LayeredReranker,
    tokenizer: Tokenizer,
    pools: Sequence[TestQuery],
    tokens: int = 6000,
    precision: str = "auto",
) -> list[Floats64]:
    """For each query the head's scores before the sigmoid: layers x candidates."""
    model.eval()
    owner = [(n, k) for n, pool in enumerate(pools) for k in range(len(pool.passages))]
    encoded = tokenizer.encode_batch([(pools[n].query, pools[n].passages[k]) for n, k in owner])
    found = [np.zeros((model.depth, len(pool.passages))) for pool in pools]
    for group in batches(encoded, tokens):
        ids, mask, types = (part.to(model.device) for part in padded([encoded[i] for i in group]))
        with torch.autocast(model.device.type, torch.bfloat16, enabled=in_bfloat16(precision, model.device.type)):
            scores = model(ids, mask, types).double().cpu().numpy()
        for column, i in enumerate(group):
            n, k = owner[i]
            found[n][:, k] = scores[:, column]
    return found


def mean_ndcg(pools: Sequence[TestQuery], scores: Sequence[npt.NDArray[np.floating]]) -> float:
    """Mean nDCG@10 of candidate scores given in pool order."""
    values = [
        float(ndcg(np.asarray(s, dtype=np.float64), np.array(p.grades, float), np.array(p.ideal, float)))
        for p, s in zip(pools, scores, strict=True)
    ]
    return float(np.mean(values)) if values else 0.0


def _single(pools: Sequence[TestQuery], pick: Callable[[TestQuery], list[int]]) -> float:
    values = [
        float(ndcg(-np.arange(len(pick(p)), dtype=np.float64), np.array(pick(p), float), np.array(p.ideal, float)))
        for p in pools
    ]
    return float(np.mean(values)) if values else 0.0


def judge(name: str, pools: Sequence[TestQuery], scores: Sequence[Floats64], weight: float) -> Row:
    """The table's row for one set, from the scores of `layer_scores`."""
    depth = scores[0].shape[0]

    def mixed(logits: Floats64) -> Floats64:
        return blended(logits, retrieval_scores(len(logits)), weight)

    return Row(
        name,
        len(pools),
        _single(pools, lambda p: p.lexical),
        _single(pools, lambda p: p.dense),
        mean_ndcg(pools, [retrieval_scores(len(p.passages)) for p in pools]),
        mean_ndcg(pools, [s[-1] for s in scores]),
        mean_ndcg(pools, [mixed(s[-1]) for s in scores]),
        [mean_ndcg(pools, [s[layer] for s in scores]) for layer in range(depth)],
        [mean_ndcg(pools, [mixed(s[layer]) for s in scores]) for layer in range(depth)],
    )


def table(rows: Sequence[Row]) -> str:
    """A Markdown table: the orders first, then the layers."""
    lines = ["| set | queries | BM25 | bi-encoder | fused | reranker | blended | blended - fused |", "|" + "---|" * 8]
    lines += [
        f"| {r.name} | {r.queries} | {r.lexical:.3f} | {r.dense:.3f} | {r.fused:.3f} | {r.alone:.3f} "
        f"| {r.blended:.3f} | {r.blended - r.fused:+.3f} |"
        for r in rows
    ]
    depth = len(rows[0].layers) if rows else 0
    lines += ["", "| set, alone / blended | " + " | ".join(f"layer {n + 1}" for n in range(depth)) + " |"]
    lines.append("|" + "---|" * (depth + 1))
    for r in rows:
        cells = [f"{a:.3f} / {b:.3f}" for a, b in zip(r.layers, r.layers_blended, strict=True)]
        lines.append(f"| {r.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and with ``--json`` the same figures as one JSON object per set."""
    parser = argparse.ArgumentParser(prog="edge.models.training.evaluation", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="trained reranker, Hugging Face directory")
    parser.add_argument("--base", type=Path, help="bi-encoder for the pools; not needed when --cache has them")
    parser.add_argument("--data", type=Path, required=True, help="folder of judged sets in BEIR layout")
    parser.add_argument("--sets", nargs="*", help="names of sets (default: every folder with a test split)")
    parser.add_argument("--queries", type=int, default=200, help="test queries per set")
    parser.add_argument("--weight", type=float, default=WEIGHT, help="the reranker's share of the blend")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=CHOICES, default="auto", help="auto: what is faster here")
    parser.add_argument("--cache", type=Path, help="folder that keeps the pools between runs")
    parser.add_argument("--scores", type=Path, help="write every score to this .npz, for other analyses")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    model = LayeredReranker.from_directory(options.model)
    tokenizer = pair_tokenizer(options.model / "tokenizer.json", options.max_tokens)
    encode = _lazy_encoder(options.base)
    names = options.sets or sorted(p.parent.parent.name for p in options.data.glob("*/qrels/test.tsv"))
    rows: list[Row] = []
    kept: dict[str, Any] = {}
    for name in names:
        pools = cached(options.data / name, encode, options.queries, options.cache)
        scores = layer_scores(model, tokenizer, pools, precision=options.precision)
        rows.append(judge(name, pools, scores, options.weight))
        kept.update({f"{name}/{n}": s for n, s in enumerate(scores)})
        if options.json:
            print(json.dumps(asdict(rows[-1])), flush=True)
    if not options.json:
        print(table(rows))
    if options.scores:
        np.savez_compressed(options.scores, **kept)
    return 0


def _lazy_encoder(base: Path | None) -> Callable[[Sequence[str]], Floats]:
    """The bi-encoder, loaded at the first text that needs it."""
    loaded: list[Callable[[Sequence[str]], Floats]] = []

    def encode(texts: Sequence[str]) -> Floats:
        if base is None:
            raise SystemExit("no pools in the cache for these sets: name the bi-encoder with --base")
        if not loaded:
            from .encoder import BiEncoder

            loaded.append(BiEncoder(base).encode)
        return loaded[0](texts)

    return encode


if __name__ == "__main__":
    raise SystemExit(main())
