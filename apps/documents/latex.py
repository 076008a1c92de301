"""LaTeX and BibTeX: the text under its sections, with accents in place of their commands and without braces around
letters. Every line keeps its number. Nothing is expanded or included."""

from __future__ import annotations

import re
import unicodedata

from edge.apps.documents.base import Block, DocumentBlocks, first_heading
from edge.apps.documents.opened import OpenedFile
from edge.apps.documents.plain import Title, sections
from edge.apps.documents.plain import extract as extract_text

_MARKS = {
    "`": "\u0300", "'": "\u0301", "^": "\u0302", "~": "\u0303", "=": "\u0304", "u": "\u0306", ".": "\u0307",
    '"': "\u0308", "r": "\u030a", "H": "\u030b", "v": "\u030c", "d": "\u0323", "c": "\u0327", "k": "\u0328",
    "b": "\u0331",
}  # fmt: skip

_ACCENT = re.compile(
    r"\\(?:([`'^~=.\"])[ \t]{0,3}|([uvHcdbkr])(?:[ \t]{1,3}|(?=[{\\])))"
    r"(?:\{\\?([A-Za-z])(?:\{\})?\}|\\?([A-Za-z])(?:\{\})?)"
)
_LETTERS = {
    "ss": "ß", "ae": "æ", "AE": "Æ", "oe": "œ", "OE": "Œ", "aa": "å", "AA": "Å", "o": "ø", "O": "Ø", "l": "ł",
    "L": "Ł", "i": "ı", "j": "ȷ", "dh": "ð", "DH": "Ð", "th": "þ", "TH": "Þ", "S": "§", "P": "¶", "pounds": "£",
    "euro": "€", "copyright": "©", "dots": "…", "ldots": "…", "textdegree": "°", "degree": "°", "times": "×",
}  # fmt: skip
_LETTER = re.compile(rf"\\({'|'.join(sorted(_LETTERS, key=len, reverse=True))})(?![A-Za-z])(?:\{{\}}|[ \t])?")
_COMMENT = re.compile(r"(?<!\\)%.*")
_LEVELS = {"title": 1, "part": 1, "chapter": 2, "section": 3, "subsection": 4, "subsubsection": 5, "paragraph": 6,
           "subparagraph": 7}  # fmt: skip
_SECTION = re.compile(rf"\s*\\({'|'.join(_LEVELS)})\*?\s*(?:\[[^\]]*\])?\{{((?:[^{{}}]|\{{[^{{}}]*\}})*)\}}")
_SILENT = re.compile(
    r"\\(?:documentclass|usepackage|bibliographystyle|label|ref|eqref|pageref|cite[a-z]*|includegraphics|input|include"
    r"|vspace|hspace|begin|end|setlength|newcommand|renewcommand|pagestyle|thispagestyle|index|bibliography)\*?"
    r"(?:\s?\[[^\[\]]{0,200}\]|\s?\{[^{}]{0,200}\}){0,4}"
)
"""Commands whose arguments are not printed."""

_VERBATIM = re.compile(r"\s*\\(begin|end)\{(?:verbatim|lstlisting|minted|Verbatim|alltt)\*?\}")
_MATH = re.compile(r"(?<!\\)\$[^$\n]{1,400}\$|\\\(.{1,400}?\\\)")
_MARK = "\ufdd1"  # Stands for a formula. No text holds this noncharacter.
_ITEM = re.compile(r"\\item(?![A-Za-z])")
_COMMAND = re.compile(r"\\(?:[A-Za-z]{1,40}\*?[ \t]?|([%&$#_{}])|([,;: ])|\W)")
_LINK = re.compile(r"\\href\s?\{([^{}]{0,500})\}\s?\{((?:[^{}]|\{[^{}]*\})*)\}")
_BARE = str.maketrans({"~": " ", "{": None, "}": None})
_DASH = re.compile(r"(?<!-)-{2,3}(?!-)")
_ENTRY = re.compile(r"\s*@(\w{1,40})\s*[{(]\s*([^\s,{}()]{1,200})\s*,")
_FIELD = re.compile(r"\s*([A-Za-z][\w-]{0,40})\s*=\s*(.*)")
_BETWEEN = re.compile(r",\s*(?=[A-Za-z][\w-]{0,40}\s*=)")


def extract(file: OpenedFile) -> DocumentBlocks:
    """Reads a LaTeX file; as plain text if it only defines commands."""
    text = file.text()
    shown: list[str] = []
    titles: list[Title] = []
    verbatim = False
    for number, line in enumerate(text.split("\n")):
        if (fence := _VERBATIM.match(line)) is not None:
            verbatim = fence[1] == "begin"
        elif verbatim:
            shown.append(line)
            continue
        line = _COMMENT.sub("", line)
        if (section := _SECTION.match(line)) is not None and (title := plain(section[2])):
            titles.append(Title(title, number, number + 1, _LEVELS[section[1]]))
            line = section[2]
        shown.append(plain(line))
    blocks = list(sections(shown, titles))
    return DocumentBlocks(first_heading(blocks), blocks) if blocks else extract_text(file)


def plain(line: str) -> str:
    """A line as it is printed. Formulas are kept as they are written."""
    formulas: list[str] = []

    def formula(match: re.Match[str]) -> str:
        formulas.append(match[0])
        return _MARK

    line = _LINK.sub(r"\2 (\1)", _MATH.sub(formula, line))
    line = _ACCENT.sub(lambda m: unicodedata.normalize("NFC", (m[3] or m[4]) + _MARKS[m[1] or m[2]]), line)
    line = _LETTER.sub(lambda match: _LETTERS[match[1]], line)
    line = _ITEM.sub("-", _SILENT.sub("", line)).replace("\\\\", " ")
    line = _COMMAND.sub(lambda match: match[1] or (" " if match[2] else ""), line)
    line = _DASH.sub("–", line).replace("``", "“").replace("''", "”").translate(_BARE)
    for found in formulas:
        line = line.replace(_MARK, found, 1)
    return " ".join(line.split())


def extract_bibtex(file: OpenedFile) -> DocumentBlocks:
    text = file.text()
    blocks: list[Block] = []
    fields: list[tuple[str, int]] = []

    def flush() -> None:
        if fields:
            blocks.append(Block.of(fields, "row"))
        fields.clear()

    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("%"):
            continue
        if (entry := _ENTRY.match(line)) is not None:
            flush()
            fields.append((f"{entry[1].lower()} {entry[2]}", number))
            line = line[entry.end() :]
        for part in _BETWEEN.split(line):
            field = _FIELD.match(part)
            value = plain((part if field is None else field[2]).strip().rstrip(",").strip('" '))
            if not value:
                continue
            if field is not None or not fields:
                fields.append((value if field is None else f"{field[1].lower()}: {value}", number))
            else:
                fields[-1] = (f"{fields[-1][0]} {value}", fields[-1][1])
    flush()
    return DocumentBlocks("", blocks) if blocks else extract_text(file)
