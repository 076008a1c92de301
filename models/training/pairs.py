"""Training pairs without annotation: the form of a text shows that parts of it belong together.

Sources and rationale: inverse cloze task (Lee et al., "Latent Retrieval", ACL 2019), titles and section
headings as queries, docstrings with their functions (Husain et al., "CodeSearchNet", 2019).
A package is read only if its metadata names a permissive licence; `permissive` decides that.
"""

from __future__ import annotations

import ast
import random
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_SENTENCE = re.compile(r"(?<=[.!?])[\"')\]]?\s+(?=[A-Z0-9\"'(])")
_HEADING = re.compile(r"^#{1,4}\s+(.+?)\s*#*$")
_UNDERLINE = re.compile(r"^([=\-~^\"'*+#])\1{3,}$")
_MARKUP = re.compile(r":\w+:`~?([^`<]+)[^`]*`|``([^`]+)``|`([^`<]+)[^`]*`_?|\[([^\]]+)\]\([^)]*\)|<[^>]+>")
_PERMISSIVE = re.compile(r"\b(mit|bsd|apache|isc|psf|python software foundation|zlib|unlicense|hpnd)\b", re.I)
_COPYLEFT = re.compile(r"\b(a?gpl|lgpl|mpl|gnu|mozilla|cc-by)", re.I)


@dataclass(frozen=True)
class Pair:
    """A query, and the passage that it was taken from or that it names."""

    query: str
    title: str
    text: str


def sentences(text: str) -> list[str]:
    """Splits a text after punctuation that is followed by a capital. Some abbreviations are split wrongly."""
    return [s.strip() for s in _SENTENCE.split(text) if s and s.strip()]


def cloze(title: str, text: str, rng: random.Random, keep: float = 0.1) -> Pair | None:
    """One sentence is the query for the rest of the text. With probability ``keep`` the sentence also stays in the
    text, which teaches exact overlap."""
    parts = sentences(text)
    usable = [n for n, s in enumerate(parts) if 5 <= len(s.split()) <= 40]
    if len(parts) < 3 or not usable:
        return None
    chosen = rng.choice(usable)
    rest = parts if rng.random() < keep else parts[:chosen] + parts[chosen + 1 :]
    return Pair(parts[chosen], title, " ".join(rest))


def sections(markdown: str, low: int = 20, high: int = 150) -> Iterator[tuple[str, str]]:
    """Headings and texts of Markdown or reStructuredText, without code blocks. A text is cut at ``high`` words."""
    heading, body, fenced = "", list[str](), False
    lines = markdown.splitlines()
    for n, line in enumerate([*lines, "# end"]):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
            continue
        match = _HEADING.match(line) if not fenced else None
        following = lines[n + 1].strip() if n + 1 < len(lines) else ""
        ruled = bool(_UNDERLINE.match(following)) and 0 < len(line.strip()) <= len(following) + 2
        if match or ruled:
            words = plain(" ".join(body)).split()
            if heading and len(words) >= low:
                yield heading, " ".join(words[:high])
            heading, body = plain(match.group(1) if match else line), []
        elif not fenced and not _UNDERLINE.match(line.strip()) and not line.lstrip().startswith(".. "):
            body.append(line.strip())


def plain(text: str) -> str:
    """The text without markup, with each run of white space replaced by one blank."""
    return " ".join(_MARKUP.sub(lambda m: next((g for g in m.groups() if g), " "), text).split())


def docstrings(source: str, low: int = 15, high: int = 150) -> Iterator[Pair]:
    """Pairs of a docstring's first sentence and its other sentences. Without others the function's code is used."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    lines = source.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        raw = ast.get_docstring(node)
        if not raw or node.name.startswith(("_", "test")):
            continue
        summary, _, body = raw.partition("\n\n")
        parts = sentences(plain(summary))
        if not parts or not 4 <= len(parts[0].split()) <= 30:
            continue
        rest = " ".join([*parts[1:], plain(body)])
        if len(rest.split()) >= low:
            yield Pair(parts[0], node.name.replace("_", " "), " ".join(rest.split()[:high]))
        elif isinstance(node, ast.FunctionDef) and len(node.body) > 2:
            code = textwrap.dedent("\n".join(lines[node.body[1].lineno - 1 : node.end_lineno]))
            if len(code.split()) >= low:
                yield Pair(parts[0], f"def {node.name}", " ".join(code.split()[:high]))


def permissive(licence: str) -> bool:
    """Whether a licence statement names a permissive licence and no copyleft one."""
    return bool(_PERMISSIVE.search(licence)) and not _COPYLEFT.search(licence)


def licence_of(distribution: metadata.Distribution) -> str:
    """The licence statements in a distribution's metadata: licence expression, short licence field, classifiers."""
    fields = distribution.metadata
    short = [value.split("\n")[0] for key in ("License-Expression", "License") for value in fields.get_all(key) or []]
    said = short + [c for c in fields.get_all("Classifier") or [] if c.startswith("License")]
    return "; ".join(s for s in said if s)


def read_me(distribution: metadata.Distribution) -> str:
    """The long description: the body of the metadata file, after its header."""
    return (distribution.read_text("METADATA") or "").partition("\n\n")[2]


def packages(search: Sequence[Path], rng: random.Random, limit: int) -> tuple[list[Pair], dict[str, str]]:
    """Pairs from installed packages (read-me sections and docstrings), and each package's licence.

    A package gives at most ``limit`` pairs, so that no single style dominates.
    """
    found: list[Pair] = []
    licences: dict[str, str] = {}
    for distribution in metadata.distributions(path=[str(p) for p in search]):
        name, licence = distribution.metadata["Name"], licence_of(distribution)
        if not name or name in licences or not permissive(licence):
            continue
        pairs = [Pair(h, "", t) for h, t in sections(read_me(distribution))]
        for file in distribution.files or []:
            if file.suffix == ".py" and "test" not in str(file).lower():
                pairs += _of_file(Path(str(distribution.locate_file(file))))
        rng.shuffle(pairs)
        if pairs:
            licences[name] = licence
            found += pairs[:limit]
    return found, licences


def tree(directory: Path, rng: random.Random, limit: int) -> list[Pair]:
    """Pairs from a folder of sources and documents, such as the standard library's."""
    found: list[Pair] = []
    for path in sorted(directory.rglob("*")):
        if "test" in str(path.relative_to(directory)).lower() or "site-packages" in path.parts:
            continue
        if path.suffix in {".md", ".rst"}:
            found += [Pair(h, "", t) for h, t in sections(path.read_text(encoding="utf-8", errors="replace"))]
        elif path.suffix == ".py":
            found += _of_file(path)
    rng.shuffle(found)
    return found[:limit]


def _of_file(path: Path) -> list[Pair]:
    try:
        return list(docstrings(path.read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return []
