"""The reranker's training: wide retrieval, records, and packs."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from making.judged_set import judged_set  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from edge.models.pack import pack  # noqa: E402
from edge.models.training import records, reranker, unpack, wide  # noqa: E402
from edge.models.training.corpora import Corpus  # noqa: E402
from edge.models.training.documents import Document, write  # noqa: E402
from edge.models.training.encoder import BiEncoder  # noqa: E402
from edge.models.training.loss import LossConfig  # noqa: E402
from edge.models.training.mining import BM25, Pool  # noqa: E402
from edge.models.training.model import LayeredReranker, padded, pair_tokenizer  # noqa: E402
from edge.models.training.questions import Written  # noqa: E402
from edge.models.training.wording import passages  # noqa: E402

WORDS = "lake river stone cloud tiger lamp bread violin copper engine market garden".split()  # noqa: SIM905
SHARES = {"one.judged": 0.3, "one.title": 0.1, "oneself.judged": 0.4, "docs.mined": 0.2}


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reranker, "SHARES", SHARES)


def pools(directory: Path, **sizes: int) -> Path:
    for name, size in sizes.items():
        (directory / f"wide.{name}.npz").write_bytes(bytes(size))
    return directory


@pytest.mark.usefixtures("shares")
def test_gathered_texts_share_by_the_root_of_their_size_and_stand_for_documentation(tmp_path: Path) -> None:
    directory = pools(tmp_path, big=900, small=100, one=400, docstrings=1600)
    found = reranker.shares_of(directory, 0.5, [])
    assert found == pytest.approx(
        {"one.judged": 0.1875, "one.title": 0.0625, "oneself.judged": 0.25}
        | {"wide.big": 0.15, "wide.docstrings": 0.2, "wide.one": 0.1, "wide.small": 0.05}
    )
    assert set(reranker.shares_of(directory, 1.0, ["one"])) == {"wide.big", "wide.docstrings", "wide.small"}
    assert "wide.docstrings" in reranker.shares_of(directory, 0.5, ["docs"])
    assert reranker.shares_of(tmp_path, 0.0, []) == pytest.approx(SHARES), "without them those of the table"
    left = reranker.shares_of(tmp_path, 0.0, ["one"])
    assert left == pytest.approx({"oneself.judged": 2 / 3, "docs.mined": 1 / 3})


@pytest.mark.usefixtures("shares")
@pytest.mark.parametrize(
    ("share", "left_out", "said"),
    [
        (1.5, [], "from 0 to 1, not 1.5"),
        (0.0, ["oneselves"], "no pool is of oneselves"),
        (0.0, ["one", "oneself", "docs"], "every pool is left out"),
        (0.5, [], "no pools over gathered texts"),
    ],
)
def test_what_cannot_be_shared_is_said(
    share: float, left_out: list[str], said: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = ["--data", str(tmp_path), "--base", str(tiny), "--out", str(tmp_path / "out"), "--steps", "1"]
    with pytest.raises(SystemExit) as ended:
        reranker.main([*fixed, "--wide", str(share), *(word for name in left_out for word in ("--leave-out", name))])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_gathered_texts_train_a_model_that_a_second_stage_starts_from(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker processes change no weight."""
    rng = random.Random(0)

    def text() -> str:
        return " The ".join(" ".join(rng.choices(WORDS, k=9)) + "." for _ in range(4))

    documents = [Document("set", f"title {n}", (("", text()), ("more", text()))) for n in range(24)]
    write(tmp_path / "texts.jsonl", documents)
    directory = tmp_path / "pools"
    assert wide.main(["--texts", str(tmp_path / "texts.jsonl"), "--base", str(tiny), "--out", str(directory)]) == 0
    monkeypatch.setattr(reranker, "LossConfig", lambda: LossConfig(layers=(0.2, 0.5, 1.0)))
    fixed = ["--data", str(tmp_path), "--base", str(tiny), "--pools", str(directory), "--wide", "1"]
    fixed += ["--max-tokens", "32", "--lists", "3", "--candidates", "4", "--log-steps", "2", "--precision", "float32"]

    def run(name: str, *words: str) -> dict[str, torch.Tensor]:
        assert reranker.main([*fixed, "--out", str(tmp_path / name), *words]) == 0
        return load_file(tmp_path / name / "mean" / "model.safetensors")

    whole = run("whole", "--steps", "6")
    again = run("again", "--steps", "6", *(() if sys.platform == "win32" else ("--workers", "2")))
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    log = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [2, 4, 6]
    assert all(line["pairs"] == 2 * 3 * 4 for line in log)
    (recipe,) = [json.loads(line) for line in (tmp_path / "whole" / "recipe.jsonl").read_text().splitlines()]
    assert (recipe["shares"], recipe["device"], recipe["lists"]["candidates"]) == ({"wide.set": 1.0}, "cpu", 4)
    fixed[3] = str(tmp_path / "whole" / "mean")
    second = run("second", "--steps", "2")
    assert second.keys() == whole.keys()
    words = "bert.embeddings.word_embeddings.weight"
    assert torch.equal(second[words], whole[words])
    assert not torch.equal(second["classifier.weight"], whole["classifier.weight"])


def text(seed: int, count: int = 5) -> str:
    rng = random.Random(seed)
    return " ".join(" ".join(rng.choices(WORDS, k=9)) + "." for _ in range(count)).replace(". ", ". The ")


