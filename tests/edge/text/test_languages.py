"""The language of a text is told by its function words, or not at all."""

from __future__ import annotations

import pytest

from edge.text.languages import language_of

TEXTS = {
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


@pytest.mark.parametrize(("language", "text"), [(language, text) for language in TEXTS for text in TEXTS[language]])
def test_a_language_is_told_by_its_function_words_or_its_script(language: str, text: str) -> None:
    assert language_of(text) == language
