"""Manual pages as packages install them, in the macros man(7) and mdoc(7) of roff. Shown is what a person sees of them:
headings, paragraphs, examples, tables, and options with what they do. Nothing is executed: definitions are left out,
and of conditions the branch for a terminal is read."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

from edge.apps.documents.base import Block, DocumentBlocks, Outline
from edge.apps.documents.kinds import ITEM, WHOLE_WORDS, Parts
from edge.apps.documents.opened import OpenedFile

_ESCAPE = re.compile(
    r"\\(?:\((?P<two>..)|\[(?P<name>[^\]]*)\]|\*(?:\((?P<string>..)|\[[^\]]*\]|.)|\".*|#.*"
    r"|[fFmMnkgY](?:\(..|\[[^\]]*\]|[-+]?.)|s(?:\([-+]?..|\[[^\]]*\]|[-+]?'[^']*'|[-+]?\d{1,2})"
    r"|[hvwlLoXZNDbAHxRC]'[^']*'|(?P<one>.)|$)"
)
_SIGNS = {
    "em": "—", "en": "–", "hy": "-", "aq": "'", "dq": '"', "lq": "“", "rq": "”", "oq": "‘", "cq": "’", "ga": "`",
    "bu": "•", "co": "©", "rg": "®", "ha": "^", "ti": "~", "rs": "\\", "->": "→", "<-": "←", "mu": "×", "+-": "±",
    "<=": "≤", ">=": "≥", "!=": "≠", "de": "°", "ss": "ß", "Fo": "«", "Fc": "»", "mi": "−", "bv": "|", "sl": "/",
    "Aq": "'", "Tm": "™", "tm": "™", "--": "—", 'L"': '"', 'R"': '"', "lB": "[", "rB": "]", "at": "@", "sh": "#",
}  # fmt: skip
_ACCENTS = dict(zip("'`^~:,", "\u0301\u0300\u0302\u0303\u0308\u0327", strict=True))
_ALONE = {"-": "-", "e": "\\", "\\": "\\", "'": "'", "`": "`", " ": " ", "~": " ", "0": " ", "t": "\t", ".": "."}
_COMMENT = re.compile(r'(?<!\s)\s*\\["#].*|\\\}$')
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|((?:\\.|[^\s\\])+)')
_CONDITION = re.compile(r"(if|ie|el)\s*(.*)", re.DOTALL)
_BULLET = re.compile(r"[-*•–—o]?")

_FONTS = {"B", "I", "R", "SM", "SB", "BI", "BR", "IB", "IR", "RB", "RI"}
_PARAGRAPHS = {"PP", "P", "LP", "Pp", "HP", "sp", "Sp"}
_LITERAL = {"nf": True, "EX": True, "Vb": True, "Bd": True, "fi": False, "EE": False, "Ve": False, "Ed": False}
_SKIPPED = {"Dd", "Os", "PD", "UC", "AT", "DT", "IX", "Bk", "Ek", "Sm", "Rs", "Re", "Bf", "Ef"}

_PAIRS = {
    "Op": "[]", "Oo": "[]", "Bq": "[]", "Bo": "[]", "Pq": "()", "Po": "()", "Aq": "<>", "Ao": "<>", "Brq": "{}",
    "Bro": "{}", "Dq": "“”", "Do": "“”", "Sq": "‘’", "So": "‘’", "Ql": "‘’", "Qq": '""', "Qo": '""',
}  # fmt: skip
_CLOSING = {"Oc": "]", "Bc": "]", "Pc": ")", "Ac": ">", "Brc": "}", "Dc": "”", "Sc": "’", "Qc": '"'}
_WORDS = {
    "Ad", "An", "Ar", "Cd", "Cm", "Dv", "Em", "Er", "Ev", "Fa", "Fl", "Fn", "Ft", "Fx", "Ic", "In", "Li", "Lk", "Ms",
    "Mt", "Nm", "No", "Ns", "Nx", "Ox", "Pa", "St", "Sx", "Sy", "Tn", "Ux", "Va", "Vt", "Xc", "Xo", "Xr",
}  # fmt: skip
"""Macros that may stand within a line."""

_GLUE = "\0"
_AFTER, _BEFORE = frozenset(".,;:?!)]"), frozenset("([")


def extract(file: OpenedFile) -> DocumentBlocks:
    text = file.text()
    page = _Page()
    for number, line in enumerate(text.split("\n"), 1):
        page.take(line, number)
    page.flush()
    return DocumentBlocks(page.title, page.blocks)


class _Page:
    def __init__(self) -> None:
        self.title = ""
        self.blocks: list[Block] = []
        self._outline = Outline()
        self._lines: list[tuple[str, int]] = []
        self._literal = self._is_mdoc = False
        self._tag: list[str] = []
        """What the paragraph that follows describes, and is written before it."""
        self._awaits_tag = self._tag_open = False
        self._depth = 0
        self._until = ""
        """The line that ends what is left out."""
        self._braces = 0
        self._else = False
        self._table: list[str] | None = None

    def take(self, line: str, number: int) -> None:
        self._number = number
        if self._until or self._braces:
            self._braces += line.count("\\{") - line.count("\\}") if not self._until else 0
            self._until = "" if line.rstrip() == self._until else self._until
        elif self._table is not None and not line.startswith(".TE"):
            self._table.append(line)
        elif line[:1] in (".", "'"):
            request = re.match(r"[.'][ \t]*(\S*)\s*(.*)", line)
            if request is not None and not request[1].startswith('\\"'):
                self._request(request[1].removesuffix("\\}"), _COMMENT.sub("", request[2]))
        else:
            self._say(_shown(line).rstrip() if self._literal else _shown(line).strip(), breaks=line[:1] == " ")

    def _request(self, name: str, rest: str) -> None:
        if condition := _CONDITION.fullmatch(f"{name} {rest}".strip()):
            self._conditional(condition[1], condition[2])
        elif name in ("de", "ig", "am", "de1"):
            self._until = ".."
        elif name == "TS":
            self.flush()
            self._table = []
        elif name == "TE":
            self._end_table()
        elif (take := _MACROS.get(name)) is not None:
            take(self, rest)
        elif name in _PARAGRAPHS:
            self._paragraph()
        elif name in _LITERAL:
            self.flush()
            self._literal = _LITERAL[name] and (name != "Bd" or "-literal" in rest or "-unfilled" in rest)
        elif name in ("br", "SY", "YS"):
            if not self._tag:
                self.flush()
            if rest:
                self._say(_shown(rest))
        elif self._is_mdoc and name not in _SKIPPED and (name[:1].isupper() or name[:1] == "%"):
            if name == "Nm" and self._outline.path[-1:] == ("SYNOPSIS",):
                self.flush()
            self._say(self._mdoc([name, *_arguments(rest)]))
        elif name in _FONTS:
            self._say(_shown(("" if len(name) == 2 and name[0] != "S" else " ").join(_arguments(rest))))
        elif name[:1].isupper() and name not in _SKIPPED:
            self._say(_shown(" ".join(_arguments(rest))))

    def _conditional(self, kind: str, rest: str) -> None:
        """Reads a branch for terminals. `.if n` holds; other conditions do not, and `.el` then does."""
        holds = self._else if kind == "el" else rest.startswith("n")
        body = rest if kind == "el" else re.sub(r"^(?:!?\S+)\s*", "", rest)
        self._else = kind == "ie" and not holds
        opened = body.count("\\{") - body.count("\\}")
        if not holds:
            self._braces = max(0, opened)
        elif body := body.lstrip("\\{ ").removesuffix("\\}"):
            self.take(body, self._number)

    def _heading(self, level: int, rest: str) -> None:
        self.flush()
        self._literal, self._depth = False, 0
        if text := self._said(rest):
            path = self._outline.enter(level, text)
            self.blocks.append(Block(text, self._number, self._number, kind="heading", path=path))

    def _said(self, rest: str) -> str:
        return self._mdoc(_arguments(rest)) if self._is_mdoc else " ".join(map(_shown, _arguments(rest)))

    def _begin_tag(self, *, joined: bool = False) -> None:
        if not joined or self._lines:
            self._paragraph()
        self._awaits_tag = True

    def _indented(self, rest: str) -> None:
        mark = _shown(next(iter(_arguments(rest)), ""))
        if not mark:
            self.flush()
        else:
            self._paragraph()
            self._tag = [mark]

    def _listed(self, rest: str) -> None:
        self._paragraph()
        arguments = _arguments(rest)
        self._tag_open = "Xo" in arguments
        text = self._mdoc(arguments)
        self._tag = [text if text or self._tag_open else "•"]

    def _paragraph(self) -> None:
        self.flush()
        if self._tag:  # it stands alone
            self._lines, self._tag = [(text, self._number) for text in self._tag], []
            self.flush()
        self._outline.leave(_TAGS + self._depth)

    def _indent(self, by: int) -> None:
        self.flush()
        self._depth = max(0, self._depth + by)
        if by < 0:
            self._outline.leave(_TAGS + self._depth + 1)

    def _say(self, text: str, *, breaks: bool = False) -> None:
        if self._awaits_tag and text:
            self._tag.append(text)
            self._awaits_tag = False
        elif self._tag_open:
            self._tag[-1] = f"{self._tag[-1]} {text}".strip()
        elif self._literal:
            self._lines.append((text, self._number))
        else:
            if breaks or not text:
                self.flush()
            if self._lines and text and len(self._lines[-1][0]) < _WIDTH:
                self._lines[-1] = (f"{self._lines[-1][0]} {text}", self._lines[-1][1])
            elif text:
                self._lines.append((text, self._number))

    def _mdoc(self, words: Sequence[str]) -> str:
        """Words of which some are macros, as they are shown."""
        words, end = list(words), ""
        while len(words) > 1 and words[-1] in _AFTER:
            end = words.pop() + end
        shown: list[str] = []
        closers = ""
        macro = before = ""
        for word in [*words, "No"]:
            is_macro = word in _PAIRS or word in _CLOSING or word in _WORDS
            if is_macro and before == macro:  # without an argument
                shown += {"Ar": ["file", "..."], "Nm": [self.title.partition("(")[0]], "Fl": ["-"]}.get(macro, [])
            if word in _PAIRS:
                shown.append(_PAIRS[word][0] + _GLUE)
                closers = (_PAIRS[word][1] if not word.endswith("o") else "") + closers
            elif word in _CLOSING:
                shown.append(_GLUE + _CLOSING[word])
            elif word in ("Ns", "Xc"):
                shown += [_GLUE] if word == "Ns" else []
                self._tag_open = self._tag_open and word != "Xc"
            elif is_macro:
                pass
            elif word in _AFTER:
                shown.append(_GLUE + word)
            elif word in _BEFORE:
                shown.append(word + _GLUE)
            elif macro == "Xr" and before != "Xr":
                shown.append(f"{_GLUE}({word})")
            else:
                shown.append(("-" if macro == "Fl" else "") + _shown(word))
            macro = word if is_macro else macro
            before = word
        text = " ".join(shown) + "".join(_GLUE + mark for mark in closers + end)
        return re.sub(rf" *{_GLUE} *", "", text).strip()

    def _end_table(self) -> None:
        lines, self._table = self._table or [], None
        text = "\n".join(_in_cell(line) for line in lines)
        text = re.sub(r"T\{\n((?:(?!T\{\n).)*?)\nT\}", lambda cell: " ".join(cell[1].split()), text, flags=re.DOTALL)
        mark = re.search(r"tab *\((.)\)", text.partition("\n")[0])
        behind = re.split(r"(?m)\.[ \t]*$", text, maxsplit=1)[-1]
        rows = [
            " | ".join(_shown(cell).strip() for cell in line.split(mark[1] if mark else "\t"))
            for line in behind.split("\n") if line.strip(" \t_=")
        ]  # fmt: skip
        first = self._number - len(lines)
        if rows:
            numbers = (first,) * len(rows)
            self.blocks.append(
                Block("\n".join(rows), first, self._number, kind="table", path=self._outline.path, lines=numbers)
            )

    def flush(self) -> None:
        """Ends a paragraph."""
        lines, self._lines = self._lines, []
        while lines and not lines[-1][0]:
            lines.pop()
        if not lines or not any(text for text, _ in lines):
            return
        tag, self._tag = ", ".join(self._tag), []
        kind = "code" if self._literal else "paragraph"
        path = self._outline.path
        if tag:
            is_bullet = _BULLET.fullmatch(tag) is not None
            words = sum(len(text.split()) for text, _ in lines)
            if not self._literal and words + len(tag.split()) <= WHOLE_WORDS:
                kind, lines = "item", [(tag, lines[0][1]), *lines]
            elif not is_bullet:
                path = self._outline.enter(_TAGS + self._depth, tag)
                self.blocks.append(Block(tag, lines[0][1], lines[0][1], kind="heading", path=path))
            if not is_bullet:
                self._outline.enter(_TAGS + self._depth, tag)
        text = "\n".join(text for text, _ in lines)
        parts = Parts(text)
        if kind == "code":
            parts.fence(0, len(text))
        elif kind == "item":
            parts.add(ITEM, 0, len(text))
        else:
            parts.sentences(0, len(text))
        self.blocks.append(Block.of(lines, kind, path, None, tuple(parts.found)))

    def _entitle(self, rest: str, *, is_mdoc: bool) -> None:
        self._is_mdoc = is_mdoc
        name, section = [*map(_shown, _arguments(rest)), "", ""][:2]
        self.title = f"{name.lower() if name.isupper() else name}({section})" if section else name


_WIDTH = 60
"""A line of macros is joined with the line before it if that has fewer characters."""

_TAGS = 3
"""The level of what a paragraph describes, below sections and subsections."""

_MACROS: dict[str, Callable[[_Page, str], None]] = {
    "TH": lambda page, rest: page._entitle(rest, is_mdoc=False),
    "Dt": lambda page, rest: page._entitle(rest, is_mdoc=True),
    "Sh": lambda page, rest: page._heading(1, rest),
    "SH": lambda page, rest: page._heading(1, rest),
    "SS": lambda page, rest: page._heading(2, rest),
    "Ss": lambda page, rest: page._heading(2, rest),
    "TP": lambda page, rest: page._begin_tag(),
    "TQ": lambda page, rest: page._begin_tag(joined=True),
    "IP": lambda page, rest: page._indented(rest),
    "It": lambda page, rest: page._listed(rest),
    "RS": lambda page, rest: page._indent(1),
    "RE": lambda page, rest: page._indent(-1),
    "Bl": lambda page, rest: page._indent(1),
    "El": lambda page, rest: page._indent(-1),
    "Nd": lambda page, rest: page._say(f"– {page._said(rest)}"),
    "OP": lambda page, rest: page._say(f"[{page._said(rest)}]"),
}


def _arguments(rest: str) -> list[str]:
    return [match[1].replace('""', '"') if match[1] is not None else match[2] for match in _ARGUMENT.finditer(rest)]


def _in_cell(line: str) -> str:
    """A line of a table, without requests for the layout."""
    if line[:1] not in (".", "'"):
        return line
    name, _, rest = line[1:].partition(" ")
    return "".join(_arguments(rest)) if name in _FONTS else ""


def _shown(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def _character(match: re.Match[str]) -> str:
    name = match["two"] or match["name"] or match["string"] or ""
    if name in _SIGNS:
        return _SIGNS[name]
    if code := re.fullmatch(r"u([0-9A-F]{4,6})", name):
        sign = chr(min(int(code[1], 16), 0x10FFFF))
        return sign if sign.isprintable() else ""
    if len(name) == 2 and name[0] in _ACCENTS:
        return unicodedata.normalize("NFC", name[1] + _ACCENTS[name[0]])
    return _ALONE.get(match["one"] or "", "")
