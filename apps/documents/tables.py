"""Tables as blocks, CSV and TSV, and XLSX: each row becomes lines `column: value`. A sheet of an XLSX file is a page,
and lines are its rows. Its parts are read as streams (a quarter of openpyxl's memory and time), and formulas as their
last values."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from functools import lru_cache
from itertools import chain, islice, pairwise
from typing import Any

from edge.apps.documents.archive import Archive, attribute, description, drawings, local, paragraphs
from edge.apps.documents.base import MAX_TEXT_CHARS, Block, DocumentBlocks
from edge.apps.documents.decoding import clean
from edge.apps.documents.opened import OpenedFile, too_much_text
from edge.errors import InputError

BUILT_IN = {
    "1": "0", "2": "0.00", "3": "#,##0", "4": "#,##0.00", "9": "0%", "10": "0.00%", "11": "0.00E+00",
    "37": "#,##0 ;(#,##0)", "38": "#,##0 ;(#,##0)", "39": "#,##0.00;(#,##0.00)", "40": "#,##0.00;(#,##0.00)",
    "48": "##0.0E+0",
}  # fmt: skip
"""Formats without a code in the file, except those of dates."""

_LITERAL = r"\"(?:[^\"]*)\"|\\."
_SECTIONS = re.compile(rf"((?:{_LITERAL}|[^;])*);?")
_TOKEN = re.compile(
    rf"(?P<literal>{_LITERAL})|_.|\*.|\[\$(?P<currency>[^\]-]*)[^\]]*\]|\[[^\]]*\]"
    r"|(?P<digits>[0#?][0#?,]*(?:\.[0#?]*)?|\.[0#?]+)|(?P<general>General)|(?P<other>.)",
    re.DOTALL,
)
_PLAIN = re.compile(r"-?(?:[0-9]{1,30}|(?:0|[1-9][0-9]{0,9})\.[0-9]{0,3}[1-9])")
_LONGEST_CODE = 255  # Characters of the longest format that programs take; `_TOKEN` is slow on longer ones.
_MOST_DIGITS = 16  # Digits before the point of the largest number that is shown by its format.


def shown(value: str, code: str) -> str:
    """A number as a format shows it. What no format of this kind means is shown in plain form.

    Args:
        value: as stored, such as `0.075` or `1.5E-2`.
        code: the format, such as `0.0%`; empty for none. Not one of dates.

    >>> shown("0.075", "0.0%"), shown("42", "00000"), shown("-1234.5", "[$€-407]#,##0.00;[Red]-[$€]#,##0.00")
    ('7.5%', '00042', '-€1,234.50')
    """
    try:
        if not code or len(code) > _LONGEST_CODE:
            return _plain(value)
        number = Decimal(value)
        if not number.is_finite() or number.adjusted() >= _MOST_DIGITS:
            return _plain(value)
        return _formatted(number, value, code)
    except (InvalidOperation, ValueError):  # not a number, or a format of absurd length
        return value


def _formatted(number: Decimal, value: str, code: str) -> str:
    sections = _sections(code)
    tokens = sections[0]
    if number < 0 and len(sections) > 1:
        tokens, number = sections[1], -number
    elif not number and len(sections) > 2:
        tokens = sections[2]
    runs = [token["digits"] for token in tokens if token["digits"]]
    letters = {token["other"] for token in tokens if token["other"]}
    if letters & set("Ee/@") or any(token["general"] for token in tokens):
        return _plain(value)
    number *= 100 ** sum(token["other"] == "%" for token in tokens)
    if len(runs) > 1 and all(set(run) == {"0"} for run in runs):  # a code in groups: 000-00-0000
        digits = str(abs(number).quantize(Decimal(1), ROUND_HALF_UP)).zfill(sum(map(len, runs)))
        cuts = [len(digits) - sum(map(len, runs[at:])) for at in range(1, len(runs))]
        filled = iter([digits[start:end] for start, end in pairwise([0, *cuts, len(digits)])])
    elif len(runs) > 1:
        return _plain(value)
    else:
        filled = iter([_digits(abs(number), run) for run in runs])
    pieces = []
    for token in tokens:
        if token["digits"]:
            pieces.append(next(filled))
        elif token["literal"]:
            pieces.append(token["literal"].strip('"').removeprefix("\\"))
        else:
            pieces.append(token["currency"] or token["other"] or "")
    text = " ".join("".join(pieces).split())
    return f"-{text}" if number < 0 and any(digit in text for digit in "123456789") else text


@lru_cache(64)
def _sections(code: str) -> list[list[re.Match[str]]]:
    """The tokens of each section: for all numbers, or for positive ones, negative ones and zero."""
    return [list(_TOKEN.finditer(section)) for section in _SECTIONS.findall(code)[:-1]]


def _plain(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else f"{float(value):.15g}"


def _digits(number: Decimal, run: str) -> str:
    whole, _, decimals = run.partition(".")
    scaled = whole.rstrip(",") if not decimals else whole
    number = number.scaleb(-3 * (len(whole) - len(scaled)))
    rounded = number.quantize(Decimal(1).scaleb(-len(decimals)), ROUND_HALF_UP)
    before, _, behind = f"{rounded:f}".partition(".")
    while behind and behind[-1] == "0" and decimals[len(behind) - 1] != "0":
        behind = behind[:-1]
    if "," in scaled:
        before = f"{int(before):,}"
    return f"{before.zfill(scaled.count('0'))}{'.' if behind else ''}{behind}"


LONGEST_MERGED = 200
"""Characters of the longest merged value that other rows repeat. Cells for layout have more."""

MOST_COLUMNS = 16_384
"""As many as a sheet of Excel has."""

_HEADER_ROWS = 20

Row = tuple[int, int, Sequence[str]]
"""First and last line of a row in its file, and its values."""


class _Spanned(str):
    """The value of a merged cell in the columns behind its first."""


def _is_header(values: Sequence[str], others: Sequence[Row]) -> bool:
    """Short texts and no numbers, of which none that occurs twice is a value in one of the `others`."""
    names = Counter(value for value in values if value)
    repeated = {name for name, count in names.items() if count > 1}
    return (
        len(names) > 1
        and all(len(name) <= 80 and not name.replace(".", "").replace("-", "").isdigit() for name in names)
        and not (repeated and any(repeated.intersection(row) for _, _, row in others))
    )


def _header_at(rows: Sequence[Row]) -> int | None:
    """The row that names the columns of a table: the first that may, if possible with as many values as most rows and
    without an empty row behind it; None if there is none."""
    counts = [sum(map(bool, values)) for _, _, values in rows]
    usual = max(set(counts), key=lambda count: (counts.count(count), count), default=0)
    possible = [at for at, (_, _, values) in enumerate(rows) if _is_header(values, [*rows[:at], *rows[at + 1 :]])]
    found = [at for at in possible if counts[at] >= usual] or possible
    # Names that stand for several columns each may have the names of these in the next row.
    found = [at for at in found if at + 1 not in possible or not any(isinstance(v, _Spanned) for v in rows[at][2])]
    for at in found:
        if at + 1 < len(rows) and rows[at + 1][0] == rows[at][1] + 1:
            return at
    return found[0] if found else None


def _column_names(rows: Sequence[Row], at: int) -> list[str]:
    """The names of the columns. A value above that several share belongs to them, and equal ones are numbered."""
    above = rows[at - 1][2] if at and rows[at - 1][1] + 1 == rows[at][0] else ()
    names: list[str] = []
    for column, name in enumerate(rows[at][2]):
        group = above[column] if column < len(above) else ""
        if name and group not in ("", name) and above.count(group) > 1:
            name = f"{group} {name}"
        names.append(name)
    seen: Counter[str] = Counter()
    repeated = {name for name, count in Counter(names).items() if count > 1}
    for column, name in enumerate(names):
        seen[name] += 1
        if name and name in repeated:
            names[column] = f"{name} {seen[name]}"
    return names


def _named(header: Sequence[str], column: int, value: str) -> str:
    if not header:
        return value
    name = header[column] if column < len(header) and header[column] else f"column {column + 1}"
    return f"{name}: {value}"


def row_blocks(rows: Iterable[Row], name: str = "", page: int | None = None) -> Iterator[Block]:
    rows = iter(rows)
    first = list(islice(rows, _HEADER_ROWS))
    at = _header_at(first)
    header: Sequence[str] = ()
    path = (name,) if name else ()
    for number, (begin, end, values) in enumerate(chain(first, rows)):
        if len(values) > MOST_COLUMNS:
            raise InputError(f"a row of {len(values):,} columns; {MOST_COLUMNS:,} is the most that is read")
        if number == at:
            header = _column_names(first, at)
            shown = " | ".join(value for value in values if value and not isinstance(value, _Spanned))
            yield Block(shown, begin, end, page, "columns", path, (begin,))
            continue
        text = [
            _named(header, column, value)
            for column, value in enumerate(values)
            if value and (not isinstance(value, _Spanned) or (column < len(header) and header[column]))
        ]
        yield Block("\n".join(text), begin, end, page, "row", path, (begin,) * len(text))


_DELIMITERS = (",", "\t", ";", "|")
_SAMPLE_LINES = 50
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def extract(file: OpenedFile) -> DocumentBlocks:
    csv.field_size_limit(2**31 - 1)
    text = file.text()
    sample = [*islice(_lines(text, []), _SAMPLE_LINES)]
    delimiter = _delimiter(sample, "\t" if file.suffix in (".tsv", ".tab") else ",")
    return DocumentBlocks("", row_blocks(_rows(text, delimiter)))


def _lines(text: str, row: list[str]) -> Iterator[str]:
    """The lines of a text, also appended to `row`. A list of all would take ten times the text's memory."""
    for match in _LINE.finditer(text):
        row.append(match[0])
        yield match[0]


