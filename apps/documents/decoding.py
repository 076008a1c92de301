"""Decodes bytes to text with countable lines: encodings, line ends, and characters that do not belong in text."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from functools import cache

from edge.apps.documents.latin import likeliest
from edge.control_characters import CONTROL

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, because it begins with that mark
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

_LEGACY = (
    "cp1252", "iso8859_15", "cp1250", "iso8859_2", "cp1251", "koi8_r", "cp1253", "cp1254", "cp1255", "cp1256",
    "cp1257", "cp1258", "cp874", "shift_jis", "cp932", "euc_jp", "gb18030", "big5", "euc_kr", "cp437", "cp850",
    "mac_roman", "latin_1", "iso8859_5", "iso8859_7", "iso8859_8", "iso8859_9", "koi8_u", "iso2022_jp", "ascii",
)  # fmt: skip
"""Encodings that are tried for a file that is not UTF-8. Without this list, guesses would include EBCDIC and UTF-7, and
a file could declare `punycode` or `unicode_escape` as its decoder."""

_SAMPLE = 1 << 16
_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACED = "\ufffd"
_LONG_GAP = re.compile("(?<![ \t])[ \t]{200,}")


@dataclass(frozen=True, slots=True)
class Text:
    """Decoded text. Lines end with LF, so that `text.split("\\n")[n - 1]` is line n of the file."""

    text: str
    encoding: str


def decode(data: bytes, *, declared: str | None = None) -> Text:
    """Decodes a file: by its byte order mark, as UTF-8, by its declared encoding, or by a guess from its bytes.

    UTF-8 with a few damaged bytes stays UTF-8, with U+FFFD in their place. Nothing else is lost or added.

    Args:
        declared: the encoding that the file itself declares (a coding cookie, a meta element).
    """
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return Text(normalised(data.decode(encoding, "replace")), encoding.removesuffix("-sig"))
    try:
        return Text(normalised(data.decode("utf-8")), "utf-8")
    except UnicodeDecodeError:
        pass
    if declared is not None and (name := _legacy(declared)) is not None:
        try:
            return Text(normalised(data.decode(name)), name)
        except UnicodeDecodeError:
            pass
    text = data.decode("utf-8", "replace")
    damaged = text.count(_REPLACED)
    # Legacy text is rarely valid UTF-8. So the text is UTF-8 if it has as many valid characters as damaged ones.
    if damaged <= sum(1 for _ in re.finditer("[^\x00-\x7f\ufffd]", text)):
        return Text(normalised(text), "utf-8")
    encoding = _guess(data)
    return Text(normalised(data.decode(encoding, "replace")), encoding)


def normalised(text: str) -> str:
    """The text with LF as the only line end, cleaned by `clean`, and with runs of blanks shortened to 200."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _LONG_GAP.sub(" " * 200, clean(text))


def clean(text: str) -> str:
    """Replaces control characters other than TAB and LF (form feeds, terminal escapes) by spaces, and lone surrogates
    by U+FFFD. The length does not change."""
    if CONTROL.search(text):
        text = CONTROL.sub(" ", text)
    if _SURROGATE.search(text):
        text = _SURROGATE.sub(_REPLACED, text)
    return text


def _legacy(name: str) -> str | None:
    """The codec of a declared encoding; None if text files do not use it."""
    try:
        found = codecs.lookup(name).name
    except (LookupError, ValueError):
        return None
    return found if found in _known() else None


@cache
def _known() -> frozenset[str]:
    """The names of the codecs of `_LEGACY`. Asked for late, because Python imports a module for each codec."""
    return frozenset(codecs.lookup(name).name for name in _LEGACY)


def _guess(data: bytes) -> str:
    """The most probable legacy encoding, judged by the lines that are not plain ASCII. Texts in Latin letters are
    judged by `latin`, because charset-normalizer misreads French, Portuguese and Swedish as cp1250."""
    from charset_normalizer import from_bytes

    sample, size = [], 0
    for line in data.split(b"\n"):
        if not line.isascii():
            sample.append(line)
            size += len(line)
            if size > _SAMPLE:
                break
    lines = b"\n".join(sample)[:_SAMPLE]
    if (latin := likeliest(lines)) is not None:
        return latin
    best = from_bytes(lines, cp_isolation=list(_LEGACY)).best()
    return "cp1252" if best is None else best.encoding
