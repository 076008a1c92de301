"""The benchmark of questions about public manuals: the set, the folder of documents, and the counts."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest
from naive.program import output_of

from bench.command import bench
from bench.manuals import QUESTIONS, SOURCES, make_documents
from edge.errors import InputError
from edge.models.registry import DEFAULT_RERANKER

SET = [json.loads(line) for line in QUESTIONS.read_text("utf-8").splitlines()]


def test_every_answer_is_in_a_file_of_a_source() -> None:
    sources = [line.split("\t") for line in SOURCES.read_text("utf-8").splitlines()]
    for each in SET:
        if each["answers"]:
            folder, _, path = each["file"].partition("/")
            patterns = [one for name, _, _, found in sources if name == folder for one in found.split()]
            assert any(fnmatch(path, pattern.replace(".gz", ".txt")) for pattern in patterns), each


@pytest.mark.skipif(not (shutil.which("dpkg-deb") and shutil.which("man")), reason="makes and reads a Debian package")
def test_documents_are_made_of_a_clone_and_a_package(tmp_path: Path) -> None:
    clone = tmp_path / "sources" / "own+river"
    (clone / "doc" / "deep").mkdir(parents=True)
    (clone / "doc" / "ice.md").write_text("Ice floats.\n")
    (clone / "doc" / "deep" / "spring.md").write_text("It floods in spring.\n")
    (clone / "doc" / "faq.md").write_text("Left out.\n")
    (clone / "other.md").write_text("Outside.\n")
    git = ["git", "-C", str(clone), "-c", "user.name=Anna", "-c", "user.email=anna@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "River"]):
        subprocess.run([*git, *command], check=True)
    package = tmp_path / "package"
    page = package / "usr" / "share" / "man" / "man1" / "flow.1.gz"
    page.parent.mkdir(parents=True)
    page.write_bytes(gzip.compress(b'.TH FLOW 1\n.SH OPTIONS\n.TP\n.BR \\-f ", " \\-\\-fast\nFlow faster.\n'))
    (package / "DEBIAN").mkdir()
    (package / "DEBIAN" / "control").write_text(
        "Package: flow\nVersion: 1.0-1\nArchitecture: all\nMaintainer: Anna <anna@example.org>\nDescription: flows\n"
    )
    made = ["dpkg-deb", "--root-owner-group", "--build", str(package), str(clone.parent)]
    subprocess.run(made, check=True, capture_output=True, env=os.environ | {"LC_ALL": "C"})
    listed = tmp_path / "sources.tsv"
    listed.write_text("river\town/river@HEAD\tdoc\t[!f]*.md\nflow\tflow=1.0-1\tusr/share/man/man1\tflow.1.gz\n")
    documents = tmp_path / "documents"
    make_documents(clone.parent, documents, listed)
    found = {path.relative_to(documents).as_posix(): path.read_text() for path in documents.rglob("*.*")}
    assert found.keys() == {"river/ice.md", "river/deep/spring.md", "flow/flow.1.txt"}
    assert found["river/ice.md"] == "Ice floats.\n"
    assert "-f, --fast\n" in found["flow/flow.1.txt"]
    listed.write_text("river\town/lake@HEAD\tdoc\t*.md\n")
    with pytest.raises(InputError, match="own/lake@HEAD cannot be read"):
        make_documents(clone.parent, documents, listed)


@pytest.mark.usefixtures("tiny_settings")
def test_questions_are_asked_and_their_answers_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_RERANKER", DEFAULT_RERANKER)  # which has a reader
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "river.md").write_text("# Ombra\n\nThe river Ombra floods in spring. Ice floats.\n")
    questions = [
        {
            "kind": "prose", "question": "When do I need boots?", "plain": "When does the Ombra flood?",
            "file": "river.md", "answers": ["in spring"],
        },
        {"kind": "elsewhere", "question": "Who painted the ceiling?", "file": None, "answers": []},
    ]  # fmt: skip
    file = tmp_path / "questions.jsonl"
    arguments = ["manuals", "--documents", str(documents), "--questions", str(file), "--memory", "8GB", "--json"]
    file.write_text("\n".join(map(json.dumps, questions)))
    report = json.loads(output_of(bench, *arguments, "--plain"))
    assert [each["question"] for each in report["questions"]] == [
        "When does the Ombra flood?",
        "Who painted the ceiling?",
    ]
    asked, other = report["questions"]
    assert (asked["first"], asked["three"], asked["hit"], asked["read"], asked["right"]) == (True,) * 5
    assert asked["cell"] in ("right", "nearest right")
    assert other["cell"].startswith("none ")
    counted = {kind: sum(row[cell] for cell in ("right", "nearest right")) for kind, row in report["kinds"].items()}
    assert counted == {"prose": 1, "elsewhere": 0, "all": 1}
    shown = [least for least, row in report["curve"].items() if row["right"]]
    assert shown == [least for least in report["curve"] if float(least) <= asked["probability"]]
    questions[0]["answers"] = ["in autumn"]
    file.write_text("\n".join(map(json.dumps, questions)))
    with pytest.raises(InputError, match=r"river\.md holds none of \['in autumn'\]"):
        output_of(bench, *arguments)