def _delimiter(sample: Sequence[str], usual: str) -> str:
    """The one that splits most of the first rows into an equal number of columns, at least two; the usual one wins
    ties."""

    def agreement(delimiter: str) -> float:
        widths = [len(row) for row in csv.reader(sample, delimiter=delimiter) if row]
        common = max(set(widths), key=widths.count, default=1)
        return widths.count(common) / len(widths) if common > 1 else 0.0

    return max(sorted(_DELIMITERS, key=lambda each: each != usual), key=agreement)


def _rows(text: str, delimiter: str) -> Iterator[Row]:
    before = 0
    written: list[str] = []
    reader = csv.reader(_lines(text, written), delimiter=delimiter)
    try:
        for row in reader:
            first, before = before + 1, reader.line_num
            last, blank = before, next((at for at, line in enumerate(written[:-1]) if line.strip()), None)
            written.clear()
            values = [" ".join(clean(value).split()) for value in row]
            if any(values):
                yield last if blank is None else first + blank, last, values
    except csv.Error as error:
        raise InputError(f"line {reader.line_num}: not a table of values ({error})") from error


_DATES = frozenset([*range(14, 23), *range(27, 37), 45, 46, 47, *range(50, 59)])
"""Built-in formats of dates and times (ECMA-376, part 1, 18.8.30)."""

