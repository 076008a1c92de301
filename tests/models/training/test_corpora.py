"""Documents of training: read, marked up, gathered and judged."""

from __future__ import annotations

import gzip
import math
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from making.judged_set import judged_set

from edge.models.blending import retrieval_scores
from edge.models.training.corpora import Corpus, load
from edge.models.training.documents import Document, read, write
from edge.models.training.gather import KINDS, main
from edge.models.training.markup import manual, markdown, xml
from edge.models.training.measures import ndcg

DOCUMENTS = [
    Document("lakes", "Deep — water", (("Tiefe", "Grün & blue.\nA second line."), ("", "No heading."))),
    Document("words", "lamp", (("", "A thing that gives light."),), entry=True),
]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.xz"])
def test_documents_are_read_as_they_were_written(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"texts{suffix}"
    assert write(path, iter(DOCUMENTS)) == 2
    assert list(read(path)) == DOCUMENTS
    magic = {".gz": b"\x1f\x8b", ".xz": b"\xfd7zXZ"}.get(path.suffix, b"{")
    assert path.read_bytes().startswith(magic)


BODY = "The lake is deep and the river brings it cold water from the stones all the year."


def test_markdown_takes_its_title_from_the_first_heading_or_from_the_front_matter() -> None:
    assert markdown(f"# On lakes\n{BODY}\n\n## Depth\n{BODY}\n") == ("On lakes", [("On lakes", BODY), ("Depth", BODY)])
    assert markdown(f"On lakes\n========\n{BODY}\n")[0] == "On lakes"
    assert markdown(f'---\ntitle: "Named above"\n---\n## Depth\n{BODY}\n') == ("Named above", [("Depth", BODY)])
    assert markdown("") == ("", [])


def test_manual_pages_lose_their_macros_and_keep_their_words() -> None:
    source = r""".TH LAKE 1 "today"
.SH NAME
lake \- measure water
.SH SYNOPSIS
.B lake
[-d]
.SH "DESCRIPTION"
.PP
The \fBlake\fP command measures\&.
.\" a comment
Use \(aqdeep\(aq with
.BR river (1).
.SH "SEE ALSO"
river(1)
"""
    title, found = manual(source)
    assert title == "lake - measure water"
    assert found == [("Description", "The lake command measures. Use 'deep' with river (1).")]


def test_xml_reads_chapters_articles_and_glossaries() -> None:
    chapter = f"""<document xmlns="http://example.org/c"><title>Lakes</title><content><para>{BODY}
<math>x</math></para><section><title>Depth</title><para>{BODY}</para><table><para>no prose</para></table></section>
</content><glossary><definition><term>lake</term><meaning>standing <em>water</em></meaning></definition></glossary>
</document>"""
    assert xml(chapter) == ("Lakes", [("Lakes", BODY), ("Depth", BODY)], [("lake", "standing water")])
    article = f"""<article><front><article-title>On rivers</article-title><abstract><p>Short account.</p></abstract>
</front><body><sec><title>Results</title><p>{BODY}<xref>[1]</xref></p></sec></body></article>"""
    assert xml(article) == ("On rivers", [("Abstract", "Short account."), ("Results", BODY)], [])
    with pytest.raises(ElementTree.ParseError):
        xml("no xml")


def write_set(directory: Path, compressed: bool = True) -> Path:
    qrels = {
        "train": [("q0", "d0", 1), ("q1", "d1", 1), ("q1", "d2", 2), ("q2", "d3", 0)],
        "test": [("q3", "d2", 1), ("q3", "d4", 0)],
    }
    documents = [(f"d{n}", f"title {n}", f"text {n}") for n in range(6)]
    answers = {"q0": ["text", 3], "q1": {"final": "yes"}}
    judged_set(directory, documents, {f"q{n}": f"query {n}" for n in range(4)}, qrels, answers)
    if compressed:
        corpus = directory / "corpus.jsonl"
        (directory / "corpus.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes()))
        corpus.unlink()
    return directory


@pytest.mark.parametrize("compressed", [True, False])
def test_load_reads_documents_queries_and_positive_grades(tmp_path: Path, compressed: bool) -> None:
    corpus = load(write_set(tmp_path / "tiny", compressed))
    assert corpus.name == "tiny"
    assert corpus.passages()[2] == "title 2 text 2"
    assert corpus.train == {"q0": {"d0": 1}, "q1": {"d1": 1, "d2": 2}}
    assert corpus.test == {"q3": {"d2": 1}}
    assert corpus.answers == {"q0": ["text"]}


def test_training_part_has_no_document_judged_for_a_test_query(tmp_path: Path) -> None:
    part = load(write_set(tmp_path / "tiny")).without_test_documents()
    assert part.ids == ["d0", "d1", "d3", "d4", "d5"]
    assert part.train == {"q0": {"d0": 1}, "q1": {"d1": 1}}
    assert set(part.queries) == {"q0", "q1"}
    assert part.test == {}
    ids = [f"d{n}" for n in range(10)]
    parts = ["a"] * 5 + ["b"] * 5, ["text"] * 10, {"q": "query", "t": "test query"}
    corpus = Corpus("articles", ids, *parts, {"q": {"d0": 1}}, {"t": {"d7": 1}})  # split by article
    assert set(corpus.without_test_documents().titles) == {"a"}
    corpus = Corpus("both", ["d0", "d1"], ["", ""], ["x", "y"], {"q": "?"}, {"q": {"d0": 1}}, {"q": {"d1": 1}})
    assert corpus.without_test_documents().train == {}, "a query of both splits is not trained on"


def put(path: Path, text: str, packed: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


def gathered(kind: str, path: Path | str) -> list[Document]:
    return list(KINDS[kind]("domain", Path(path)))


def test_manual_pages_of_unpacked_packages_without_translations(tmp_path: Path) -> None:
    root = tmp_path / "search" / "de"  # names that must not matter above the folder
    page = f".SH NAME\nlake \\- measure\n.SH DESCRIPTION\n{BODY}\n"
    put(root / "pkg/usr/share/man/man1/lake.1.gz", page, packed=True)
    put(root / "pkg/usr/share/man/fr/man1/lake.1.gz", page, packed=True)
    assert gathered("man", root) == [Document("domain", "lake - measure", (("Description", BODY),))]


def test_pages_without_indexes_and_translations_wherever_the_folder_is(tmp_path: Path) -> None:
    root = tmp_path / "search" / "de"
    page = f"""<html><head><title>All &amp; lakes</title><style>p {{}}</style></head><body>
<nav><p>Home and other words to skip</p></nav><h1>Depth<a>¶</a></h1><p>{BODY}</p><p>Too short.</p>
<pre>code that nobody asks for here</pre><h2>Rivers</h2><ul><li>{BODY}</li></ul></body></html>"""
    put(root / "one.html", page)
    put(root / "below" / "two.html.gz", page, packed=True)
    for name in ("genindex.html", "search.html", "fr/one.html"):
        put(root / name, page)
    assert gathered("html", root) == [Document("domain", "All & lakes", (("Depth", BODY), ("Rivers", BODY)))] * 2


def test_package_descriptions_once_for_each_opening(tmp_path: Path) -> None:
    block = f"Package: {{}}\nDescription-md5: 1\nDescription-en: measures lakes\n {BODY}\n .\n More of it.\n"
    path = put(tmp_path / "t.txt", "\n\n".join(block.format(name) for name in ("lake", "lake-doc")))
    assert gathered("descriptions", path) == [
        Document("domain", "lake: measures lakes", (("", f"{BODY} More of it."),))
    ]


def test_dictionary_entries_are_found_by_their_index(tmp_path: Path) -> None:
    entries = [
        "00-database-info\nno entry at all, of whatever length it is\n",
        f"lake\n   {BODY}\n",
        f"lamp\n   {BODY}\n",
    ]
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    lines, start = [], 0
    for entry in entries:
        place, size = (digits[n // 64] + digits[n % 64] for n in (start, len(entry)))
        lines.append(f"{entry.splitlines()[0]}\t{place}\t{size}")
        start += len(entry)
    put(tmp_path / "d.index", "\n".join(lines))
    put(tmp_path / "d.dict.dz", "".join(entries), packed=True)
    expected = [Document("domain", term, (("", BODY.strip(" .")),), entry=True) for term in ("lake", "lamp")]
    assert gathered("dict", tmp_path / "d") == expected


@pytest.mark.skipif(shutil.which("git") is None, reason="reads a Git repository")
def test_a_repository_is_read_at_one_commit_below_one_folder(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q")
    put(tmp_path / "doc" / "one.md", f"# First\n{BODY}\n")
    put(
        tmp_path / "doc" / "book.cnxml",
        f"<document><title>Second</title><content><para>{BODY}</para></content></document>",
    )
    put(tmp_path / "doc" / "broken.xml", "<open>")
    put(tmp_path / "other.md", f"# Elsewhere\n{BODY}\n")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    commit = git("rev-parse", "HEAD")
    put(tmp_path / "doc" / "later.md", f"# Later\n{BODY}\n")
    git("add", ".")
    git("commit", "-q", "-m", "two")
    assert {d.title for d in gathered("git", f"{tmp_path}/.git!doc@{commit}")} == {"First", "Second"}
    assert {d.title for d in gathered("git", f"{tmp_path}/.git")} == {"First", "Second", "Later", "Elsewhere"}


def test_docstrings_of_a_folder_without_its_tests(tmp_path: Path) -> None:
    root = tmp_path / "test"  # a name that must not matter above the folder
    source = f'def deep(lake):\n    """Say how deep a lake is.\n\n    {BODY}\n    """\n'
    put(root / "lakes.py", source)
    put(root / "tests" / "lakes.py", source)
    assert gathered("python", root) == [Document("domain", "deep", (("Say how deep a lake is.", BODY),))]


def test_a_judged_set_gives_the_documents_that_training_may_see(tmp_path: Path) -> None:
    rows = [(n, "", f"{n} {BODY}") for n in "abc"]
    judged_set(tmp_path, rows, {f"q{n}": n for n in "ab"}, {"test": [("qa", "a", 1)]})
    assert gathered("judged", tmp_path) == []
    put(tmp_path / "qrels" / "train.tsv", "query-id\tcorpus-id\tscore\nqb\tb\t1\n")
    assert [d.sections[0][1][0] for d in gathered("judged", tmp_path)] == ["b", "c"]


def test_the_program_writes_whole_documents_up_to_the_limit_of_each_source(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        put(tmp_path / "pages" / f"{name}.html", f"<title>{name}</title><p>{BODY}</p>")
    sources = [f"html:{domain}:{tmp_path / 'pages'}" for domain in ("first", "second")]
    out = tmp_path / "texts.jsonl.gz"
    assert main(["--out", str(out), "--characters", str(len(BODY) + 1), *sources]) == 0
    assert [d.domain for d in read(out)] == ["first"] * 2 + ["second"] * 2


@pytest.mark.parametrize("source", ["html:domain", "nothing:domain:path", "html::path"])
def test_a_source_that_is_none_is_refused(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path / "out.jsonl"), source])
    assert ended.value.code == 2
    assert "is no KIND:DOMAIN:PATH" in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()


def test_ndcg_counts_what_retrieval_missed() -> None:
    grades = np.array([0.0, 1.0, 0.0])
    alone = float(ndcg(retrieval_scores(3), grades, np.array([1.0])))
    assert alone == pytest.approx(1 / math.log2(3))
    missed = float(ndcg(retrieval_scores(3), grades, np.array([1.0, 1.0])))
    assert missed == pytest.approx((1 / math.log2(3)) / (1 + 1 / math.log2(3)))
    grades = np.zeros(12)
    grades[10] = 1.0
    assert float(ndcg(retrieval_scores(12), grades, np.array([1.0]))) == 0.0, "it stops at ten"
