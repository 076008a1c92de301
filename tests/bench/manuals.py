"""`manuals`: asks a hundred questions about public documents that no training saw, and judges what is shown.

`manuals_set/sources.tsv` says where the documents are from, which are never committed: the name of a folder, a
repository with its commit or a Debian package with its version, a folder inside it, and patterns of names below that.
`questions.jsonl` has a line of JSON for each question: `kind`, `question`, `file` (below the folder of documents), and
`answers`, phrases of which a right quotation holds one; a question without an answer has no phrase. Answers were
written down first, and then the questions, in the words of somebody who has the problem and has not read the document.
`plain` is the same question in the words of the trade.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import statistics
import subprocess
import tarfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from bench.answer_odds import CELLS, cell, holds, reading_of
from bench.figures import Column, Figure, tabulate
from bench.options import File, Folder, NewFolder, Output, benchmark
from bench.process import say
from edge.apps.assistant.answer import CLOSEST
from edge.apps.assistant.assistant import Assistant
from edge.apps.assistant.question import judged_question
from edge.apps.assistant.reading import PassageReader
from edge.apps.collection.collection import Collection, Together
from edge.config import Config
from edge.errors import InputError

FOLDER = Path(__file__).parent / "manuals_set"
SOURCES, QUESTIONS = FOLDER / "sources.tsv", FOLDER / "questions.jsonl"
_THRESHOLDS = (0.5, 0.6, 0.67, 0.75, 0.85, 0.9)
_HITS = 10
_SHOWN = ("right", "wrong", "none shown")
_LARGEST = 1 << 24
"""Bytes of a document's text."""


@benchmark
def manuals(
    *,
    documents: Annotated[NewFolder, "The documents; made from the sources if it is empty."],
    sources: Annotated[
        Folder | None, "Has a bare clone of each repository, as owner+name, and the packages as .deb files."
    ] = None,
    questions: Annotated[File, "The questions."] = QUESTIONS,
    plain: Annotated[bool, "Ask in the words of the trade."] = False,
    memory: Annotated[str, "Limit of the process."] = "500MB",
    output: Output,
) -> None:
    """Ask questions about public manuals, handbooks and mails without a language model, and judge the answers."""
    if sources is not None:
        make_documents(sources, documents)
    asked = [json.loads(line) for line in questions.read_text("utf-8").splitlines()]
    if plain:
        asked = [each | {"question": each.get("plain", each["question"])} for each in asked]
    with TemporaryDirectory() as place, Collection(place, config=Config.load(flags={"memory": memory})) as collection:
        say(f"indexing {documents}")
        collection.index([documents])
        check(asked, collection, documents)
        with Assistant(collection, llm="extractive") as assistant:
            rows = [answered(each, assistant, collection, documents) for each in asked]
    kinds = dict.fromkeys(row["kind"] for row in rows)
    summary = {kind: summed([row for row in rows if row["kind"] == kind]) for kind in kinds} | {"all": summed(rows)}
    result = {"kinds": summary, "curve": curve(rows), "questions": rows}
    output.put(result, figures(result), f"{len(rows)} questions; {memory} of memory")


def make_documents(sources: Path, documents: Path, listed: Path = SOURCES) -> None:
    """Makes the folder of documents from clones and packages. Raises `InputError` if one of them is missing."""
    for line in listed.read_text("utf-8").splitlines():
        name, origin, inside, patterns = line.split("\t")
        source, _, version = origin.replace("=", "@").partition("@")
        if "=" in origin:
            packages = [str(path) for path in sources.glob(f"{source}_{version}_*.deb")]
            command = ["dpkg-deb", "--fsys-tarfile", *packages[:1]]
        else:
            command = ["git", "-C", str(sources / source.replace("/", "+")), "archive", f"{version}:{inside}"]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            raise InputError(f"{origin} cannot be read in {sources}: {done.stderr.decode('utf-8', 'replace').strip()}")
        start = f"./{inside}/" if "=" in origin else ""
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            for member in archive:
                path = member.name.removeprefix(start)
                packed = archive.extractfile(member) if member.name.startswith(start) else None
                if packed is not None and any(fnmatch(path, pattern) for pattern in patterns.split()):
                    is_page = path.endswith(".gz")
                    target = documents / name / (path.replace(".gz", ".txt") if is_page else path)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(_page(packed.read()) if is_page else packed.read())