_DATE_CODE = re.compile(r"[ymdhs]", re.IGNORECASE)
_LITERAL_FORMAT = re.compile(r"\"[^\"]*\"|\\.|\[[^\]]*\]|_.|\*.")
_CELL = re.compile(r"([A-Z]{1,3})([0-9]{1,7})")
_EPOCH, _EPOCH_1904 = datetime(1899, 12, 30), datetime(1904, 1, 1)
_MOST_DAYS = 2_958_466


def extract_xlsx(file: OpenedFile) -> DocumentBlocks:
    with Archive(file.stream) as archive:
        main = archive.related("", "officeDocument") or "xl/workbook.xml"
        workbook = archive.xml(main)
        relations = archive.relations(main)
        reader = _SheetReader(archive, main, workbook)
        blocks: list[Block] = []
        damaged: list[str] = []
        sheets = list(workbook.iter("{*}sheet"))
        for page, sheet in enumerate(sheets, 1):
            kind, part = relations.get(attribute(sheet, "id") or "", ("", ""))
            if kind != "worksheet" or part not in archive.names:
                continue
            name = " ".join(clean(sheet.get("name", "")).split())
            place = page if len(sheets) > 1 else None
            blocks += row_blocks(reader.rows(part), name, place)
            try:
                for row, text in _beside(archive, part):
                    blocks.append(Block.of([(text, row)], "lines", (name,), place))
            except InputError:
                damaged.append(name)
        title = archive.title()
    warning = f"sheets with a drawing or comments that cannot be read: {', '.join(damaged)}" if damaged else ""
    return DocumentBlocks(title, blocks, warning=warning)


