"""Decodes bytes to text with countable lines: encodings, line ends, and characters that do not belong in text."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import inf, log
from unicodedata import combining

from edge.text.control_characters import CONTROL

_REPLACED = "\ufffd"
_WESTERN = (
    "éèàêçâîôùûïëœü",  # French
    "ãçáéíóêõâúàô",  # Portuguese
    "óáíéñúü",  # Spanish
    "èàòùìé",  # Italian
    "àéèóíçòúïü",  # Catalan
    "üäößé",  # German
    "ëéïèöüêó",  # Dutch
    "äåöé",  # Swedish
    "åøæéò",  # Danish, Norwegian
    "áíéúó",  # Irish
    "ðáíéóöþæúý",  # Icelandic
    "äöåšž",  # Finnish
    "äõüöšž",  # Estonian
    "ëç",  # Albanian
)
_CENTRAL = (
    "íáěéřčšžýůúňďťó",  # Czech
    "áíéčýšúžôľťňäďóĺŕ",  # Slovak
    "łęąóżśćńź",  # Polish
    "áéöőóíüúű",  # Hungarian
    "ăîâşţ",  # Romanian
    "čšžćđ",  # Croatian, Slovenian
)
_TURKISH = ("ıüşğçöİâîû",)
_BALTIC = (
    "ėšįųžūąčę",  # Lithuanian
    "āīēšūņļžčģķ",  # Latvian
    _WESTERN[12],
)
_VIETNAMESE = ("\u0301\u0300đ\u0323ưôơêâ\u0309\u0303ăáàóíéúòìèùý",)

Encoding = tuple[str, float, tuple[str, ...]]

_ENCODINGS: tuple[Encoding, ...] = (
    ("cp1252", 0.0, _WESTERN), ("cp1250", -3.5, _CENTRAL), ("cp1254", -4.0, _TURKISH), ("cp1257", -6.0, _BALTIC),
    ("iso8859_15", -4.0, _WESTERN), ("iso8859_2", -5.0, _CENTRAL), ("cp1258", -8.0, _VIETNAMESE),
    ("cp850", -10.0, _WESTERN), ("cp437", -10.0, _WESTERN), ("mac_roman", -10.0, _WESTERN),
)  # fmt: skip
"""Encodings; the logarithm of their frequency relative to cp1252; and the accented letters of their languages."""

_CYRILLIC = (
    "оеаинтсрвлкмдпуяыьгзбчйхжшюцщэфъё",  # Russian
    "оанивітеркслдупмязьбгчйхцжєїшюфщґ",  # Ukrainian
    "аиоентрсвлкдпмзгяуъбчцйжщхюшфь",  # Bulgarian
    "аоиеунтрсјвкдмлпгзбшчцхжњђљћфџѓќѕ",  # Serbian, Macedonian
)
_OTHER_LETTERS: tuple[Encoding, ...] = (
    ("cp1251", 0.0, _CYRILLIC),
    ("koi8_u", -4.0, _CYRILLIC),
    ("cp866", -4.0, _CYRILLIC),
    ("mac_cyrillic", -6.0, _CYRILLIC),
    ("iso8859_5", -6.0, _CYRILLIC),
    ("cp855", -8.0, _CYRILLIC),
    ("cp1253", -4.0, ("αοιετσνηυρπκμλωςγίδθόάήέχφύβώξζψ",)),
    ("cp1255", -4.0, ("יוהלאמתרשבנדםחקעכפסטןגץזצךף",)),
)
_SIGN = -4.0  # Logarithm for a sign whose byte is a letter in another of these encodings.
_LEAST_LIKELY = -3.75  # The lowest mean logarithm of a letter's frequency in a text of these languages.
_HIRAGANA = re.compile("[\u3041-\u3096]")
_LEAST_HIRAGANA, _DAMAGED = 0.15, 0.01
"""Japanese has so much of it among its characters outside of ASCII, and no other text has in these encodings."""

_FOREIGN = -6.0  # Logarithm of the frequency of a letter that does not occur in a language.
_MISPLACED = -9.0
"""Logarithm for characters that no language has at their place: a sign inside a word, or an undefined byte."""

_COMMON = frozenset("№€£§©®°«»‹›“”„‚…•™²³½¼¾±×÷ªºµ¿¡")
"""Signs beside a word that cost nothing in any language; other signs cost as much as a foreign letter."""

_ALONE = frozenset("£½¼¾±×÷")  # Those of `_COMMON` that occur beside digits and not beside letters.
_MOST_MISPLACED = 0.25  # Share of misplaced characters above which the text is not in Latin letters.
_LONG = 3  # No word this long consists of accented letters alone. Words in other scripts seem to.
_OPENING = frozenset("„‚¿¡")  # Signs that occur before a word and not after it.
_SPELT = frozenset("ªºµˆ")  # Signs that Unicode classifies as letters.
_PIECE = re.compile(rb"(?<![A-Za-z])[A-Za-z]*[\x80-\xff][A-Za-z\x80-\xff]*")
_WORD = re.compile("(?<![A-Za-z])[A-Za-z]*[^\x00-\x7f\xa0\xad’‘–—·](?:[A-Za-z]|[^\x00-\x7f\xa0\xad’‘–—·])*")
"""A word with at least one non-ASCII character. Spaces, dashes and apostrophes end it in every language."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """Counts of non-ASCII characters: each letter at a possible place, rare signs, and misplaced ones."""

    letters: Counter[str]
    rare: int
    misplaced: int

    def likelihood(self, frequencies: dict[str, float]) -> float:
        letters = sum(count * frequencies.get(letter, _FOREIGN) for letter, count in self.letters.items())
        return letters + _FOREIGN * self.rare + _MISPLACED * self.misplaced


def likeliest(data: bytes) -> str | None:
    """The encoding of bytes as text in Latin, Cyrillic, Greek or Hebrew letters by the language that fits best, judged
    by the frequency of its letters; None if they are not such text."""
    # Repeated words count once. Otherwise, a name in every line would outweigh the frequencies of encodings.
    pieces = list(dict.fromkeys(_PIECE.findall(data)))
    most = _MOST_MISPLACED * sum(map(_accented, pieces))
    if sum(len(piece) for piece in pieces if len(piece) == _accented(piece) >= _LONG) > most:
        mean, chosen, misplaced = _best(pieces, _OTHER_LETTERS, sign=_SIGN)
        return chosen if misplaced <= most and mean >= _LEAST_LIKELY else None
    _, chosen, misplaced = _best(pieces, _ENCODINGS)
    return chosen if misplaced <= most else None


def _best(pieces: Iterable[bytes], encodings: Iterable[Encoding], sign: float = 0.0) -> tuple[float, str, int]:
    """The highest score: the mean likelihood of its letters, its name, and the misplaced characters. `sign` is the
    logarithm for each sign beside a word."""
    text = b"\n".join(pieces)
    best, found = -inf, (0.0, "", 0)
    for encoding, prior, alphabets in encodings:
        reading = _read(text.decode(encoding, "replace"))
        languages = [_frequencies(alphabet) for alphabet in alphabets]
        if encoding == "cp1252":  # lists of names are most often in this encoding
            languages.append(_of_any(alphabets))
        likelihood = max(map(reading.likelihood, languages))
        signs = _accented(text) - reading.letters.total() - reading.rare - reading.misplaced
        if prior + likelihood + sign * signs > best:
            best = prior + likelihood + sign * signs
            found = (likelihood / max(1, reading.letters.total()), encoding, reading.misplaced)
    return found


def _japanese(data: bytes) -> str | None:
    """The encoding of Japanese text, which its hiragana show; None for other bytes."""
    for encoding in ("cp932", "euc_jp"):
        text = data.decode(encoding, "replace")
        foreign = sum(not char.isascii() for char in text)
        damaged = text.count(_REPLACED)
        if foreign and len(_HIRAGANA.findall(text)) >= _LEAST_HIRAGANA * foreign and damaged <= _DAMAGED * foreign:
            return encoding
    return None


def _read(text: str) -> _Reading:
    letters: Counter[str] = Counter()
    rare = misplaced = 0
    for word in _WORD.findall(text):
        first, end = 0, len(word)
        while first < end and not _is_letter(word[first]):
            first += 1
        while end > first and not _is_letter(word[end - 1]):
            end -= 1
        inner = word[first:end]
        for sign in word[:first] + word[end:]:
            rare += sign not in _COMMON or (sign in _ALONE and inner != "")
            misplaced += sign == _REPLACED or not sign.isprintable()
        misplaced += sum(sign in _OPENING for sign in word[end:])
        previous = ""
        for char in inner:
            if not char.isascii():
                if _is_letter(char) and not (char.isupper() and previous.islower()):
                    letters[char.lower()] += 1
                else:
                    misplaced += 1
            previous = char
    return _Reading(letters, rare, misplaced)


def _accented(piece: bytes) -> int:
    return sum(byte > 0x7F for byte in piece)


def _is_letter(char: str) -> bool:
    return (char.isalpha() and char not in _SPELT) or combining(char) != 0


@cache
def _frequencies(alphabet: str) -> dict[str, float]:
    """Log-frequencies of letters by Zipf's law; `alphabet` is in order of frequency."""
    whole = sum(1 / rank for rank in range(1, len(alphabet) + 1))
    return {letter: -log(rank * whole) for rank, letter in enumerate(alphabet, 1)}