def _page(packed: bytes) -> bytes:
    """A manual page as people see it."""
    command = ["man", "--local-file", "--no-hyphenation", "--no-justification", "-"]
    environment = os.environ | {"LC_ALL": "C", "MANWIDTH": "80"}
    return subprocess.run(
        command, input=gzip.decompress(packed), env=environment, stdout=subprocess.PIPE, check=True
    ).stdout


def check(asked: Iterable[Mapping[str, Any]], collection: Collection, documents: Path) -> None:
    """Raises `InputError` if a file does not hold an answer that a question has in it."""
    for each in asked:
        if each["answers"]:
            (read,) = Together({"": collection}).read([str(documents.resolve() / each["file"])], max_bytes=_LARGEST)
            if not right(read.text, each):
                raise InputError(f"{each['file']} holds none of {each['answers']}: {each['question']}")


def right(text: str, question: Mapping[str, Any]) -> bool:
    return any(holds(text, phrase) for phrase in question["answers"])


def answered(
    question: Mapping[str, Any], assistant: Assistant, collection: Collection, documents: Path
) -> dict[str, Any]:
    """What is shown for a question, and how far its answer came: into the hits, and into the passages read."""
    started = time.process_time()
    answer = assistant.ask(question["question"])
    seconds = time.process_time() - started
    judged = judged_question(question["question"])
    hits = collection.search(judged, _HITS, pool=assistant.options.pool)
    passages = [hit for each in answer.rounds for hit in each.passages] or hits[: assistant.options.read]
    reading = reading_of(PassageReader(collection), judged, passages)
    files = [Path(hit.path).relative_to(documents.resolve()).as_posix() for hit in hits]
    voice = "refused" if not answer.found else "nearest" if answer.uncertain else "shown"
    shown = answer.text.replace(CLOSEST, "").strip() if answer.found else ""
    return {
        **question,
        "cell": cell(bool(question["answers"]), voice, right(shown, question)),
        "shown": shown, "words": len(shown.split()), "probability": answer.probability or 0.0, "span": answer.span,
        "right": right(shown, question), "seconds": seconds, "files": files,
        "first": question["file"] in files[:1], "three": question["file"] in files[:3],
        "hit": any(right(hit.text, question) for hit in hits),
        "read": any(right(passages[number].text, question) for number in {each.passage for each in reading.answers}),
    }  # fmt: skip


def summed(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The figures of some questions."""
    found = Counter(row["cell"] for row in rows)
    counts = {name: float(found[name]) for name in CELLS}
    counts |= {name: float(sum(row[name] for row in rows)) for name in _FOUND}
    words = [row["words"] for row in rows if row["words"]]
    medians = {"words": statistics.median(words)} if words else {}
    return counts | medians | {"seconds": statistics.median(row["seconds"] for row in rows)}


def curve(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """What would be shown as the answer if each of the thresholds held."""
    cells = [(row["probability"], cell(bool(row["answers"]), "shown", row["right"])) for row in rows]
    return {
        str(least): {name: float(sum(chance >= least and name == found for chance, found in cells)) for name in _SHOWN}
        for least in _THRESHOLDS
    }


_FOUND = {
    "first": Column("right file first"), "three": Column("right file in three"),
    "hit": Column(f"answer in {_HITS} hits"), "read": Column("answer in passages read"),
}  # fmt: skip


def figures(result: Mapping[str, Any]) -> Iterator[Figure]:
    """The figures of a stored run."""
    yield from tabulate(result["kinds"], CELLS | {"words": Column("words"), "seconds": Column("time", "s")}, "answers")
    yield from tabulate(result["kinds"], _FOUND, "found")
    yield from tabulate(result["curve"], {name: CELLS[name] for name in _SHOWN}, "threshold")
