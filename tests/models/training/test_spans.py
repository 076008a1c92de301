"""Examples for the reader: where answers stand, what has none, and what the form of a document asks."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from making.judged_set import judged_set

from edge.models.training import examples, forms, spans
from edge.models.training.corpora import Corpus
from edge.models.training.forms import Passage
from edge.models.training.spans import Example

TEXT = "The bridge was built in 1894. It spans the Aare. A toll of two francs was paid until 1931."
PAGE = """<h1 id="title">Old_bridge</h1><pre>{text} It&#39;s old.</pre><div>
<strong class="question">When was it built? </strong><span class="answer">1894</span><span class="answer">in 1894</span>
<strong class="question">Who paid?</strong><span class="no-answer">&lt;No Answer&gt;</span>
<strong class="question">What is lost?</strong><span class="answer">nowhere</span></div>"""


def shown(example: Example) -> list[str]:
    return [example.passage[start:end] for start, end in example.spans]


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        (["1894", "in 1894"], ["in 1894"]), (["189"], []), ([" Aare "], ["Aare"]), (["a", "the"], ["the"]),
        (["."], ["."] * 0), (["two (francs"], []), ([], []),
    ],
)  # fmt: skip
def test_places_are_whole_words_of_the_longest_answer(answers: list[str], found: list[str]) -> None:
    assert [TEXT[start:end] for start, end in spans.places(TEXT, answers)] == found
    assert spans.places("to and to and to", ["to"], most=3)
    assert not spans.places("to and to and to", ["to"], most=2), "it stands everywhere"


def test_explorer_pages_give_questions_with_and_without_answer(tmp_path: Path) -> None:
    (tmp_path / "Old_bridge.html").write_text(PAGE.format(text=TEXT), encoding="utf-8")
    (tmp_path / "index.html").write_text("<h1>none</h1>", encoding="utf-8")
    [(title, found)] = spans.explorer(tmp_path, "set")
    assert title == "Old bridge"
    assert [(e.question, shown(e)) for e in found] == [("When was it built?", ["in 1894"]), ("Who paid?", [])]
    assert found[0].passage.endswith("It's old.")


def test_a_judged_set_gives_the_questions_of_one_split_and_files_keep_them(tmp_path: Path) -> None:
    corpus = Corpus(
        "set", ["a", "b"], ["", ""], [TEXT, "none"], {"q": "when", "r": "who", "s": "where"},
        {"q": {"a": 1}, "r": {"b": 1}}, {"s": {"a": 1}}, {"q": ["1894"], "r": ["x"], "s": ["Aare"]},
    )  # fmt: skip
    assert [(e.question, shown(e)) for e in spans.judged(corpus, "train")] == [("when", ["1894"])]
    assert [(e.question, shown(e)) for e in spans.judged(corpus, "test")] == [("where", ["Aare"])]
    examples = [Example("q", "päß", ((0, 2), (1, 3)), "s"), Example("r", "", (), "t")]
    assert spans.write(tmp_path / "examples.gz", examples) == 2
    assert spans.read(tmp_path / "examples.gz") == examples


def test_a_passage_without_the_answer_is_similar_and_lacks_it() -> None:
    example = Example("When was the bridge built?", TEXT, ((24, 28),), "set")
    others = [TEXT, "The bridge was built of wood.", "A tower, built in 1894.", "Cheese."]
    for seed in range(20):
        [found] = spans.unanswered([example], others, random.Random(seed))
        assert found.passage in others[1::2]
        assert found.spans == ()
        assert found.source == "set-without"
    assert spans.unanswered([example], [TEXT], random.Random(0)) == []


def test_windows_and_titles_move_the_answer_with_them() -> None:
    example = Example("what", TEXT, spans.places(TEXT, ["two francs"]), "set")
    for seed, words in ((seed, words) for seed in range(10) for words in (1, 12, 100)):
        found = spans.titled(spans.window(example, random.Random(seed), words), "Bridges")
        assert shown(found) == ["two francs"]
        assert found.passage.startswith("Bridges\n")
    assert spans.window(example, random.Random(0), 1).passage == "A toll of two francs was paid until 1931."
    options = Example("what", "NAME\n\n" + "  -x  X. Y\n" * 8 + "  -z  Sleeps.", ((6, 8),), "set")
    assert spans.window(options, random.Random(0), 1).passage == "  -x  X. Y"
    nothing = spans.window(replace(example, spans=()), random.Random(1), 1)
    assert nothing.passage in TEXT
    assert nothing.spans == ()


def passage(*parts: tuple[str, str], context: str = "") -> Passage:
    text, places = "", []
    for kind, part in parts:
        places.append((kind, len(text), len(text) + len(part)))
        text += part + "\n"
    return Passage("set", context, text, tuple(places))


@pytest.mark.parametrize(
    ("given", "question", "answer"),
    [
        (passage(("sentence", "To list the files, run `ls -a`.")), "list the files", "run `ls -a`"),
        (passage(("heading", "# Reset your password"), ("code", "passwd --reset me")), "reset your password", "passwd"),
        (passage(("sentence", "  -r, --recursive\n        Copy directories with their content. Slow.")),
         "which option to copy directories", "-r, --recursive"),
        (passage(("sentence", "  -r, --recursive\n        Copy directories with their content. Slow.")),
         "what does -r do", "Copy directories with their content"),
        (passage(("columns", "| Name | Size |"), ("row", "| the moon | 3474 km |")), "size of the moon", "3474 km"),
        (passage(("setting", "timeout = 30 s")), "what is timeout set to", "30 s"),
        (passage(("sentence", "The limit of a name is 255 bytes.")), "limit of a name", "255 bytes"),
        (passage(("sentence", "You can show the log:"), ("command", "tail log")), "show the log", "tail log"),
        (passage(("sentence", "The pump stops because the tank is empty.")), "why", "because the tank is empty"),
    ],
)  # fmt: skip
def test_the_form_of_a_document_asks_questions(given: Passage, question: str, answer: str) -> None:
    given = replace(given, context="Guide > Part")
    found = [
        (e.question.lower(), shown(e)[0]) for seed in range(5) for e in forms.questions(given, random.Random(seed))
    ]
    assert any(question in asking and answer in answered for asking, answered in found), found


@pytest.mark.parametrize(
    "given",
    [
        passage(("heading", "## Description"), ("sentence", "This page tells about it.")),
        passage(("sentence", "This is a good idea.")),
        passage(("sentence", "  -v  Used with care.")),
    ],
)
def test_what_names_nothing_is_not_asked(given: Passage) -> None:
    assert forms.questions(given, random.Random(0)) == []


def test_no_article_of_a_test_question_is_in_the_examples(tmp_path: Path) -> None:
    pages, data = tmp_path / "pages", tmp_path / "set"
    pages.mkdir()
    for number in range(25):
        page = PAGE.format(text=f"Bridge {number}. {TEXT}").replace("Old_bridge", f"Bridge_{number}")
        (pages / f"{number:02}.html").write_text(page, encoding="utf-8")
    qrels = {split: [(f"q{n}", str(n), 1) for n in rows] for split, rows in (("train", (0, 1)), ("test", (2, 3)))}
    documents = [(str(n), f"Bridge {n}", f"Bridge {n}. {TEXT}") for n in range(4)]
    judged_set(data, documents, {f"q{n}": "when" for n in range(4)}, qrels, {f"q{n}": ["1894"] for n in range(4)})
    passage_rows = [["docs", "Guide", f"To list files {n}, run `ls -{n}`.", [["sentence", 0, 30]]] for n in range(9)]
    (tmp_path / "passages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in passage_rows))
    arguments = ["--explorer", str(pages), "--impossible", str(pages), "--data", str(data), "--out", str(tmp_path)]
    assert examples.main([*arguments, "--passages", str(tmp_path / "passages.jsonl")]) == 0
    train, held = (spans.read(tmp_path / f"{name}.gz") for name in ("train", "held"))
    assert {"squad-train", "squad-impossible", "set", "docs"} <= {example.source for example in train}
    assert not [e for e in train + held if re.search(r"Bridge [23]\b", e.passage)]
    bridges = [{e.passage.split("It spans")[0] for e in part if e.source == "squad-train"} for part in (train, held)]
    assert bridges[1]
    assert not bridges[0] & bridges[1]