@cache
def _of_any(alphabets: tuple[str, ...]) -> dict[str, float]:
    """Log-frequencies without a particular language, for lists of names and for languages that are missing here."""
    union = set("".join(alphabets))
    return dict.fromkeys(union, -log(len(union)))


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
"""Tried for a file that is not UTF-8. Guesses would include EBCDIC and UTF-7, and a file could declare `punycode`."""

_SUPERSETS = {
    "ascii": "cp1252", "iso8859_1": "cp1252", "iso8859_9": "cp1254", "iso8859_11": "cp874", "tis_620": "cp874",
    "shift_jis": "cp932", "euc_kr": "cp949", "gb2312": "gb18030", "gbk": "gb18030", "big5": "big5hkscs",
    "iso2022_jp": "iso2022_jp_ext",
}  # fmt: skip
"""The codecs that programs mean when they name a smaller one (https://encoding.spec.whatwg.org/#names-and-labels)."""

_STATEFUL = ("iso2022_jp_ext", "iso2022_kr", "hz", "utf-16-le", "utf-16-be", "utf-7")
_SHIFT = re.compile(rb"\x1b(?:\$[@B]|\$\(D|\(J|\$\)C)")
"""What ISO-2022-JP and ISO-2022-KR have before the first letter that is not ASCII."""

