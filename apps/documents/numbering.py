"""Numbers of lists, which the paragraphs of office files do not contain."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Container
from typing import Any

from edge.apps.documents.archive import attribute, local

_PLACE = re.compile("%([1-9])")
_LARGEST = 10_000
_MOST_BASES = 20
_ROMAN = ((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"), (10, "x"),
          (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))  # fmt: skip


class Numbering(ABC):
    """Counts the numbered paragraphs of a document, in their order."""

    @abstractmethod
    def label(self, paragraph: Any) -> str | None:
        """Counts a paragraph; returns its number as shown, such as `12.1`, or an empty text for an item without a
        number; None for a paragraph outside lists."""


class WordNumbering(Numbering):
    """That of a DOCX file (ECMA-376, part 1, 17.9)."""

    def __init__(self, numbering: Any, styles: Any) -> None:
        """Reads the definitions of lists and the styles that number paragraphs; each is the root of a part, or None."""
        levels: dict[str, dict[int, tuple[int, str, str]]] = {}
        self._lists: dict[str, tuple[str, dict[int, tuple[int, str, str]], dict[int, int]]] = {}
        self._counts: dict[str, dict[int, int]] = {}
        self._styles: dict[str, tuple[str, int]] = {}
        self._based: dict[str, str] = {}
        by_style: dict[str, int] = {}
        for found in () if numbering is None else numbering.iter("{*}abstractNum"):
            own = levels[attribute(found, "abstractNumId") or ""] = {}
            for level in found.iter("{*}lvl"):
                depth = _number(level, "ilvl")
                own[depth] = (
                    _number(level.find("{*}start"), "val", 1),
                    _value(level, "numFmt"),
                    _value(level, "lvlText"),
                )
                if style := _value(level, "pStyle"):
                    by_style[style] = depth
        for found in () if numbering is None else numbering.iter("{*}num"):
            changed = ((_number(each, "ilvl"), each.find("{*}startOverride")) for each in found.iter("{*}lvlOverride"))
            starts = {level: _number(start, "val", 1) for level, start in changed if start is not None}
            abstract = _value(found, "abstractNumId")
            self._lists[attribute(found, "numId") or ""] = (abstract, levels.get(abstract, {}), starts)
        for style in () if styles is None else styles.iter("{*}style"):
            numbered = style.find("{*}pPr/{*}numPr")
            name = attribute(style, "styleId") or ""
            if numbered is not None:
                depth = _number(numbered.find("{*}ilvl"), "val", by_style.get(name, 0))
                self._styles[name] = (_value(numbered, "numId"), depth)
            self._based[name] = _value(style, "basedOn")

    def label(self, paragraph: Any) -> str | None:
        place = self._place(paragraph)
        if place is None or place[0] not in self._lists:
            return None if place is None else ""
        name, depth = place
        abstract, levels, starts = self._lists[name]
        counts = self._counts.setdefault(abstract, {})
        for level, start in starts.items():  # a list of its own, although it has the levels of another
            counts[level] = start - 1
        starts.clear()
        start, form, shown = levels.get(depth, (1, "", ""))
        counts[depth] = counts.get(depth, start - 1) + 1
        for deeper in [level for level in counts if level > depth]:
            del counts[deeper]
        if form in ("bullet", "none"):
            return ""

        def count(match: re.Match[str]) -> str:
            level = int(match[1]) - 1
            first, form, _ = levels.get(level, (1, "", ""))
            return _shown(counts.get(level, first), form)

        return _PLACE.sub(count, shown).strip()

    def style(self, properties: Any, known: Container[str]) -> str:
        """The id of a paragraph's style, or of the first one in `known` that it is based on."""
        style = _value(properties, "pStyle")
        for _ in range(_MOST_BASES):
            if style in known:
                break
            style = self._based.get(style, "")
        return style

    def _place(self, paragraph: Any) -> tuple[str, int] | None:
        """The list and the level of a paragraph; None if it is in none."""
        properties = paragraph.find("{*}pPr")
        if properties is None:
            return None
        style = self.style(properties, self._styles)
        numbered = properties.find("{*}numPr")
        if numbered is None and style not in self._styles:
            return None
        name, depth = self._styles.get(style, ("", 0))
        if numbered is not None:
            name, depth = _value(numbered, "numId") or name, _number(numbered.find("{*}ilvl"), "val", depth)
        return None if name == "0" else (name, depth)


_FORMS = {"1": "decimal", "a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}
_HEADINGS = ""
"""The name of the style that numbers headings."""


class OpenNumbering(Numbering):
    """That of an OpenDocument file (OpenDocument 1.3, part 3, 5.3 and 16.30)."""

    def __init__(self, *roots: Any) -> None:
        """Reads the styles of lists below these elements."""
        self._levels: dict[str, dict[int, Any]] = {}
        self._counts: dict[str, dict[int, int]] = {}
        self._begun: set[Any] = set()
        for style in (style for root in roots for style in root.iter("{*}list-style", "{*}outline-style")):
            name = attribute(style, "name") if local(style) == "list-style" else _HEADINGS
            self._levels[name or _HEADINGS] = {_number(level, "level"): level for level in style.iter("{*}*")}

    def label(self, paragraph: Any) -> str | None:
        lists, item = list(paragraph.iterancestors("{*}list")), paragraph.getparent()
        if lists:
            style = next(filter(None, (attribute(each, "style-name") for each in lists)), _HEADINGS)
            depth = len(lists)
            if local(item) != "list-item" or next(item.iterchildren("{*}p", "{*}h")) is not paragraph:
                return ""
        else:
            style, depth, item = _HEADINGS, _number(paragraph, "outline-level"), paragraph
            if not depth or attribute(paragraph, "is-list-header") == "true":
                return None
        levels, counts = self._levels.get(style, {}), self._counts.setdefault(style, {})
        if lists and lists[0] not in self._begun:
            self._begun.add(lists[0])
            if attribute(lists[0], "continue-numbering") != "true" and not attribute(lists[0], "continue-list"):
                counts.pop(depth, None)
        start = _number(levels.get(depth), "start-value", 1)
        counts[depth] = _number(item, "start-value", counts.get(depth, start - 1) + 1)
        for deeper in [level for level in counts if level > depth]:
            del counts[deeper]
        forms = {at: _FORMS.get(attribute(level, "num-format") or "") for at, level in levels.items()}
        if not forms.get(depth):
            return ""
        first = max(1, depth + 1 - _number(levels[depth], "display-levels", 1))
        above = ((at, forms.get(at)) for at in range(first, depth + 1))
        number = ".".join(
            _shown(counts.get(at, _number(levels[at], "start-value", 1)), form) for at, form in above if form
        )
        prefix, suffix = (attribute(levels[depth], name) or "" for name in ("num-prefix", "num-suffix"))
        return f"{prefix}{number}{suffix}".strip()


def _shown(number: int, form: str) -> str:
    if form.endswith("Letter") and 0 < number < _LARGEST:  # a, ..., z, aa, bb, ...
        text = chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1)
    elif form.endswith("Roman") and 0 < number < _LARGEST:
        text = ""
        for value, letters in _ROMAN:
            text += letters * (number // value)
            number %= value
    else:
        return f"{number:02}" if form == "decimalZero" else str(number)
    return text.upper() if form.startswith("upper") else text


def _value(element: Any, name: str) -> str:
    child = None if element is None else element.find(f"{{*}}{name}")
    return "" if child is None else attribute(child, "val") or ""


def _number(element: Any, name: str, default: int = 0) -> int:
    value = "" if element is None else attribute(element, name) or ""
    return int(value) if value.isdecimal() and len(value) < 9 else default
