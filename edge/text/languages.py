"""Words of languages: the names of months and days, and the language of a text by its function words or its script."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

_READ = 600
"""Characters of a text that are looked at."""

_SHARE = 0.1
"""The least share of function words in a text of a language: about a third is usual, and code and lists have fewer."""

_FEW = 8
"""Words of a text in which one function word is enough; in longer ones two different ones are needed."""

_MARKUP = re.compile(r"https?://\S+|www\.\S+|<[^<>]*>")
"""Addresses and tags, whose parts ("com", "a", "em") are function words of some language."""

_WORD = re.compile(r"[^\W\d_]+")

_FUNCTION_WORDS = {
    language: frozenset(words.split())
    for language, words in {
        "en": "the of and to is are was were be what when where who which how why do does did we i you he she it they "
        "my our your his her not with for from on by this that there have has can will should would if at or an "
        "as in a",
        "de": "der die das den dem des ein eine einen einem einer und ist sind war wird werden was wann wo wer wie "
        "welche welcher welches warum ich wir ihr sie er es mein unser nicht mit für von vom zu zum zur auf im "
        "am bei aus nach oder auch noch nur kann soll hat haben man sich dass wenn als in an bis viel viele "
        "heißt",
        "fr": "le la les l un une des du de d et est sont était être que qui quand où combien comment pourquoi quel "
        "quelle quels quelles je j nous vous il elle on mon ma mes notre nos ne n pas avec pour dans sur par au "
        "aux ce c cette ces qu s y a en ou se sa son ses à",
        "es": "el la los las un una unos unas y es son era fue ser que qué cuándo dónde quién cuánto cuánta cuántos "
        "cuántas cómo cuál por yo nosotros mi mis nuestro nuestra no con para del de en al se su sus lo le está "
        "están hay o a si este esta tiene como más",
        "it": "il lo la i gli le l un uno una e è sono era essere che chi quando dove quanto quanta quanti quante come "
        "perché quale quali io noi mio nostro non con per di del della dei delle da dal dalla nel nella in al "
        "alla a si su sul sulla ci o ha d questo questa più se",
        "pt": "o a os as um uma e é são foi ser que quem quando onde quanto quantos como qual eu nós meu nosso não com "
        "para do da dos das de em no na ao se seu sua por está há ou mais este esta",
        "nl": "de het een en is zijn was worden wordt wat wanneer waar wie hoe welke waarom ik wij we je u hij zij "
        "mijn onze niet met voor van naar op in aan bij uit of ook nog maar kan moet heeft hebben dat dit die "
        "als er te om",
    }.items()
}


def language_of(text: str) -> str:
    """The language of a text in Latin letters, such as "de", if it has the most function words of one language. The
    name of the script for a text in other letters, such as "greek". Empty for all others, such as tables and names.

    >>> language_of("Wer putzt die Fenster?"), language_of("dishwasher E15")
    ('de', '')
    """
    words = _WORD.findall(_MARKUP.sub(" ", text[:_READ].lower()))
    scripts = Counter(unicodedata.name(word[0], "").partition(" ")[0].lower() for word in words)
    (script, _) = scripts.most_common(1)[0] if scripts else ("latin", 0)
    if script != "latin":
        return script
    counts = Counter({language: sum(word in known for word in words) for language, known in _FUNCTION_WORDS.items()})
    (best, most), (_, second) = counts.most_common(2)
    # A single letter is an option or a variable as often as a word.
    different = sum(len(word) > 1 for word in _FUNCTION_WORDS[best].intersection(words))
    enough = most >= _SHARE * len(words) and different >= (1 if len(words) <= _FEW else 2)
    return best if most > second and enough else ""
