"""Paragraphs in the encodings that files had before UTF-8, each of which must be recognised by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.apps.documents.decoding import decode

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
    assert decode(text.encode(codec)).text == text


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
    assert {codec: decode(text.encode(codec)).text for codec in codecs} == dict.fromkeys(codecs, text)


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
    assert decode(text.encode("cp1252")).text == text


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
    assert decode(text.encode(codec)).text == text
