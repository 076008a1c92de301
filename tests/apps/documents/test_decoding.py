from __future__ import annotations

import codecs

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge.apps.documents.decoding import clean, decode

RUSSIAN = "Река выходит из берегов весной, когда в горах тает снег.\nДороги тогда непроходимы.\n"
GERMAN = "Der Fluß tritt im Frühjahr über die Ufer.\nDie Straße ist dann gesperrt, natürlich für länger.\n"
JAPANESE = "川は春に氾濫します。\n山の雪が溶けるからです。道は通れなくなります。\n"


@pytest.mark.parametrize(
    ("mark", "codec", "name"),
    [
        (codecs.BOM_UTF8, "utf-8", "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le", "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16-be", "utf-16"),
        (codecs.BOM_UTF32_LE, "utf-32-le", "utf-32"),
        (codecs.BOM_UTF32_BE, "utf-32-be", "utf-32"),
    ],
)
def test_a_byte_order_mark_decides(mark: bytes, codec: str, name: str) -> None:
    found = decode(mark + GERMAN.encode(codec))
    assert (found.text, found.encoding) == (GERMAN, name)


@pytest.mark.parametrize(
    ("text", "codec"), [(GERMAN, "cp1252"), (RUSSIAN, "cp1251"), (RUSSIAN, "koi8_r"), (JAPANESE, "shift_jis")]
)
def test_legacy_encodings_are_recognised(text: str, codec: str) -> None:
    assert decode((text * 4).encode(codec)).text == text * 4


def test_text_that_is_ascii_for_long_is_judged_by_the_lines_that_are_not() -> None:
    plain = "Plain words only, line after line.\n" * 5000
    assert decode((plain + RUSSIAN * 3).encode("cp1251")).text == plain + RUSSIAN * 3


def test_what_a_file_declares_is_believed_where_utf8_fails() -> None:
    data = "źródło\n".encode("iso8859_2")
    assert decode(data, declared="ISO-8859-2").text == "źródło\n"
    assert decode("źródło".encode(), declared="ISO-8859-2").text == "źródło"


@pytest.mark.parametrize(
    "name", ["punycode", "unicode_escape", "utf-7", "rot13", "zlib", "no-such-codec", "x" * 500, "\0"]
)
def test_a_file_cannot_choose_a_codec_that_is_no_text_encoding(name: str) -> None:
    assert decode(b"caf\xe9 au lait, deux caf\xe9s", declared=name).text == "café au lait, deux cafés"


def test_a_damaged_byte_does_not_turn_utf8_into_something_else() -> None:
    found = decode(RUSSIAN.encode() + b"\xff" + RUSSIAN.encode())
    assert (found.encoding, found.text) == ("utf-8", RUSSIAN + "\ufffd" + RUSSIAN)


def test_surrogates_in_utf8_are_damage() -> None:
    found = decode("schön ".encode() * 3 + b"\xed\xa0\x80 end")
    assert found.encoding == "utf-8"
    assert found.text.endswith("end")
    found.text.encode("utf-8")


def test_lines_end_with_lf_crlf_or_cr_and_with_nothing_else() -> None:
    text = "one\ntwo\r\nthree\rfour\x0cstill four\x0bstill\x1cstill\x85still\u2028still four\n\r\nseven"
    lines = decode(text.encode()).text.split("\n")
    assert [line.split()[0] if line else "" for line in lines] == ["one", "two", "three", "four", "", "seven"]
    assert "still four" in lines[3]


def test_characters_that_steer_a_terminal_become_spaces_one_for_one() -> None:
    assert clean("a\x1b[31mb\x9bc\x00d\te\nf\x7f") == "a [31mb c d\te\nf "
    assert clean("\ud800x\udfff") == "\ufffdx\ufffd"


def test_gaps_that_are_longer_than_any_margin_are_cut() -> None:
    assert decode(b"a" + b" " * 100_000 + b"b").text == "a" + " " * 200 + "b"


@given(st.binary(max_size=300))
@example(b"\xff\xfe\x00\xd8")
@example(b"\xef\xbb\xbf")
@example(b"\x1b$B")
def test_any_bytes_decode_to_valid_text(data: bytes) -> None:
    text = decode(data).text
    text.encode("utf-8")
    assert not {c for c in text if (ord(c) < 32 or 127 <= ord(c) < 160) and c not in "\n\t"}


@given(st.text(st.characters(codec="utf-8"), max_size=200))
def test_valid_utf8_keeps_every_visible_character(text: str) -> None:
    expected = clean(text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"))
    assert decode(text.encode()).text == expected
