"""Makes and searches an index of documents with one program: edge-rag, txtai or LEANN.

It runs as a script in the Python of the program, so it imports only the standard library before the program is known.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

Search = Callable[[str], list[str]]
"""Maps a query to the ids of the best documents, best first."""

_DEPTH = 10
_HYBRID = 0.5


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Runs the task's `action` for its `system`.

    Returns:
        Of `index`: `seconds`, and `nbytes`, the size of its files. Of `search`: `first`, the seconds from the start
        of this function to the first query's results, with imports and opening; `seconds` of each query after that;
        `found`, the ids of each query's documents. No query starts after `longest` seconds of searching.
    """
    started = time.perf_counter()
    if task["action"] == "index":
        {"edge": _index_edge, "txtai": _index_txtai, "leann": _index_leann}[task["system"]](task)
        seconds = time.perf_counter() - started
        files = (path for path in Path(task["folder"]).rglob("*") if path.is_file())
        return {"seconds": seconds, "nbytes": sum(path.stat().st_size for path in files)}
    openers = {"edge": _open_edge, "txtai": _open_txtai, "leann": _open_leann}
    search, close = openers[task["system"]](task)
    queries = task["queries"]
    search(queries[0])
    report: dict[str, Any] = {"first": time.perf_counter() - started, "seconds": [], "found": []}
    end = time.perf_counter() + task["longest"]
    for query in queries:
        started = time.perf_counter()
        if started >= end and report["found"]:
            break
        report["found"].append(search(query))
        report["seconds"].append(time.perf_counter() - started)
    close()
    return report


def _collection(task: dict[str, Any]) -> Any:
    from edge.apps.collection.collection import Collection
    from edge.config import Config

    flags = {"memory": task["memory"], "threads": task["threads"], "embedder": task["model"]}
    return Collection(task["folder"], config=Config.load(flags=flags))


def _index_edge(task: dict[str, Any]) -> None:
    ids, titles, texts = zip(*task["documents"], strict=True)
    with _collection(task) as collection:
        collection.add(texts, ids=ids, title=titles)


def _open_edge(task: dict[str, Any]) -> tuple[Search, Callable[[], Any]]:
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


def _open_txtai(task: dict[str, Any]) -> tuple[Search, Callable[[], Any]]:
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


def _open_leann(task: dict[str, Any]) -> tuple[Search, Callable[[], Any]]:
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
