"""Control characters, languages, expected tokens and sentences of texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import edge.models
from edge.apps.documents.decoding import clean
from edge.models.registry import DEFAULT_RERANKER
from edge.text.control_characters import escaped
from edge.text.languages import language_of
from edge.text.sentences import boundaries, sentences, spans
from edge.text.tokens import expected_tokens, fit, most_tokens


@pytest.mark.parametrize(
    ("name", "on_the_terminal"),
    [
        ("/a/plain é 日本.txt", "/a/plain é 日本.txt"),
        ("\x1b]0;title\x07red\x1b[31m", "\\u001b]0;title\\u0007red\\u001b[31m"),
        ("two\nlines\tand\rmore", "two\\nlines\\tand\\rmore"),
        ("\x9b31m\x7f\x00", "\\u009b31m\\u007f\\u0000"),
        ("half \udcff", "half \\udcff"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_what_steers_a_terminal_is_escaped(name: str, on_the_terminal: str) -> None:
    assert escaped(name) == on_the_terminal


@given(st.text(st.characters() | st.characters(max_codepoint=160)))
def test_what_is_shown_is_one_clean_line(name: str) -> None:
    text = escaped(name)
    assert clean(text) == text
    assert "\n" not in text
    assert "\t" not in text


OF_LANGUAGES = {
    "en": ["Where is the key?", "The rent of the garage is due on 1 April.", "do we pay on Mondays"],
    "de": [
        "Wer putzt die Fenster?",
        "Die Miete für die Garage ist am 1. April fällig.",
        "Wie viele Eier kommen hinein?",
    ],
    "fr": ["Où est la clé ?", "Le loyer du garage est dû le 1er avril.", "Combien d'œufs faut-il ?"],
    "es": ["¿Dónde está la llave?", "El alquiler del garaje se paga el 1 de abril.", "¿Cuántos huevos lleva?"],
    "it": ["Dov'è la chiave della cantina?", "L'affitto del garage si paga il primo aprile.", "Quante uova ci vanno?"],
    "pt": ["Onde está a chave da adega?", "O aluguel da garagem é pago no dia 1 de abril.", "Quanto custa um ovo?"],
    "nl": [
        "Waar is de sleutel van het huis?",
        "De huur van de garage wordt op 1 april betaald.",
        "Hoe heet het meisje?",
    ],
    "greek": ["Πού είναι το κλειδί;"],
    "cyrillic": ["Где ключ от подвала?"],
    "": [
        "",
        "E15 0800 555",
        "Korvo D300",
        "name,price\nHalden,412\n",
        "dishwasher error E15",
        '<p align="center"><a href="https://example.com/a"><em>Image</em></a></p>',
        "- Go: https://github.com/example/one\n- C: https://github.com/example/two",
        "tar -zcf - docs/ | du -sb docs/ | cut -f 1 > backup.tgz && ls -d s",
        "    real    0m3.458s\n    user    0m0.274s\n    sys     0m3.325s",
    ],
}


@pytest.mark.parametrize(
    ("language", "text"), [(language, text) for language in OF_LANGUAGES for text in OF_LANGUAGES[language]]
)
def test_a_language_is_told_by_its_function_words_or_its_script(language: str, text: str) -> None:
    assert language_of(text) == language


TEXTS = (
    ("I moved to Trondheim in 2024, because the rent was 900 euros.", 24),
    ("8 May 2023: Wow, that's great! My sister and I went hiking last weekend, and saw an amazing sunset.", 34),
    ("Ich habe den Golf verkauft und fahre jetzt einen Passat; die Übergabe war am 3. Mai.", 33),
    ("Nous avons déménagé à Grenoble l'été dernier, près de l'école des enfants.", 35),
    ("Mi hermana dejó el trabajo en el hospital y ahora estudia en Sevilla.", 25),
    ("Dopo il terremoto abbiamo ricostruito la cucina e ridipinto le finestre.", 26),
    ("def most_tokens(text: str) -> int:\n    return sum(_count(match) for match in _PIECES.finditer(text))", 36),
    ("| queries | 12 of 60 | 7 of 30 |\n|---|---|---|", 26),
    ("Call +47 912 34 567 before 2024-05-08T13:45:10Z, order 8841023.", 48),
    ("Я живу в Осло и работаю учителем.", 37), ("我住在奥斯陆，在银行工作。", 27), ("أعيش في أوسلو منذ ثلاث سنوات", 31),
    ("🙂👨‍👩‍👧 see you there!! 🎉🎉🎉", 33), ("THE MEETING IS ON MONDAY", 9), ("xkqzjwv rstlnbc", 12),
    ("6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b", 57), ("a    b\n\n\n\tc", 8),
    ("https://example.org/a/b?c=d&e=f#g", 21),
)  # fmt: skip
"""Texts with the most tokens that one of the tokenizers of docs/decisions/search.md makes of them."""


def tokens(text: str) -> int:
    """The tokens of a text in the vocabulary of the default reranker."""
    from tokenizers import Tokenizer

    bundled = Path(edge.models.__file__).parent / "bundled" / DEFAULT_RERANKER
    tokenizer = Tokenizer.from_file(str(bundled / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize(("text", "most"), TEXTS)
def test_no_tokenizer_makes_more(text: str, most: int) -> None:
    assert tokens(text) <= most_tokens(expected_tokens(text))
    assert most <= most_tokens(expected_tokens(text))


def test_the_bound_is_near_for_many_texts() -> None:
    """What texts have more and less than expected evens out."""
    many = [(text, most) for text, most in TEXTS[:6] for _ in range(5)]
    found = most_tokens(sum(expected_tokens(text) for text, _ in many))
    assert sum(most for _, most in many) <= found <= 1.4 * sum(most for _, most in many)
    assert found <= sum(most_tokens(expected_tokens(text)) for text, _ in many) / 1.1
    prose = "The river floods the old mill every spring, and nobody has moved the grain to the upper floor yet."
    assert most_tokens(10 * expected_tokens(prose)) <= 1.5 * tokens(" ".join([prose] * 10))
    assert expected_tokens("river mill") < expected_tokens("river 1234")


def test_what_fits_is_taken_best_first() -> None:
    least = most_tokens(11)
    assert fit([5, 20, 5, 1], least) == [True, False, True, True]
    assert fit([5, 20, 5, 2], least) == [True, False, True, False]
    assert fit([], 1) == []
    assert fit([2], 1) == [False]
    assert most_tokens(expected_tokens("")) == 0 < most_tokens(expected_tokens("a"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ('He said "go." Then he went.', ['He said "go."', "Then he went."]),
        ("Dr. J. Smith, i.e. he, came at 3.5 km. It rained.", ["Dr. J. Smith, i.e. he, came at 3.5 km.", "It rained."]),
        (
            "Die Fahrt ist vom 16. bis 20. Juni. Er kam als 3. ins Ziel.",
            ["Die Fahrt ist vom 16. bis 20. Juni.", "Er kam als 3. ins Ziel."],
        ),
        (
            "See Sect. 4 for it. It has 12. Others have more.",
            ["See Sect. 4 for it.", "It has 12.", "Others have more."],
        ),
        ("A heading\n\nA text\nover lines.", ["A heading", "A text over lines."]),
        ("これは一文。次の文！", ["これは一文。", "次の文！"]),
        ("...", []),
        ("", []),
        ("See e.g.\n\nthe next part.", ["See e.g.", "the next part."]),
        ('"Why?" she asked. Nobody knew.', ['"Why?" she asked.', "Nobody knew."]),
        (
            "Картофель сажают в мае. Ключ лежит, т. е. снаружи.",
            ["Картофель сажают в мае.", "Ключ лежит, т. е. снаружи."],
        ),
        ("Élan dit «non.» Öl brennt!", ["Élan dit «non.»", "Öl brennt!"]),
        (
            "Flour, salt etc. Then bake it, e.g. at 200 degrees.",
            ["Flour, salt etc.", "Then bake it, e.g. at 200 degrees."],
        ),
        ("It is kept at 23. Swim there.", ["It is kept at 23.", "Swim there."]),
        ("Am 12. Juni war es kalt.\n3. Wasser holen", ["Am 12. Juni war es kalt.", "3. Wasser holen"]),
        ("Is it? No. It is no. 5 of them.", ["Is it?", "No.", "It is no. 5 of them."]),
        ("The operator ? is short. (Really.) Yes", ["The operator ? is short.", "(Really.)", "Yes"]),
        ("Item (a.) stays. Then **bold.** Then more", ["Item (a.) stays.", "Then **bold.**", "Then more"]),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@given(st.text(alphabet='aB1. !?\n。")*', max_size=60))
def test_sentences_stand_where_they_are_said_to(text: str) -> None:
    found = [text[start:end] for start, end in spans(text)]
    assert [" ".join(part.split()) for part in found] == sentences(text)
    assert all(part == part.strip() for part in found)
    assert [char for part in found for char in part if char.isalnum()] == [char for char in text if char.isalnum()]
    last = 0
    for end, begin in boundaries(text):
        assert last <= end <= begin
        assert not text[end:begin].strip(), "only white space lies between a sentence and the next"
        last = begin
