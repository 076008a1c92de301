"""Files cut short, with flipped bits, or with their parts exchanged: always a result or one sentence."""

from __future__ import annotations

import random
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.apps.documents.base import Chunk
from edge.apps.documents.extraction import Extractor
from edge.budget import MemoryBudget
from edge.errors import InputError

NAMES = (
    "plain.txt", "notes.md", "manual.rst", "program.py", "program.c", "table.csv", "data.json", "records.jsonl",
    "book.ipynb", "page.html", "paper.pdf", "letter.docx", "talk.pptx", "novel.epub",
    "events.ics", "people.vcf", "talk.srt", "chat.txt", "export.json", "slack.json", "paper.tex", "books.bib",
    "letter.rtf", "files.zip", "log.gz",
)  # fmt: skip


def outcome(extractor: Extractor, path: Path) -> int:
    """How many chunks a file has; 0 if it is refused. Anything but an `InputError` fails the test."""
    try:
        extracted = extractor.extract(path)
    except InputError as error:
        sentence = str(error)
        assert sentence
        assert "\n" not in sentence
        assert "took longer" not in sentence
        assert "crashed" not in sentence
        return 0
    for chunk in extracted.chunks:
        assert isinstance(chunk, Chunk)
        assert chunk.text.strip()
        assert 1 <= chunk.line_start <= chunk.line_end
        assert chunk.page is None or chunk.page >= 1
        chunk.text.encode("utf-8")
        chunk.context.encode("utf-8")
    return len(extracted.chunks)


@pytest.mark.parametrize("name", NAMES)
def test_cut_short(session_extractor: Extractor, samples: dict[str, bytes], tmp_path: Path, name: str) -> None:
    data = samples[name]
    path = tmp_path / name
    path.write_bytes(data)
    assert outcome(session_extractor, path)
    for length in sorted({1, 2, 10, *(len(data) * n // 12 for n in range(1, 12)), len(data) - 1}):
        path.write_bytes(data[:length])
        outcome(session_extractor, path)


@pytest.mark.parametrize("name", NAMES)
def test_flipped_bits(session_extractor: Extractor, samples: dict[str, bytes], tmp_path: Path, name: str) -> None:
    chance = random.Random(name)
    path = tmp_path / name
    for flips in (1, 1, 1, 1, 3, 3, 10, 10, 100):
        data = bytearray(samples[name])
        for _ in range(flips):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        outcome(session_extractor, path)


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_pieces_exchanged(
    session_extractor: Extractor, samples: dict[str, bytes], tmp_path: Path, data: st.DataObject
) -> None:
    """A piece of one file inside another, under the name of a third."""
    first, second = samples[data.draw(st.sampled_from(NAMES))], samples[data.draw(st.sampled_from(NAMES))]
    start, end = sorted(data.draw(st.integers(0, len(second))) for _ in range(2))
    at = data.draw(st.integers(0, len(first)))
    path = tmp_path / data.draw(st.sampled_from(NAMES))
    path.write_bytes(first[:at] + second[start:end] + first[at + data.draw(st.integers(0, 200)) :])
    outcome(session_extractor, path)


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(min_size=1, max_size=400), name=st.sampled_from(NAMES))
def test_any_bytes_under_any_name(session_extractor: Extractor, tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    outcome(session_extractor, path)


@pytest.mark.parametrize("name", ["a.docx", "a.html"])
def test_want_of_memory_is_not_called_damage(tmp_path: Path, name: str) -> None:
    """libxml2 reports it as a syntax error, and the worker may be far below its limit then."""
    path = tmp_path / name
    if name == "a.html":
        path.write_text("<p>word</p>" * 300_000)
    else:
        body = "".join("<w:p><w:r><w:t>word</w:t></w:r></w:p>" for _ in range(150_000))
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("word/document.xml", f'<w:document xmlns:w="w"><w:body>{body}</w:body></w:document>')
    for memory in range(40, 56, 4):
        with Extractor(
            budget=MemoryBudget(10**10), seconds=60, memory=memory * 10**6, most_memory=memory * 10**6
        ) as extractor, pytest.raises(InputError, match="of memory"):  # fmt: skip
            extractor.extract(path)
