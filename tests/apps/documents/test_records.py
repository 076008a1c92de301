"""Tables of records, and histories of browsers."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from odf import table as odf_table
from odf.opendocument import OpenDocumentSpreadsheet
from odf.text import P

from edge.apps.documents.base import DocumentBlocks, FoundFile, Reason, SkippedFile
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.json_files import NotJson, leaves
from edge.apps.documents.scanner import scan
from edge.budget import MemoryBudget
from edge.errors import InputError
from tests.apps.documents.conftest import Read


def shape(document: DocumentBlocks) -> list[tuple[Any, ...]]:
    return [(b.line_start, b.line_end, b.kind, b.text) for b in document.blocks]


# CSV


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_csv_rows_name_their_columns(read: Read, delimiter: str) -> None:
    text = (
        delimiter.join(("year", "level", "note"))
        + "\n"
        + delimiter.join(("1997", "8.2", '"high, but\nnot the; highest"'))
    )
    text += "\n\n" + delimiter.join(("2013", "", "x")) + "\n"
    assert shape(read("a.csv", text)) == [
        (1, 1, "columns", "year | level | note"),
        (2, 3, "row", "year: 1997\nlevel: 8.2\nnote: high, but not the; highest"),
        (5, 5, "row", "year: 2013\nnote: x"),
    ]


def test_csv_without_a_header(read: Read) -> None:
    assert shape(read("a.csv", "1997,8.2\n2013,8.8,extra\n")) == [
        (1, 1, "row", "1997\n8.2"),
        (2, 2, "row", "2013\n8.8\nextra"),
    ]


ABOVE = {
    "nothing": [],
    "a title": [["Quarterly stock report"]],
    "a title of its export": [["Report"], ["2025-01-31"], [], ["Exported by", "Ann"]],
    "pairs": [["Client", "Ann Reed"], ["Period", "May"], []],
    "a wide title": [["Stock", "of", "all shelves"], []],
}
TABLE = [["Product", "Shelf", "Count"], ["Lantern", "B7", "19"], ["Rope", "", "4"], ["Tent", "C2", "5"]]


@pytest.mark.parametrize("kind", ["csv", "xlsx", "ods"])
@pytest.mark.parametrize("above", ABOVE)
@pytest.mark.parametrize("rows", [2, 4])
def test_columns_have_the_names_of_their_header_whatever_is_above_it(
    read: Callable[[str, bytes], DocumentBlocks], kind: str, above: str, rows: int
) -> None:
    table = [*ABOVE[above], *TABLE[:rows]]
    buffer = io.BytesIO()
    if kind == "csv":
        buffer.write("\n".join(",".join(row) for row in table).encode())
    elif kind == "xlsx":
        book = openpyxl.Workbook()
        for row in table:
            book.active.append(row)
        book.save(buffer)
    else:
        sheet = odf_table.Table(name="Sheet")
        for row in table:
            line = odf_table.TableRow()
            for value in row:
                cell = odf_table.TableCell()
                cell.addElement(P(text=value))
                line.addElement(cell)
            sheet.addElement(line)
        document = OpenDocumentSpreadsheet()
        document.spreadsheet.addElement(sheet)
        document.save(buffer)
    blocks = list(read(f"a.{kind}", buffer.getvalue()).blocks)
    assert [block.text for block in blocks if block.kind == "columns"] == ["Product | Shelf | Count"]
    lantern = next(block for block in blocks if "Lantern" in block.text)
    assert (lantern.text, lantern.line_start) == ("Product: Lantern\nShelf: B7\nCount: 19", len(ABOVE[above]) + 2)
    assert all(": " not in block.text for block in blocks[: -rows + 1])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(st.text(st.sampled_from('ab ,;"\n1'), max_size=6), min_size=3, max_size=3), min_size=1, max_size=8
    )
)
def test_csv_lines_hold_for_any_quoting(read: Read, rows: list[list[str]]) -> None:
    assume(any(value.split() for value in rows[0]))  # with an empty row behind it, the first row may be a title
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([["first", "second", "third"], *rows])
    lines = buffer.getvalue().split("\n")
    blocks = list(read("a.csv", buffer.getvalue()).blocks)
    expected = [[" ".join(value.split()) for value in row] for row in rows]
    expected = [row for row in expected if any(row)]
    assert len(blocks) == len(expected) + 1
    for block, row in zip(blocks[1:], expected, strict=True):
        values = [line.partition(": ")[2] for line in block.text.split("\n")]
        assert values == [value for value in row if value]
        source = "\n".join(lines[block.line_start - 1 : block.line_end])
        (parsed,) = [r for r in csv.reader(io.StringIO(source)) if any("".join(r).split())]
        assert [" ".join(value.split()) for value in parsed] == row


# JSON


def walked(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], Any]]:
    """The naive twin: leaves of a parsed value."""
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in walked(item, (*path, key))]
    if isinstance(value, list):
        return [leaf for index, item in enumerate(value) for leaf in walked(item, (*path, index))]
    return [(path, value)]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('ab:{["\\\n', max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.sampled_from([None, 1]), st.booleans())
def test_leaves_are_those_of_the_standard_parser(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    if "\x7f" in text or re.search("[\x80-\x9f]", text):
        return  # read as spaces
    found = list(leaves(text))
    expected = walked(value)
    assert [leaf.path for leaf in found] == [path for path, _ in expected]
    lines = text.split("\n")
    for leaf, (path, item) in zip(found, expected, strict=True):
        if isinstance(item, str):
            assert re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", item) == leaf.value.replace("\n", " ").replace("\t", " ")
        else:
            assert json.loads(leaf.value) == item
        shown = json.dumps(item, ensure_ascii=ascii_only)
        assert shown in lines[leaf.line - 1]
        if path and isinstance(path[-1], str):
            assert json.dumps(path[-1], ensure_ascii=ascii_only) in lines[leaf.line - 1]


@given(st.text(st.sampled_from('{}[],:"\\ \nau0123dtrenflsx.-+'), max_size=40))
def test_what_the_standard_parser_refuses_is_refused(text: str) -> None:
    try:
        json.loads(text, strict=False)
        valid = True
    except ValueError:
        valid = False
    try:
        list(leaves(text))
        accepted = True
    except NotJson:
        accepted = False
    assert accepted == valid


def test_a_line_end_inside_a_string_counts() -> None:
    assert [(leaf.value, leaf.line) for leaf in leaves('{"a": "x\ny",\n"b": 1}')] == [("x\ny", 1), ("1", 3)]


def test_json_records_and_paths(read: Read, samples: dict[str, bytes]) -> None:
    document = read("a.json", samples["data.json"])
    assert shape(document) == [
        (3, 3, "row", "rivers[0].name: Elbe\nrivers[0].level: 8.8"),
        (4, 4, "row", "rivers[1].name: Oder"),
        (6, 6, "fields", "note: in été"),
    ]
    assert [block.path for block in document.blocks] == [("rivers",), ("rivers",), ()]
    document = read("b.json", '{"db": {"host": {"name": "a"}}, "tags": ["x"]}')
    assert [text for *_, text in shape(document)] == ["db.host.name: a", "tags[0]: x"]  # in one passage, later


def test_json_that_is_none_is_text(read: Read) -> None:
    assert shape(read("a.json", '// settings\n{"a": 1,}\n')) == [(1, 2, "lines", '// settings\n{"a": 1,}')]
    assert shape(read("a.json", "[" * 5000)) == [(1, 1, "prose", "[" * 5000)]


def test_json_lines(read: Read) -> None:
    assert shape(read("a.jsonl", '{"a": 1, "b": {"c": "x"}}\n\nnot json\n[1, 2]\n')) == [
        (1, 1, "row", "a: 1\nb.c: x"),
        (3, 3, "lines", "not json"),
        (4, 4, "row", "[0]: 1\n[1]: 2"),
    ]


# Notebooks


@pytest.mark.parametrize("indent", [1, None])
def test_notebook_cells_stand_on_the_lines_of_the_file(
    read: Read, samples: dict[str, bytes], indent: int | None
) -> None:
    text = json.dumps(json.loads(samples["book.ipynb"]), indent=indent)
    document = read("a.ipynb", text)
    lines = text.split("\n")
    assert document.title == "Rivers"
    assert [(b.kind, b.text, b.path) for b in document.blocks] == [
        ("heading", "# Rivers", ("Rivers",)),
        ("prose", "They flood in spring.", ("Rivers",)),
        ("code", 'def level(year):\n    return "8.2\\n"', ("Rivers", "level")),
        ("code", "level(1997)", ("Rivers",)),
    ]
    for block in document.blocks:
        assert block.lines is not None
        for line, number in zip(block.text.split("\n"), block.lines, strict=True):
            assert json.dumps(line)[1:-1] in lines[number - 1]


def test_notebook_of_format_three(read: Read) -> None:
    notebook = {"worksheets": [{"cells": [{"cell_type": "code", "input": ["x = 1\n", "y = 2"]}]}]}
    assert read("a.ipynb", json.dumps(notebook)).blocks[0].text == "x = 1\ny = 2"


@pytest.mark.parametrize("text", ["{", "[]", '{"cells": []}', '{"cells": {"a": 1}}', "plain"])
def test_what_is_no_notebook_is_said(read: Read, text: str) -> None:
    with pytest.raises(InputError, match="not a notebook"):
        read("a.ipynb", text)


SAILING = "Bowline and sheet bend (2026-03-01, https://knots.example/bowline)"
MICROS_1970, MICROS_1601 = 1_772_323_200_000_000, 13_416_796_800_000_000


def firefox(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE moz_places (id INTEGER PRIMARY KEY, url, title, last_visit_date)")
    db.execute("CREATE TABLE moz_bookmarks (fk, title, dateAdded)")
    rows = [("https://knots.example/bowline", "Bowline", MICROS_1970), ("place:sort=8", "Recent", 1)]
    rows += [("https://a.example/", None, 5), ("https://b.example/", "Marked only", None), (b"x", 7, "late")]
    db.executemany("INSERT INTO moz_places (url, title, last_visit_date) VALUES (?, ?, ?)", rows)
    db.execute("INSERT INTO moz_bookmarks VALUES (1, 'Bowline and sheet bend', 7)")
    db.commit()
    db.close()


def chrome(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE urls (id INTEGER PRIMARY KEY, url, title, last_visit_time)")
    row = ("https://knots.example/bowline", "Bowline and sheet bend", MICROS_1601)
    db.execute("INSERT INTO urls (url, title, last_visit_time) VALUES (?, ?, ?)", row)
    db.commit()
    db.close()


def bookmarks(path: Path) -> None:
    page = {"type": "url", "name": "Bowline and sheet bend", "url": "https://knots.example/bowline"}
    folder = {"children": [{"name": "Sailing", "children": [{**page, "date_added": str(MICROS_1601)}]}, 7, None]}
    path.write_text(json.dumps({"checksum": "0a", "roots": {"bookmark_bar": folder, "synced": "x"}}, indent=3))


FILES = {"places.sqlite": firefox, "History": chrome, "Bookmarks": bookmarks}


@pytest.mark.parametrize("name", FILES)
def test_pages_have_their_title_date_and_address(tmp_path: Path, name: str) -> None:
    FILES[name](tmp_path / name)
    with Extractor(budget=MemoryBudget(10**11)) as extractor:
        found = extractor.extract(tmp_path / name)
    assert found.kind == "history"
    lines = "\n".join(chunk.text for chunk in found.chunks).split("\n")
    assert SAILING in lines
    assert lines == [SAILING] if name != "places.sqlite" else ["Marked only (https://b.example/)", SAILING]


@pytest.mark.parametrize("name", FILES)
def test_only_a_person_that_names_the_file_has_it_read(tmp_path: Path, name: str) -> None:
    FILES[name](tmp_path / name)
    (left,) = [found for found in scan([tmp_path]) if found.path.name == name]
    assert isinstance(left, SkippedFile)
    assert left.reason == Reason.SECRET
    (named,) = scan([tmp_path / name])
    assert isinstance(named, FoundFile)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("History", b"SQLite format 3\0" + b"\xff" * 5000, "a damaged browser history"),
        ("Bookmarks", b'{"checksum": "0a", "roots": [', "damaged bookmarks"),
        ("Bookmarks", b'{"checksum": "0a", "roots": {}}', "the file shows no text"),
    ],
)
def test_a_damaged_one_is_refused_in_a_sentence(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    with Extractor(budget=MemoryBudget(10**11)) as extractor, pytest.raises(InputError, match=said):
        extractor.extract(tmp_path / name)
