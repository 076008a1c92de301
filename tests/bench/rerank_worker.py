"""Measures one system that scores the same pairs with the same weights: edge, plain onnxruntime or transformers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bench.process import drop_page_cache


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Runs the task's `system`. Reports the seconds of each repetition, and the scores."""
    systems = {"edge": _edge, "onnxruntime": _onnxruntime, "transformers": _transformers, "offload": _transformers}
    return systems[task["system"]](task)


def _edge(task: dict[str, Any]) -> dict[str, Any]:
    from edge.config import Config
    from edge.runtimes.engine import Tuning
    from edge.runtimes.reranker import Reranker

    config = Config.load(flags={"memory": task["memory"], "threads": task["threads"]})
    tuning = Tuning(buffers=task.get("buffers"), offload=task.get("offload"))
    pack = Path(task["pack"])
    with Reranker(str(pack), config=config, max_tokens=task["max_tokens"], tuning=tuning) as reranker:
        seconds: list[float] = []
        for _ in range(task["repeats"]):
            cold = drop_page_cache(pack) if task["cold"] else False
            started = time.perf_counter()
            ranking = reranker.explain(task["query"], task["docs"], task["top_k"], threshold="inf")
            seconds.append(time.perf_counter() - started)
        stats = ranking.stats.to_json()
    scores = {str(r.index): r.score for r in ranking.results}
    return {"seconds": seconds, "scores": scores, "stats": stats, "cold": cold}


def _onnxruntime(task: dict[str, Any]) -> dict[str, Any]:
    from bench.plain_onnx import PlainReranker

    reranker = PlainReranker(Path(task["pack"]), threads=task["threads"])
    seconds = []
    for _ in range(task["repeats"]):
        started = time.perf_counter()
        scores = reranker.score(task["query"], task["docs"], task["max_tokens"])
        seconds.append(time.perf_counter() - started)
    return {"seconds": seconds, "scores": _top(scores, task["top_k"])}


def _transformers(task: dict[str, Any]) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    from edge.models.packed import PackedModel
    from edge.models.tokenizer import PairTokenizer

    torch.set_num_threads(task["threads"])
    options: dict[str, Any] = {"dtype": torch.float32}
    if task["system"] == "offload":
        options |= {"device_map": {"": "disk"}, "offload_folder": task["scratch"]}
    with PackedModel.open(task["pack"]) as packed:
        tokenizer = PairTokenizer(packed.tokenizer_path, packed.spec)
        decoder = packed.spec.layer.causal
    kind = AutoModelForCausalLM if decoder else AutoModelForSequenceClassification
    model: Any = kind.from_pretrained(task["checkpoint"], **options).eval()
    if task["system"] == "transformers":
        # Weights stay mapped from their file until they are written to, and mapped pages are not counted. They are
        # copied, so that all weights are in memory and counted, as with another device, precision or file format.
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
    seconds = []
    for _ in range(task["repeats"]):
        started = time.perf_counter()
        batch = tokenizer.encode_pairs(task["query"], task["docs"], task["max_tokens"])
        scores: list[float] = []
        with torch.inference_mode():
            for low in range(0, len(batch), task["batch"]):
                ids, mask = _padded(batch, low, min(low + task["batch"], len(batch)))
                tokens, attention = torch.from_numpy(ids), torch.from_numpy(mask)
                if decoder:
                    output = model(input_ids=tokens, attention_mask=attention, logits_to_keep=1).logits[:, -1]
                    pair = output[:, [task["no"], task["yes"]]]
                    scores += torch.softmax(pair, dim=1)[:, 1].tolist()
                else:
                    scores += torch.sigmoid(model(input_ids=tokens, attention_mask=attention).logits[:, 0]).tolist()
        seconds.append(time.perf_counter() - started)
    return {"seconds": seconds, "scores": _top(scores, task["top_k"])}


def _padded(batch: Any, low: int, high: int) -> tuple[Any, Any]:
    """The token ids and the mask of a batch, [batch, longest]. Batches with a prefix are padded on the left, because
    decoders read the last token."""
    import numpy as np

    starts, prefix = batch.starts, batch.prefix
    rows = [np.concatenate((prefix, batch.tokens[starts[i] : starts[i + 1]])) for i in range(low, high)]
    longest = max(map(len, rows))
    ids = np.zeros((len(rows), longest), np.int64)
    mask = np.zeros_like(ids)
    for row, tokens in enumerate(rows):
        place = slice(longest - len(tokens), None) if len(prefix) else slice(0, len(tokens))
        ids[row, place], mask[row, place] = tokens, 1
    return ids, mask


def _top(scores: list[float], k: int) -> dict[str, float]:
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    return {str(i): scores[i] for i in order[:k]}
