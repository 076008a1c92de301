"""A judged set in BEIR's layout."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path


def judged_set(
    folder: Path,
    documents: Iterable[tuple[str, str, str]],
    queries: Mapping[str, str],
    qrels: Mapping[str, Iterable[tuple[str, str, int]]],
    answers: Mapping[str, object] | None = None,
) -> Path:
    """Documents have an id, a title and a text; the judgements of each split a query, a document and a grade."""
    (folder / "qrels").mkdir(parents=True)
    rows = [dict(zip(("_id", "title", "text"), document, strict=True)) for document in documents]
    asked = [{"_id": number, "text": text} for number, text in queries.items()]
    for name, lines in (("corpus", rows), ("queries", asked)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    for split, judged in qrels.items():
        table = "".join(f"{query}\t{document}\t{grade}\n" for query, document, grade in judged)
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{table}")
    if answers is not None:
        (folder / "answers.json").write_text(json.dumps(answers), encoding="utf-8")
    return folder
