"""Gathering: every kind of source, from files made on the spot."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from edge.models.training.documents import Document, read
from edge.models.training.gather import KINDS, main

BODY = "The lake is deep and the river brings it cold water from the stones all the year."


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
    page = f"<title>Lakes</title><h1>Depth</h1><p>{BODY}</p>"
    put(root / "one.html", page)
    put(root / "below" / "two.html.gz", page, packed=True)
    for name in ("genindex.html", "search.html", "fr/one.html"):
        put(root / name, page)
    assert gathered("html", root) == [Document("domain", "Lakes", (("Depth", BODY),))] * 2


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
    rows = [{"_id": n, "title": "", "text": f"{n} {BODY}"} for n in "abc"]
    put(tmp_path / "corpus.jsonl", "\n".join(map(json.dumps, rows)))
    put(tmp_path / "queries.jsonl", "\n".join(json.dumps({"_id": f"q{n}", "text": n}) for n in "ab"))
    put(tmp_path / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore\nqa\ta\t1\n")
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
