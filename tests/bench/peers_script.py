"""Reranks or searches with one program of several, in the Python of that program, which may lack this one.

So it imports only the standard library before the program is known. The task is JSON on stdin, and the report is the
last line of the output. Its `first` is the number of seconds to the first answer, with imports and opening; `seconds`
are those of each query after that, and `answers` what was found for it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from inspect import signature
from pathlib import Path
from typing import Any

Asked = Callable[[Any], Any]
"""Reranking maps a query and its candidates to their scores, in the order of the candidates. Searching maps a query to
the ids of the best documents, best first."""

_MODEL = "bench/cross-encoder"
_DEPTH = 10
_HYBRID = 0.5


def work(task: dict[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    own = globals()[f"_{task['action']}_{task['system']}"](task)
    if task["action"] == "index":
        seconds = time.perf_counter() - started
        files = (path for path in Path(task["folder"]).rglob("*") if path.is_file())
        return {"seconds": seconds, "nbytes": sum(path.stat().st_size for path in files)}
    ask, close = own if isinstance(own, tuple) else (own, lambda: None)
    queries = task["queries"]

    def before() -> None:
        if task.get("cold"):
            from bench.process import drop_page_cache

            drop_page_cache(Path(task["model"]))

    before()
    ask(queries[0])
    report: dict[str, Any] = {"first": time.perf_counter() - started, "seconds": [], "answers": []}
    end = time.perf_counter() + task["longest"]
    for query in queries:
        before()
        started = time.perf_counter()
        if started >= end and report["answers"]:
            break
        report["answers"].append(ask(query))
        report["seconds"].append(time.perf_counter() - started)
    close()
    return report


def _rerank_edge(task: dict[str, Any]) -> Asked:
    from edge.config import Config
    from edge.runtimes.reranker import Reranker

    config = Config.load(flags={"memory": task["memory"], "threads": task["threads"]})
    reranker = Reranker(task["model"], config=config, max_tokens=task["max_tokens"], threshold="inf")

    def score(asked: tuple[str, list[str]]) -> list[float]:
        found = {result.index: result.score for result in reranker.rank(*asked)}
        return [found[i] for i in range(len(asked[1]))]

    return score


def _rerank_onnxruntime(task: dict[str, Any]) -> Asked:
    from bench.plain_onnx import PlainReranker

    reranker = PlainReranker(Path(task["model"]), threads=task["threads"])
    return lambda asked: reranker.score(*asked, task["max_tokens"])


def _rerank_flashrank(task: dict[str, Any]) -> Asked:
    from flashrank import Ranker, RerankRequest

    ranker = Ranker(task["name_there"], cache_dir=task["model"], max_length=task["max_tokens"], log_level="ERROR")

    def score(asked: tuple[str, list[str]]) -> list[float]:
        passages = [{"id": i, "text": text} for i, text in enumerate(asked[1])]
        found = {row["id"]: float(row["score"]) for row in ranker.rerank(RerankRequest(asked[0], passages))}
        return [found[i] for i in range(len(passages))]

    return score


def _rerank_fastembed(task: dict[str, Any]) -> Asked:
    from fastembed.common.model_description import ModelSource
    from fastembed.rerank.cross_encoder import TextCrossEncoder

    place = os.path.join(task["model"], task["name_there"])
    TextCrossEncoder.add_custom_model(_MODEL, sources=ModelSource(hf=_MODEL), model_file=task["file_there"])
    encoder = TextCrossEncoder(_MODEL, threads=task["threads"], specific_model_path=place)
    return lambda asked: list(map(float, encoder.rerank(*asked)))


def _rerank_transformers(task: dict[str, Any]) -> Asked:
    import torch
    from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

    torch.set_num_threads(task["threads"])
    checkpoint = task["model"]
    fast: Any = PreTrainedTokenizerFast
    tokenizer = fast(tokenizer_file=os.path.join(checkpoint, "tokenizer.json"), pad_token=task["pad_token"])
    model: Any = AutoModelForSequenceClassification.from_pretrained(checkpoint, dtype=torch.float32).eval()
    for parameter in model.parameters():  # mapped weights would not count as memory of the process
        parameter.data = parameter.data.clone()

    def score(asked: tuple[str, list[str]]) -> list[float]:
        query, docs = asked
        scores: list[float] = []
        with torch.inference_mode():
            for start in range(0, len(docs), task["batch"]):
                part = docs[start : start + task["batch"]]
                batch = tokenizer(
                    [query] * len(part), part, padding=True, truncation=True, max_length=task["max_tokens"],
                    return_tensors="pt", return_token_type_ids="token_type_ids" in signature(model.forward).parameters,
                )  # fmt: skip
                scores += model(**batch).logits[:, 0].tolist()
        return scores

    return score


def _collection(task: dict[str, Any]) -> Any:
    from edge.apps.collection.collection import Collection
    from edge.config import Config

    flags = {"memory": task["memory"], "threads": task["threads"], "embedder": task["model"]}
    return Collection(task["folder"], config=Config.load(flags=flags))


def _index_edge(task: dict[str, Any]) -> None:
    ids, titles, texts = zip(*task["documents"], strict=True)
    with _collection(task) as collection:
        collection.add(texts, ids=ids, title=titles)


def _search_edge(task: dict[str, Any]) -> tuple[Asked, Callable[[], Any]]:
    collection = _collection(task)
    rerank = task["variant"] != "no reranking"

    def search(query: str) -> list[str]:
        return [str(hit.path) for hit in collection.search(query, _DEPTH, rerank=rerank)]

    return search, collection.close


def _index_txtai(task: dict[str, Any]) -> None:
    from txtai import Embeddings

    embeddings = Embeddings(path=task["model"], hybrid=True, content=True)
    embeddings.index((number, f"{title} {text}".strip(), None) for number, title, text in task["documents"])
    embeddings.save(task["folder"])


def _search_txtai(task: dict[str, Any]) -> tuple[Asked, Callable[[], Any]]:
    from txtai import Embeddings

    embeddings = Embeddings()
    embeddings.load(task["folder"])
    return lambda query: [str(row["id"]) for row in embeddings.search(query, _DEPTH)], embeddings.close


def _index_leann(task: dict[str, Any]) -> None:
    from leann import LeannBuilder

    stored = task["variant"] != ""
    builder = LeannBuilder(
        backend_name="hnsw", embedding_model=task["model"], embedding_mode="sentence-transformers",
        is_recompute=not stored, is_compact=not stored,
    )  # fmt: skip
    for number, title, text in task["documents"]:
        builder.add_text(f"{title} {text}".strip(), metadata={"id": number})
    builder.build_index(os.path.join(task["folder"], "documents.leann"))


def _search_leann(task: dict[str, Any]) -> tuple[Asked, Callable[[], Any]]:
    from leann import LeannSearcher

    stored = task["variant"] != ""
    place = os.path.join(task["folder"], "documents.leann")
    # The server that computes vectors again ends with the searcher, so that its memory counts and none is left behind.
    searcher = LeannSearcher(place, recompute_embeddings=not stored, use_daemon=False)
    weight = _HYBRID if stored else 1.0

    def search(query: str) -> list[str]:
        return [str(row.id) for row in searcher.search(query, top_k=_DEPTH, vector_weight=weight)]

    return search, searcher.cleanup


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        found = work(json.load(sys.stdin))
    print(json.dumps(found))
