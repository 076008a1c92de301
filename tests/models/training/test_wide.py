"""Pools over gathered texts: whose queries they hold, and no text of the test sets."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from edge.models.training import wide  # noqa: E402
from edge.models.training.documents import Document, write  # noqa: E402
from edge.models.training.mining import Pool  # noqa: E402
from edge.models.training.questions import Written  # noqa: E402
from edge.models.training.wording import passages  # noqa: E402

WORDS = "lake river stone cloud tiger lamp bread violin copper engine market garden".split()  # noqa: SIM905


def text(seed: int, count: int = 5) -> str:
    rng = random.Random(seed)
    return " ".join(" ".join(rng.choices(WORDS, k=9)) + "." for _ in range(count)).replace(". ", ". The ")


def judged(directory: Path, test: dict[str, str], train: dict[str, str]) -> Path:
    """A set in BEIR layout: one document and one query for each text."""
    (directory / "qrels").mkdir(parents=True)
    texts = {**test, **train}
    rows = [{"_id": n, "title": "", "text": shown} for n, shown in texts.items()]
    (directory / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)))
    asked = [{"_id": f"q{n}", "text": f"query {n} of the set"} for n in texts]
    (directory / "queries.jsonl").write_text("\n".join(map(json.dumps, asked)))
    for name, part in (("test", test), ("train", train)):
        lines = "".join(f"q{n}\t{n}\t1\n" for n in part)
        if part:
            (directory / "qrels" / f"{name}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}")
    return directory


def test_runs_are_of_eight_words() -> None:
    assert wide.runs("one two three four five six seven") == set()
    assert len(wide.runs("one two three four five six seven eight nine")) == 2
    assert wide.runs("One, two three four five six seven EIGHT!") == wide.runs(
        "one two three four five six seven eight"
    )


def test_test_material_is_every_judged_document_and_all_of_a_set_without_training(tmp_path: Path) -> None:
    judged(tmp_path / "trained", {"a": text(1)}, {"b": text(2)})
    judged(tmp_path / "unseen", {"c": text(3)}, {})
    with (tmp_path / "unseen" / "corpus.jsonl").open("a") as out:
        out.write("\n" + json.dumps({"_id": "d", "title": "", "text": text(4)}))
    barred = wide.test_runs(tmp_path)
    assert [wide.runs(text(n)) <= barred for n in (1, 2, 3, 4)] == [True, False, True, True]


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