_SHIFTED = re.compile(rb"[\x00-\x08\x1b]|~\{|\+[A-Za-z0-9+/]{3}")
"""Codecs whose bytes are valid UTF-8, too, and bytes that such text has."""

_DECLARED = frozenset({
    *_LEGACY, *_SUPERSETS.values(), "iso2022_kr", "hz", "utf_16_le", "utf_16_be", "utf_7", "iso8859_3", "iso8859_4",
    "iso8859_6", "iso8859_10", "iso8859_13", "iso8859_14", "iso8859_16", "cp866", "mac_cyrillic",
}) - _SUPERSETS.keys()  # fmt: skip

_LABELS = {
    label: codec for codec, *labels in map(str.split, (
        "big5hkscs cn-big5 cp950 windows-950", "cp874 dos-874 windows-874", "cp932 windows-31j",
        "cp949 cseuckr csksc56011987 iso-ir-149 ks_c_5601-1989 ksc_5601 windows-949", "euc_jp cseucpkdfmtjapanese",
        "gb18030 csgb2312 gb_2312 gb_2312-80 windows-936", "iso8859_7 sun_eu_greek", "iso8859_8 logical visual",
        "iso8859_15 csisolatin9", "koi8_r koi koi8", "koi8_u koi8-ru", "mac_cyrillic mac-ukrainian",
        "mac_roman csmacintosh mac", "utf_16_be unicodefffe",
        "utf_16_le csunicode iso-10646-ucs-2 ucs-2 unicode unicodefeff utf-16",
    )) for label in labels
}  # fmt: skip
"""The labels of the WHATWG's Encoding standard that Python does not know."""