def _beside(archive: Archive, sheet: str) -> Iterator[tuple[int, str]]:
    for kind, part in archive.relations(sheet).values():
        if part not in archive.names:
            continue
        if kind in ("comments", "threadedComment"):
            for comment in archive.xml(part).iter("{*}comment", "{*}threadedComment"):
                place = comment.get("ref", "")
                cell = _CELL.fullmatch(place)
                text = " ".join(clean("".join(comment.itertext())).split())
                if text and not text.startswith("[Threaded comment]"):
                    yield int(cell[2]) if cell else 1, f"{place}: {text}"
        elif kind == "drawing":
            relations = archive.relations(part)
            for anchor in archive.xml(part):
                row = anchor.findtext("{*}from/{*}row", "0")
                named = (name for each in anchor.iter("{*}chart", "{*}relIds") for name in each.attrib.values())
                shown = drawings(archive, dict.fromkeys(relations[name] for name in named if name in relations))
                for text in filter(None, (description(anchor), *paragraphs(anchor), *shown)):
                    yield int(row) + 1 if row.isdecimal() and len(row) < 8 else 1, text


class _SheetReader:
    def __init__(self, archive: Archive, main: str, workbook: Any) -> None:
        self._archive = archive
        self._chars = 0
        properties = next(workbook.iter("{*}workbookPr"), None)
        is_1904 = properties is not None and properties.get("date1904") in ("1", "true")
        self._epoch = _EPOCH_1904 if is_1904 else _EPOCH
        strings, styles = archive.related(main, "sharedStrings"), archive.related(main, "styles")
        self._strings = self._shared(strings) if strings in archive.names else []
        self._formats = _formats(archive.xml(styles)) if styles in archive.names else {}

    def rows(self, part: str) -> Iterator[Row]:
        number = 0
        merged = _MergedCells(self._archive.matches(part, _MERGED))
        for row in self._archive.elements(part, "row"):
            given = row.get("r", "")
            number = int(given) if given.isdecimal() and len(given) < 9 else number + 1
            values: dict[int, str] = {}
            column = 0
            cells = row.tag[:-3] + "c"
            for cell in row:
                if cell.tag != cells:
                    continue
                letters = cell.get("r", "").rstrip("0123456789")
                column = _column(letters) if letters else column + 1
                if text := self._value(cell):
                    values[column] = text
            merged.fill(number, values)
            self._chars += sum(map(len, values.values()))
            if self._chars > MAX_TEXT_CHARS:
                raise too_much_text()
            if values:
                yield number, number, [values.get(i, "") for i in range(1, max(values) + 1)]

    def _value(self, cell: Any) -> str:
        """One line. Numbers are as the sheet shows them, dates in ISO form."""
        kind = cell.get("t", "n")
        child = cell[0] if len(cell) == 1 else next((each for each in cell if each.tag[-1] == "v"), None)
        value: str = "" if child is None or child.tag[-1] != "v" else child.text or ""
        if kind == "n" and value:
            code = self._formats.get(cell.get("s", "0"), "")
            return value if code == "" and _PLAIN.fullmatch(value) else _line(self._number(value, code))
        if kind == "s":
            return self._strings[int(value)] if value.isdecimal() and int(value) < len(self._strings) else ""
        if kind == "inlineStr":
            return _line(_cell_text(cell))
        if kind == "b":
            return "true" if value == "1" else "false"
        return "" if kind == "e" else _line(value)

    def _number(self, value: str, code: str | None) -> str:
        if code is not None:
            return shown(value, code)
        try:
            number = float(value)
        except ValueError:
            return value
        if not 0 <= number < _MOST_DAYS:
            return value
        moment = self._epoch + timedelta(seconds=round(number * 86_400))
        if number < 1:
            return moment.strftime("%H:%M:%S")
        return moment.date().isoformat() if moment.time().isoformat() == "00:00:00" else moment.isoformat(" ")

    def _shared(self, part: str) -> list[str]:
        found: list[str] = []
        for item in self._archive.elements(part, "si"):
            found.append(_line(_cell_text(item)))
            self._chars += len(found[-1])
            if self._chars > MAX_TEXT_CHARS:
                raise too_much_text()
        self._chars = 0
        return found


