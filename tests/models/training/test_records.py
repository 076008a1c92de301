"""Records: the candidates of test queries with every score, against a naive twin."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from edge.models.training import records  # noqa: E402
from edge.models.training.corpora import Corpus  # noqa: E402
from edge.models.training.encoder import BiEncoder  # noqa: E402
from edge.models.training.mining import BM25  # noqa: E402
from edge.models.training.model import LayeredReranker, padded, pair_tokenizer  # noqa: E402

WORDS = "lake river stone cloud tiger lamp bread violin copper engine market garden".split()  # noqa: SIM905
TEXTS = [f"{WORDS[n % 12]} {WORDS[n * 5 % 12]} {WORDS[n * n % 12]}" for n in range(24)]


def talks() -> Corpus:
    """Two scopes of twelve documents, one query each, and a second query in the first."""
    return Corpus(
        "talks",
        [f"{'ab'[n // 12]}/{n}" for n in range(24)],
        [""] * 24,
        TEXTS,
        {"a/q": "lake river", "b/q": "tiger", "a/r": "garden"},
        {},
        {"a/q": {"a/0": 2, "a/1": 1}, "b/q": {"b/16": 1}, "a/r": {"a/11": 1}},
    )


def test_candidates_are_the_first_of_both_rankings_in_fused_order(tiny: Path) -> None:
    corpus, encoder = talks(), BiEncoder(tiny)
    found = records.build(corpus, encoder, torch.device("cpu"), limit=9, depth=4)
    assert sorted(q["id"] for q in found.queries) == ["a/q", "a/r", "b/q"]
    for query in found.queries:
        rows = list(range(12)) if query["id"].startswith("a/") else list(range(12, 24))
        words = BM25([TEXTS[r] for r in rows]).scores(query["query"])
        near = encoder.encode([TEXTS[r] for r in rows]) @ encoder.encode([query["query"]])[0]
        first = [n for n in np.argsort(-words, kind="stable")[:4] if words[n] > 0]
        second = np.argsort(-near, kind="stable")[:4].tolist()
        assert {rows[n] for n in [*first, *second]} == set(query["docs"])
        assert query["fused"] == sorted(query["fused"], reverse=True)
        for doc, lexical, dense, mixed, grade in zip(
            *(query[key] for key in ("docs", "words", "near", "fused", "grades")), strict=True
        ):
            n = rows.index(doc)
            assert lexical == (pytest.approx(words[n], abs=1e-4) if n in first else None)
            assert dense == (pytest.approx(near[n], abs=1e-4) if n in second else None)
            shown = words[n] / max(1.0, words.max()) if n in first else 0.0
            nearness = max(0.0, near[n] if n in second else near[second[-1]])
            assert mixed == pytest.approx(0.2 * shown + 0.8 * nearness, abs=1e-4)
            assert grade == corpus.test[query["id"]].get(corpus.ids[doc], 0)
        assert query["ideal"] == sorted(corpus.test[query["id"]].values(), reverse=True)


def test_layer_scores_are_the_models_own_in_pool_order(tiny: Path) -> None:
    model = LayeredReranker.from_directory(tiny).eval()
    tokenizer = pair_tokenizer(tiny / "tokenizer.json", 32)
    pools = [("lake", ["river stone", "lake lamp", "tiger"]), ("bread", ["bread violin copper", "engine"])]
    found = records.layer_scores(model, tokenizer, pools, tokens=12, precision="float32")
    assert [s.shape for s in found] == [(3, 3), (3, 2)]
    with torch.inference_mode():
        alone = model(*padded([tokenizer.encode("lake", "lake lamp")]))[:, 0]
    assert np.allclose(found[0][:, 1], alone.numpy(), atol=1e-5)


def test_records_survive_the_disk_with_the_texts_of_their_candidates(tiny: Path, tmp_path: Path) -> None:
    made = records.build(talks(), BiEncoder(tiny), torch.device("cpu"), limit=1, depth=3)
    records.save(made, tmp_path / "talks.json.gz")
    read = records.load(tmp_path / "talks.json.gz")
    (query,), (kept,) = made.queries, read.queries
    assert [read.texts[d] for d in kept["docs"]] == [made.texts[d] for d in query["docs"]]
    assert len(read.texts) == len(query["docs"]) < len(made.texts)
    assert {**kept, "docs": 0} == {**query, "docs": 0}
    assert records.pools(read, 2)[0][1] == [made.texts[d] for d in query["docs"][:2]]


def test_the_program_scores_every_candidate_with_every_model(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "data" / "set" / "qrels").mkdir(parents=True)
    rows = [{"_id": f"d{n}", "title": "", "text": shown} for n, shown in enumerate(TEXTS)]
    (tmp_path / "data" / "set" / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)))
    asked = [{"_id": f"q{n}", "text": WORDS[n]} for n in range(3)]
    (tmp_path / "data" / "set" / "queries.jsonl").write_text("\n".join(map(json.dumps, asked)))
    lines = "".join(f"q{n}\td{n}\t1\n" for n in range(3))
    (tmp_path / "data" / "set" / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}")
    for seed, name in enumerate(("one", "two")):
        LayeredReranker.from_directory(tiny, seed).save(tmp_path / name, tiny / "tokenizer.json")
    out = tmp_path / "out"
    models = [f"{name}={tmp_path / name}" for name in ("one", "two")]
    fixed = ["--models", *models, "--data", str(tmp_path / "data"), "--base", str(tiny), "--out", str(out)]
    assert records.main([*fixed, "--max-tokens", "32", "--precision", "float32", "--depth", "30"]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["one.set.npz", "set.json.gz", "two.set.npz"]
    held = records.load(out / "set.json.gz")
    for name in ("one", "two"):
        table = np.load(out / f"{name}.set.npz")["scores"]
        assert (table.dtype, table.shape) == (np.float16, (3, 3, 30))
        model = LayeredReranker.from_directory(tmp_path / name)
        tokenizer = pair_tokenizer(tmp_path / name / "tokenizer.json", 32)
        expected = records.layer_scores(model, tokenizer, records.pools(held, 30), precision="float32")
        for row, scores in zip(table, expected, strict=True):
            count = scores.shape[1]
            assert count < 30
            assert np.allclose(row[:, :count], scores, atol=1e-2)
            assert np.isnan(row[:, count:]).all()
    assert not np.allclose(*(np.nan_to_num(np.load(out / f"{n}.set.npz")["scores"]) for n in ("one", "two")))