_ISO_8859 = re.compile(r"(?:cs)?iso[-_]?8859[-_]?(\d{1,2})[-_]?[ei]?")
_CHARSET = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*(?:[\"']\s*)?([\w.:-]{2,40})|<\?xml[^>]{0,100}?encoding\s*=\s*[\"']([\w.:-]+)",
    re.I,
)
_SURE = 10  # UTF-8 is believed against a label if it has so many valid characters for each damaged one.
_SAMPLE = 1 << 16
_SURROGATE = re.compile("[\ud800-\udfff]")
_LEAST_UNITS, _LEAST_ZEROS = 8, 0.6
"""The fewest characters that show UTF-16, and the least share of their high bytes that are zero, as in Latin ones."""

_TERMINAL = re.compile(
    "\x1b(?:\\[[0-?]{0,64}[ -/]{0,4}[@-~]|\\][^\x07\x1b\n]{0,2000}(?:\x07|\x1b\\\\)|[()][0-9A-Z]|[=>78])"
)
_OVERSTRUCK = re.compile("[^\n\b]\b")  # Commands for a terminal (ECMA-48), and letters that a typewriter strikes over.
_LONG_GAP = re.compile("(?<![ \t])[ \t]{200,}")


def decode(data: bytes, *, declared: str | None = None) -> str:
    """Decodes a file: by its byte order mark, as UTF-8, by its declared encoding, or by a guess from its bytes. A few
    damaged bytes, for which U+FFFD stands, do not change the encoding. Lines end with LF, so that
    `text.split("\\n")[n - 1]` is line n of the file."""
    return normalised(data.decode(_encoding(data, declared), "replace"))


def _encoding(data: bytes, declared: str | None) -> str:
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return encoding
    if (utf_16 := unmarked_utf_16(data[:_SAMPLE])) is not None:
        return utf_16
    label = None if declared is None else _labelled(declared)
    if label in _STATEFUL and _SHIFTED.search(data):
        return label
    if (shift := _SHIFT.search(data)) is not None and data.isascii():
        return "iso2022_kr" if shift[0] == b"\x1b$)C" else "iso2022_jp_ext"
    valid = _valid_for_each_damaged(data, "utf-8")
    if label is not None and valid < _SURE and _valid_for_each_damaged(data, label) >= 1:
        return label
    # Legacy text is rarely valid UTF-8. So the text is UTF-8 if it has as many valid characters as damaged ones.
    return "utf-8" if valid >= 1 else _guess(data)


def _valid_for_each_damaged(data: bytes, encoding: str) -> float:
    text = data.decode(encoding, "replace")
    damaged = text.count(_REPLACED)
    return sum(1 for _ in re.finditer("[^\x00-\x7f\ufffd]", text)) / damaged if damaged else inf


def declared_encoding(head: bytes) -> str | None:
    found = _CHARSET.search(head)
    return None if found is None else (found[1] or found[2]).decode("ascii", "replace")


def unmarked_utf_16(head: bytes) -> str | None:
    """The codec of UTF-16 text without a byte order mark, which zero bytes show; None for other bytes."""
    low, high = head[0::2], head[1::2]
    for codec, zeros, others in (("utf-16-le", high, low), ("utf-16-be", low, high)):
        if len(zeros) >= _LEAST_UNITS and zeros.count(0) >= _LEAST_ZEROS * len(zeros) and not others.count(0):
            text = head[: len(head) // 2 * 2].decode(codec, "replace").translate({12: None, 13: None})
            return None if CONTROL.search(text) or _REPLACED in text[:-1] else codec
    return None


def normalised(text: str) -> str:
    """With LF as the only line end, without what only a terminal shows, cleaned, and with runs of blanks cut to 200."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\x1b" in text or "\b" in text:
        text = _OVERSTRUCK.sub("", _TERMINAL.sub("", text))
    return _LONG_GAP.sub(" " * 200, clean(text))


def clean(text: str) -> str:
    """Replaces control characters other than TAB and LF by spaces, and lone surrogates by U+FFFD, in equal length."""
    if CONTROL.search(text):
        text = CONTROL.sub(" ", text)
    if _SURROGATE.search(text):
        text = _SURROGATE.sub(_REPLACED, text)
    return text


@cache
def _labelled(label: str) -> str | None:
    """The codec of a declared encoding (WHATWG's Encoding standard); None if text files do not use it."""
    name = label.strip().lower()
    while name.startswith("x-"):
        name = name[2:]
    if iso := _ISO_8859.fullmatch(name):
        name = f"iso8859_{int(iso[1])}"
    try:
        found = _LABELS.get(name) or codecs.lookup(name).name.replace("-", "_")
    except (LookupError, ValueError):
        return None
    found = _SUPERSETS.get(found, found)
    return codecs.lookup(found).name if found in _DECLARED else None


def _guess(data: bytes) -> str:
    """The most probable legacy encoding. charset-normalizer judges only what is not found here: it misreads French,
    Portuguese and Swedish as cp1250, and much Russian."""
    from charset_normalizer import from_bytes

    sample, size = [], 0
    for line in data.split(b"\n"):
        if not line.isascii():
            sample.append(line)
            size += len(line)
            if size > _SAMPLE:
                break
    lines = b"\n".join(sample)[:_SAMPLE]
    if (likely := _japanese(lines) or likeliest(lines)) is not None:
        return likely
    best = from_bytes(lines, cp_isolation=list(_LEGACY)).best()
    return "cp1252" if best is None else best.encoding
