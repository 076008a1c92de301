"""Bytes become text: by their mark, by what a file declares, or by what the languages before UTF-8 look like."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge.apps.documents.base import DocumentBlocks, Skipped
from edge.apps.documents.decoding import clean, decode

RUSSIAN = "Река выходит из берегов весной, когда в горах тает снег.\nДороги тогда непроходимы.\n"
GERMAN = "Der Fluß tritt im Frühjahr über die Ufer.\nDie Straße ist dann gesperrt, natürlich für länger.\n"
JAPANESE = "川は春に氾濫します。\n山の雪が溶けるからです。道は通れなくなります。\n"


@pytest.mark.parametrize(
    ("mark", "codec"),
    [
        (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
    ],
)  # fmt: skip
def test_a_byte_order_mark_decides(mark: bytes, codec: str) -> None:
    assert decode(mark + GERMAN.encode(codec)) == GERMAN


def test_text_that_is_ascii_for_long_is_judged_by_the_lines_that_are_not() -> None:
    plain = "Plain words only, line after line.\n" * 5000
    assert decode((plain + RUSSIAN * 3).encode("cp1251")) == plain + RUSSIAN * 3


def test_what_a_file_declares_is_believed_where_utf8_fails() -> None:
    data = "źródło\n".encode("iso8859_2")
    assert decode(data, declared="ISO-8859-2") == "źródło\n"
    assert decode("źródło".encode(), declared="ISO-8859-2") == "źródło"


@pytest.mark.parametrize(
    "name", ["punycode", "unicode_escape", "utf-7", "rot13", "zlib", "no-such-codec", "x" * 500, "\0"]
)
def test_a_file_cannot_choose_a_codec_that_is_no_text_encoding(name: str) -> None:
    assert decode(b"caf\xe9 au lait, deux caf\xe9s", declared=name) == "café au lait, deux cafés"


CAFE = "The library’s “café” sells crème brûlée, Äpfel, Öl and señor’s piñata – for €5, not £4.\n"
WRITTEN = {
    "cp1252": (
        CAFE,
        "iso-8859-1 iso8859-1 iso_8859-1:1987 iso88591 latin1 l1 us-ascii ascii cp819 x-cp1252 Windows-1252",
    ),
    "cp1250": ("Příliš žluťoučký kůň úpěl ďábelské ódy, €5.\n", "windows-1250 x-cp1250"),
    "iso8859_2": ("Zażółć gęślą jaźń, proszę.\n", "iso-8859-2 latin2 csisolatin2 iso88592"),
    "iso8859_3": ("Eĥoŝanĝo ĉiuĵaŭde, ĉiuj ŝatas ĝin.\n", "iso-8859-3"),
    "iso8859_4": ("Šķūņu ļaudis ēd žagarus.\n", "iso-8859-4"),
    "cp1251": (RUSSIAN, "windows-1251 x-cp1251"),
    "koi8_r": (RUSSIAN, "koi8-r koi koi8 koi8_r"),
    "koi8_u": ("Ґанок і їжак під її вікном, є ще щось.\n", "koi8-u koi8-ru"),
    "iso8859_5": (RUSSIAN, "iso-8859-5 cyrillic"),
    "cp866": (RUSSIAN, "ibm866 866"),
    "mac_cyrillic": (RUSSIAN, "x-mac-cyrillic x-mac-ukrainian"),
    "mac_roman": (CAFE.replace("€", ""), "macintosh x-mac-roman mac"),
    "cp1253": ("Η βιβλιοθήκη ανοίγει την Παρασκευή.\n", "windows-1253"),
    "iso8859_7": ("Η βιβλιοθήκη ανοίγει την Παρασκευή.\n", "iso-8859-7 greek sun_eu_greek elot_928"),
    "cp1254": ("Şişli’de ığdır çiçeği “güzel” öğle.\n", "iso-8859-9 latin5 windows-1254"),
    "cp1255": ("הספרייה פתוחה ביום שישי בבוקר.\n", "windows-1255"),
    "iso8859_8": ("הספרייה פתוחה ביום שישי בבוקר.\n", "iso-8859-8 iso-8859-8-i iso-8859-8-e logical visual"),
    "cp1256": ("تفتح المكتبة يوم الجمعة.\n", "windows-1256"),
    "iso8859_6": ("تفتح المكتبة يوم الجمعة.\n", "iso-8859-6 arabic iso-8859-6-i"),
    "cp1257": ("Įlinkdama fechtuotojo špaga sublykčiojusi žūtų.\n", "windows-1257"),
    "cp874": ("ห้องสมุดเปิดวันศุกร์ ราคา €5 “ดี”\n", "tis-620 windows-874 dos-874 iso-8859-11"),
    "cp932": ("図書館は①金曜日に開く㈱。ﾃｽﾄ\n", "shift_jis x-sjis sjis windows-31j ms_kanji"),
    "euc_jp": (JAPANESE, "euc-jp x-euc-jp"),
    "iso2022_jp": (JAPANESE, "iso-2022-jp csiso2022jp"),
    "cp949": ("도서관은 금요일에 엽니다. 똠방각하 펲시콜라\n", "euc-kr ks_c_5601-1987 korean windows-949"),
    "iso2022_kr": ("도서관은 금요일에 엽니다.\n", "iso-2022-kr"),
    "gb18030": ("图书馆星期五开门，價錢是€五。\n", "gb2312 gbk x-gbk gb18030 chinese windows-936"),
    "hz": ("图书馆星期五开门。\n", "hz-gb-2312"),
    "big5hkscs": ("圖書館星期五開門，喺度買嘢。\n", "big5 big5-hkscs x-x-big5 cn-big5 windows-950"),
    "utf_16_le": (RUSSIAN, "utf-16le utf-16 unicode"),
    "utf_7": (RUSSIAN, "utf-7 unicode-1-1-utf-7"),
}
"""Texts in a codec, and the labels by which files declare it (https://encoding.spec.whatwg.org/#names-and-labels)."""

PAIRS = [(codec, label) for codec, (_, labels) in WRITTEN.items() for label in labels.split()]
SEVEN_BITS = {"iso2022_jp", "iso2022_kr", "hz", "utf_16_le", "utf_7"}


@pytest.mark.parametrize("bad", [0, 1, 5])
@pytest.mark.parametrize(("codec", "label"), PAIRS)
def test_a_label_means_what_the_standard_says_whatever_a_few_bytes_are(codec: str, label: str, bad: int) -> None:
    text = WRITTEN[codec][0]
    data = (text * 3).encode(codec)
    if codec not in SEVEN_BITS:  # between lines: 0xFF, which is no character of most codecs
        data = b"\n".join([data, *[b"\xff"] * bad, (text * 3).encode(codec)])
    decoded = decode(data, declared=label)
    assert decoded.startswith(text * 3)
    assert decoded.count(text) == (3 if codec in SEVEN_BITS else 6)


@pytest.mark.parametrize("codec", ["utf_16_le", "utf_16_be"])
def test_utf_16_needs_no_mark(read: Callable[..., DocumentBlocks], codec: str) -> None:
    document = read("a.txt", ("A walrus café.\r\n\r\nIt sleeps.\r\n" * 3).encode(codec))
    assert next(iter(document.blocks)).text == "A walrus café."
    with pytest.raises(Skipped, match="binary"):
        read("a.txt", b"".join(n.to_bytes(2, "little") for n in range(90)))


def test_surrogates_in_utf8_are_damage() -> None:
    found = decode("schön ".encode() * 3 + b"\xed\xa0\x80 end")
    assert found.startswith("schön schön schön ")
    assert found.endswith("end")
    found.encode("utf-8")


def test_lines_end_with_lf_crlf_or_cr_and_with_nothing_else() -> None:
    text = "one\ntwo\r\nthree\rfour\x0cstill four\x0bstill\x1cstill\x85still\u2028still four\n\r\nseven"
    lines = decode(text.encode()).split("\n")
    assert [line.split()[0] if line else "" for line in lines] == ["one", "two", "three", "four", "", "seven"]
    assert "still four" in lines[3]


def test_characters_that_steer_a_terminal_become_spaces_one_for_one() -> None:
    assert clean("a\x1b[31mb\x9bc\x00d\te\nf\x7f") == "a [31mb c d\te\nf "
    assert clean("\ud800x\udfff") == "\ufffdx\ufffd"


def test_gaps_that_are_longer_than_any_margin_are_cut() -> None:
    assert decode(b"a" + b" " * 100_000 + b"b") == "a" + " " * 200 + "b"


PARAGRAPHS = dict(
    line.split("\t") for line in Path(__file__).with_name("paragraphs.txt").read_text("utf-8").splitlines()
)
"""By language."""
TEXTS = [
    *((name, "cp1252") for name in ("french", "portuguese", "spanish", "italian", "german", "swedish", "danish")),
    *((name, "cp1252") for name in ("norwegian", "icelandic", "finnish", "estonian", "dutch", "catalan")),
    *((name, "cp1250") for name in ("czech", "slovak", "polish", "hungarian", "romanian", "croatian")),
    *((name, "cp1257") for name in ("lithuanian", "latvian", "estonian")),
    *((name, "cp1251") for name in ("russian", "ukrainian", "bulgarian")),
    *((name, "iso8859_2") for name in ("czech", "polish")),
    *((name, "cp850") for name in ("german", "spanish", "danish")),
    *((name, "mac_roman") for name in ("german", "french", "italian")),
    *(("japanese", codec) for codec in ("shift_jis", "euc_jp", "iso2022_jp")),
    *((name, codec) for name in ("russian", "bulgarian") for codec in ("cp866", "mac_cyrillic", "iso8859_5", "cp855")),
    ("ukrainian", "koi8_u"),
    ("korean", "iso2022_kr"),
    ("french", "iso8859_15"),
    ("turkish", "cp1254"),
    ("russian", "koi8_r"),
    ("greek", "cp1253"),
    ("hebrew", "cp1255"),
    ("arabic", "cp1256"),
    ("thai", "cp874"),
    ("chinese", "gb18030"),
    ("taiwanese", "big5"),
    ("korean", "euc_kr"),
]


@pytest.mark.parametrize("length", ["a line", "a paragraph", "a page"])
@pytest.mark.parametrize(("language", "codec"), TEXTS)
def test_a_text_is_read_in_the_encoding_it_was_written_in(language: str, codec: str, length: str) -> None:
    paragraph = PARAGRAPHS[language]
    text = {"a line": paragraph[:160], "a paragraph": paragraph, "a page": "\n".join([paragraph] * 12)}[length]
    assert decode(text.encode(codec)) == text


@pytest.mark.parametrize(
    ("text", "codecs"),
    [
        ("東京の桜は三月に咲く。", ("cp932", "euc_jp", "iso2022_jp")),
        ("会議は水曜日です", ("cp932", "euc_jp", "iso2022_jp")),
        ("Договор аренды квартиры", ("cp1251", "koi8_r", "cp866", "iso8859_5")),
        ("Привет, как дела? Встреча в среду.", ("cp1251", "koi8_r", "cp866", "iso8859_5")),
        ("Акт приёмки работ № 5", ("cp1251", "cp866", "iso8859_5")),
        ("הפגישה ביום רביעי", ("cp1255",)),
    ],
)
def test_a_few_words_are_enough(text: str, codecs: tuple[str, ...]) -> None:
    assert {codec: decode(text.encode(codec)) for codec in codecs} == dict.fromkeys(codecs, text)


@pytest.mark.parametrize(
    "text",
    [
        "Price: £20",
        "20 €",
        "25 °C ± 2 µm, x² + 1½",
        "naïve",
        "São Paulo",
        "Århus",
        "¿Qué?",
        "città più università",
        "Grâce au gâteau du château",
        "É",
        "ÉTÉ À LA CRÊPERIE",
        "© 2004 Müller & Söhne GmbH",
        "“Quoted” – it’s… »so«, ‚so‘ and „so“",
        "François Müller, Søren Ångström, João, El Niño, Þór, Zoë, Šebek",
        "José Múñoz, Björn Åkesson, Zoë Liège, Þóra Æsir, Søren Øst, João Conceição, Françoise Hôtel, Jürgen Groß",
        "char *größe; // Länge",
        "1º lugar, 2ª vez",
    ],
)
@pytest.mark.parametrize("times", [1, 200])
def test_names_signs_and_quotes_are_latin_1_however_many_there_are(text: str, times: int) -> None:
    text = "\n".join([text] * times)
    assert decode(text.encode("cp1252")) == text


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        ("// счётчик слов\nint x = 5; // количество строк в файле\n", "cp1251"),
        ("int x; // 行数を数える変数です\nint y; // 文字列の長さを返します\n", "shift_jis"),
        ("int x; // 计算文件中的行数\n", "gb18030"),
        ("int x; // πλήθος γραμμών του αρχείου\n", "cp1253"),
    ],
)
def test_another_script_is_recognised_among_latin_letters(text: str, codec: str) -> None:
    assert decode(text.encode(codec)) == text


@given(st.binary(max_size=300))
@example(b"\xff\xfe\x00\xd8")
@example(b"\xef\xbb\xbf")
@example(b"\x1b$B")
def test_any_bytes_decode_to_valid_text(data: bytes) -> None:
    text = decode(data)
    text.encode("utf-8")
    assert not {c for c in text if (ord(c) < 32 or 127 <= ord(c) < 160) and c not in "\n\t"}


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        ("\x1b[1;31mseven\x1b[0mteen\x1b[K", "seventeen"),
        ("\x1b]8;;https://a.org\x1b\\link\x1b]8;;\x07", "link"),
        ("\x1b(B\x1b[?25lplain", "plain"),
        ("b\bbo\bol\bld _\bx", "bold x"),
        ("a\x1b[31", "a [31"),
    ],
)
def test_what_only_a_terminal_shows_is_left_out(log: str, shown: str) -> None:
    assert decode(log.encode()) == shown
