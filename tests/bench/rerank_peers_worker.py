"""Measures one reranker on the candidates of several queries: edge-rag, FlashRank, fastembed or transformers.

It runs as a script in the Python of the system, so it imports only the standard library before the system is known.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Score = Callable[[str, list[str]], list[float]]
"""Maps a query and its candidates to their scores, in the order of the candidates."""

_MODEL = "bench/cross-encoder"


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Runs the task's `system`.

    Returns:
        `first`: the seconds from the start of this function to the first query's scores, with imports and opening.
        `seconds`: those of each query, after that. `scores`: those of each query's candidates.
    """
    systems = {"edge": _edge, "flashrank": _flashrank, "fastembed": _fastembed, "transformers": _transformers}
    started = time.perf_counter()
    score = systems[task["system"]](task)
    queries = task["queries"]
    score(*queries[0])
    first = time.perf_counter() - started
    seconds, scores = [], []
    for query, docs in queries:
        started = time.perf_counter()
        scores.append(score(query, docs))
        seconds.append(time.perf_counter() - started)
    return {"first": first, "seconds": seconds, "scores": scores}


def _edge(task: dict[str, Any]) -> Score:
    from edge.config import Config
    from edge.runtimes.reranker import Reranker

    config = Config.load(flags={"memory": task["memory"], "threads": task["threads"]})
    reranker = Reranker(task["model"], config=config, max_tokens=task["max_tokens"], threshold="inf")

    def score(query: str, docs: list[str]) -> list[float]:
        found = {result.index: result.score for result in reranker.rank(query, docs)}
        return [found[i] for i in range(len(docs))]

    return score


def _flashrank(task: dict[str, Any]) -> Score:
    from flashrank import Ranker, RerankRequest

    ranker = Ranker(task["name_there"], cache_dir=task["model"], max_length=task["max_tokens"], log_level="ERROR")

    def score(query: str, docs: list[str]) -> list[float]:
        passages = [{"id": i, "text": text} for i, text in enumerate(docs)]
        found = {row["id"]: float(row["score"]) for row in ranker.rerank(RerankRequest(query, passages))}
        return [found[i] for i in range(len(docs))]

    return score


def _fastembed(task: dict[str, Any]) -> Score:
    from fastembed.common.model_description import ModelSource
    from fastembed.rerank.cross_encoder import TextCrossEncoder

    place = os.path.join(task["model"], task["name_there"])
    TextCrossEncoder.add_custom_model(_MODEL, sources=ModelSource(hf=_MODEL), model_file=task["file_there"])
    encoder = TextCrossEncoder(_MODEL, threads=task["threads"], specific_model_path=place)
    return lambda query, docs: list(map(float, encoder.rerank(query, docs)))


def _transformers(task: dict[str, Any]) -> Score:
    import torch
    from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

    torch.set_num_threads(task["threads"])
    checkpoint = task["model"]
    fast: Any = PreTrainedTokenizerFast
    tokenizer = fast(tokenizer_file=os.path.join(checkpoint, "tokenizer.json"), pad_token=task["pad_token"])
    model: Any = AutoModelForSequenceClassification.from_pretrained(checkpoint, dtype=torch.float32).eval()
    for parameter in model.parameters():  # mapped weights would not count as memory of the process
        parameter.data = parameter.data.clone()

    def score(query: str, docs: list[str]) -> list[float]:
        scores: list[float] = []
        with torch.inference_mode():
            for start in range(0, len(docs), task["batch"]):
                part = docs[start : start + task["batch"]]
                batch = tokenizer(
                    [query] * len(part), part, padding=True, truncation=True, max_length=task["max_tokens"],
                    return_tensors="pt", return_token_type_ids=True,
                )  # fmt: skip
                scores += model(**batch).logits[:, 0].tolist()
        return scores

    return score


if __name__ == "__main__":
    print(json.dumps(work(json.load(sys.stdin))))
