"""`meaningful`: titles of documents that say something."""

from __future__ import annotations

import re

_PLACEHOLDER = re.compile(
    r"""
    [\W_]*(?:
        anonymous | unknown | none | null | n/?a | title | no[ ]title | unspecified | default | draft | temp | tmp
      | (?:untitled|unbenannt|sans[ ]titre|sin[ ]t[ií]tulo|senza[ ]titolo|namenlos)(?:[ _-]?\w{0,12}[ _-]?\d{0,4})
      | (?:new|neues)?[ ]?(?:document|dokument|documento|presentation|präsentation|slide|folie|workbook|mappe|book
          |sheet|page|seite|scan|scanned[ ]document|image|img|bild|file|template|vorlage)[ _-]?\d{0,6}
      | (?:power ?point|open ?document|word|excel)[ ](?:presentation|präsentation|document|dokument|workbook)
      | \d{1,8}
    )[\W_]*
    """,
    re.IGNORECASE | re.VERBOSE,
)
_PROGRAM = re.compile(
    r"(?:microsoft|openoffice|libreoffice|adobe|corel|quarkxpress|pagemaker)\b[\w .®™-]{0,40}[ ]-[ ].*"
    r"|tex output .*|(?:microsoft|adobe|apple)[ ]\w{1,12}"
    r"|.*\.(?:docx?|dotx?|pptx?|xlsx?|odt|odp|ods|rtf|txt|tex|dvi|ps|eps|indd|qxd|pmd|pub|wpd|html?|pdf|p65|fm)",
    re.IGNORECASE | re.DOTALL,
)
"""Titles that programs leave when printing: the program's name, or the name of the open file."""


def meaningful(title: str) -> str:
    """The title unchanged, or an empty text if it is a placeholder, a program's name or a file's name.

    >>> meaningful("(anonymous)"), meaningful("Microsoft Word - x.doc"), meaningful("Old ice")
    ('', '', 'Old ice')
    """
    if not any(map(str.isalnum, title)) or _PLACEHOLDER.fullmatch(title) or _PROGRAM.fullmatch(title):
        return ""
    return title