def judged(directory: Path, test: dict[str, str], train: dict[str, str]) -> Path:
    """A set with one document and one query for each text."""
    texts = {**test, **train}
    qrels = {name: [(f"q{n}", n, 1) for n in part] for name, part in (("test", test), ("train", train)) if part}
    documents = [(n, "", shown) for n, shown in texts.items()]
    return judged_set(directory, documents, {f"q{n}": f"query {n} of the set" for n in texts}, qrels)


def test_test_material_is_every_judged_document_and_all_of_a_set_without_training(tmp_path: Path) -> None:
    judged(tmp_path / "trained", {"a": text(1)}, {"b": text(2)})
    judged(tmp_path / "unseen", {"c": text(3)}, {})
    with (tmp_path / "unseen" / "corpus.jsonl").open("a") as out:
        out.write(json.dumps({"_id": "d", "title": "", "text": text(4)}))
    barred = wide.test_runs(tmp_path)
    assert [wide.runs(text(n)) <= barred for n in (1, 2, 3, 4)] == [True, False, True, True]
    assert wide.runs("one two three four five six seven") == set(), "runs are of eight words"
    assert len(wide.runs("One, two three four five six seven EIGHT! nine")) == 2


def test_written_queries_ask_for_the_passage_that_they_were_written_for() -> None:
    found = passages([Document("d", f"title {n}", (("", text(n)),)) for n in range(9)])
    written = [Written(found[n].key, {"question": f"question {n}", "search": f"search {n}"}) for n in (6, 2)]
    made = wide.asked(found, written, random.Random(0), 0.0)
    assert [(r.query, r.positive) for r in made] == [
        ("question 6", (6,)),
        ("search 6", (6,)),
        ("question 2", (2,)),
        ("search 2", (2,)),
    ]
    with pytest.raises(ValueError, match="other texts"):
        wide.asked(found[:4], written, random.Random(0), 0.0)


def test_the_program_mines_each_domain_once_and_keeps_test_material_out(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = judged(tmp_path / "data" / "set", {"a": text(3)}, {}).parent
    documents = [
        Document(domain, f"{domain} {n}", (("", text(n, 4)), ("more", text(100 + n, 4))))
        for domain in ("one", "two")
        for n in range(20)
    ]
    write(tmp_path / "texts.jsonl.gz", documents)
    held = passages(documents[:20])
    rows = [{"d": "one", "p": held[5].key, "q": {"question": held[5].text}}]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "pools"
    fixed = ["--texts", str(tmp_path / "texts.jsonl.gz"), "--data", str(data), "--base", str(tiny), "--out", str(out)]
    asking = [*fixed, "--questions", str(tmp_path / "asked.jsonl"), "--each", "2"]
    assert wide.main([*asking, "--part", "0/2"]) == 0
    assert [path.name for path in out.iterdir()] == ["wide.one.npz"]
    before = (out / "wide.one.npz").stat().st_mtime_ns
    assert wide.main(asking) == 0
    assert sorted(path.name for path in out.iterdir()) == ["wide.one.npz", "wide.two.npz"]
    assert (out / "wide.one.npz").stat().st_mtime_ns == before
    barred = wide.test_runs(data)
    for name in ("one", "two"):
        pool = Pool.open(out / f"wide.{name}.npz")
        assert (pool.name, len(pool.lists) > 5) == (name, True)
        dirty = {n for n, shown in enumerate(pool.texts) if wide.runs(shown) & barred}
        assert dirty
        assert not dirty & {row for c in pool.lists for row in c.positive}
    assert any(c.query == rows[0]["q"]["question"] and c.positive == [5] for c in Pool.open(out / "wide.one.npz").lists)
    (out / "wide.one.npz").unlink()
    (tmp_path / "asked.jsonl").write_text(json.dumps({**rows[0], "p": "0" * 16}))
    with pytest.raises(SystemExit) as ended:
        wide.main(asking)
    assert ended.value.code == 2
    assert "one: the questions were written for other texts" in capsys.readouterr().err


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
    documents = [(f"d{n}", "", shown) for n, shown in enumerate(TEXTS)]
    asked = {f"q{n}": WORDS[n] for n in range(3)}
    judged_set(tmp_path / "data" / "set", documents, asked, {"test": [(f"q{n}", f"d{n}", 1) for n in range(3)]})
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


@pytest.mark.parametrize(("precision", "near"), [("fp32", 0.0), ("int8", 0.02)])
def test_the_weights_of_a_pack_are_those_that_were_packed(
    tiny: Path, tmp_path: Path, precision: str, near: float
) -> None:
    model = LayeredReranker.from_directory(tiny, seed=3)
    model.save(tmp_path / "trained", tiny / "tokenizer.json")
    pack(tmp_path / "trained", tmp_path / "pack", precision)
    assert unpack.main(["--pack", str(tmp_path / "pack"), "--out", str(tmp_path / "again")]) == 0
    again = LayeredReranker.from_directory(tmp_path / "again").bert.state_dict()
    for name, value in model.bert.state_dict().items():
        assert again[name].shape == value.shape, name
        if value.is_floating_point():
            assert (again[name] - value).abs().max() <= near * max(1.0, float(value.abs().max())), name
