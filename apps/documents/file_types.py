"""Names of file types that users know: kinds of documents, languages, programs that write a format, suffixes."""

from __future__ import annotations

from edge.apps.documents.registry import KINDS

LANGUAGES: dict[str, str] = {
    "python": "py pyi pyw",
    "javascript": "js mjs cjs jsx",
    "typescript": "ts tsx mts cts",
    "java": "java",
    "c": "c h",
    "cpp": "cpp cc cxx hpp hh hxx inl ino h",
    "csharp": "cs",
    "go": "go",
    "rust": "rs",
    "ruby": "rb",
    "php": "php",
    "kotlin": "kt kts",
    "scala": "scala",
    "swift": "swift",
    "lua": "lua",
    "perl": "pl pm",
    "r": "r",
    "julia": "jl",
    "haskell": "hs lhs",
    "erlang": "erl hrl",
    "elixir": "ex exs",
    "clojure": "clj cljs",
    "fortran": "f f77 f90 f95 f03 for",
    "shell": "sh bash zsh fish",
    "powershell": "ps1 psm1",
    "sql": "sql",
    "css": "css scss sass less",
    "yaml": "yaml yml",
    "toml": "toml",
    "xml": "xml xsd xsl xslt rng",
}
"""Suffixes of each language."""

ALIASES: dict[str, str] = {
    "c++": "cpp", "c#": "csharp", "golang": "go", "bash": "shell", "node": "javascript", "word": "docx",
    "powerpoint": "pptx", "excel": "xlsx", "slides": "pptx odp", "spreadsheet": "xlsx ods csv",
    "jupyter": "notebook", "restructuredtext": "rst", "plain": "text", "email": "mail", "mbox": "mail",
    "picture": "image", "photo": "image",
}  # fmt: skip
"""Other names for kinds, languages or suffixes."""

KIND_NAMES = tuple(dict.fromkeys(kind.name for kind in KINDS))
"""The kinds that `edge status` counts."""

_SUFFIXES = frozenset(suffix[1:] for kind in KINDS for suffix in kind.suffixes)

NAMES = tuple(dict.fromkeys([*KIND_NAMES, *LANGUAGES, *ALIASES, *sorted(_SUFFIXES)]))
"""Every name that is known without a collection."""


def meanings(name: str) -> list[str]:
    """The kinds and suffixes (without dots) that a lower-case word means; empty if the word is unknown."""
    found: list[str] = []
    for word in ALIASES.get(name, name).split():
        if word in KIND_NAMES or word in _SUFFIXES:
            found.append(word)
        found += LANGUAGES.get(word, "").split()
    return list(dict.fromkeys(found))