def _line(text: str) -> str:
    """A text as one line. Most cells are a word or a number, which already is one."""
    if text.isprintable() and " " not in text:
        return text
    return " ".join(clean(text).split())


def _cell_text(element: Any) -> str:
    """The text below an element, without phonetic guides of Japanese."""
    while len(element) == 1:
        element = element[0]
    if not len(element):  # as most are, which makes a large sheet quicker
        return (element.text or "") if local(element) == "t" else ""
    return "".join(
        part.text or "" for part in element.iter("{*}t") if part.getparent() is None or local(part.getparent()) != "rPh"
    )


_MERGED = re.compile(
    rb"mergeCell(?<=[<:]mergeCell)\s[^<>]{0,200}?ref=[\"']([A-Z]{1,3})(\d{1,7}):([A-Z]{1,3})(\d{1,7})[\"']"
)
_MOST_MERGED, _WIDEST = 100_000, 64


class _MergedCells:
    """Each row and each column of a merged cell has its value, if the row has other values."""

    def __init__(self, found: Iterable[re.Match[bytes]]) -> None:
        self._starts: dict[int, list[tuple[int, int, int]]] = {}
        self._open: list[tuple[int, int, int, str]] = []
        for match in islice(found, _MOST_MERGED):
            left, top, right, bottom = match.groups()
            columns = _column(left.decode()), _column(right.decode())
            self._starts.setdefault(int(top), []).append((*columns, int(bottom)))

    def fill(self, number: int, values: dict[int, str]) -> None:
        if not self._open and number not in self._starts:
            return
        self._open = [each for each in self._open if each[2] >= number]
        starts = self._starts.get(number, ())
        begun = [
            (first, last, bottom, values[first])
            for first, last, bottom in starts
            if len(values.get(first, "")) in range(1, LONGEST_MERGED + 1)
        ]
        for first, _, _, value in self._open if values else ():
            values.setdefault(first, value)
        for first, last, _, value in (*self._open, *begun):
            if len(values) > 1 and last - first < _WIDEST:
                further = (column for column in range(first + 1, last + 1) if column not in values)
                values.update(dict.fromkeys(further, _Spanned(value)))
        self._open += [each for each in begun if each[2] > number]


@lru_cache(1024)
def _column(letters: str) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - 64
        if not "A" <= letter <= "Z":
            raise InputError(f"a damaged sheet: there is no column {letters[:10]}")
    if number > MOST_COLUMNS:
        raise InputError(f"a damaged sheet: there is no column {letters}")
    return number


def _formats(styles: Any) -> dict[str, str | None]:
    """The number formats of cell styles by index; None for those that show dates."""
    codes: dict[str, str | None] = {**BUILT_IN, **{str(number): None for number in _DATES}}
    for entry in styles.iter("{*}numFmt"):
        code = entry.get("formatCode", "")
        is_date = _DATE_CODE.search(_LITERAL_FORMAT.sub("", code)) and "General" not in code
        codes[entry.get("numFmtId", "")] = None if is_date else code
    cells = next(styles.iter("{*}cellXfs"), ())
    numbers = ((str(at), style.get("numFmtId", "0")) for at, style in enumerate(cells))
    return {style: codes[number] for style, number in numbers if number in codes}
