"""Gathers texts under free licences: ``python -m edge.models.training.gather --out FILE SOURCE...``.

A source is ``KIND:DOMAIN:PATH``; `KINDS` lists the kinds. A Git repository is read at one commit, without a work tree:
its path is ``PATH!FOLDER@COMMIT``. The user is responsible for the licences of the sources. The model card lists the
licences of the texts that the shipped model was trained on.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from xml.etree import ElementTree

from .corpora import load
from .documents import Document, write
from .markup import Sections, folded, html, manual, markdown, xml
from .pairs import docstrings, packages

_LONGEST_FILE = 2_000_000
_MOST_SECTIONS = 40
_DIGITS = {c: n for n, c in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")}
"""Values of the digits in the numbers of a dictionary's index (dictd)."""

_PASSED_OVER = re.compile(r"genindex|search|(^|/)(de|fr|es|ja|ru|it)/")
"""Paths of pages without English prose: indexes, search forms, translations."""


def manuals(domain: str, root: Path) -> Iterator[Document]:
    """Manual pages below a folder of unpacked packages."""
    for path in sorted(root.rglob("man[1-8]/*.gz")):
        if path.is_symlink() or not path.is_file() or not re.search(r"/man/man\d", path.as_posix()):
            continue
        source = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
        title, found = manual(source[:_LONGEST_FILE])
        if title and found:
            yield _document(domain, title, found)


def pages(domain: str, root: Path) -> Iterator[Document]:
    """HTML pages below a folder, without indexes and translations."""
    for path in sorted([*root.rglob("*.html"), *root.rglob("*.html.gz")]):
        if path.is_symlink() or not path.is_file() or _PASSED_OVER.search(path.relative_to(root).as_posix()):
            continue
        raw = path.read_bytes()
        title, found = html((gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8", "replace"))
        if found:
            yield _document(domain, title, found)


def descriptions(domain: str, path: Path) -> Iterator[Document]:
    """Package descriptions from a Translation file of a Debian archive. Of those that begin alike only one is used."""
    seen: set[str] = set()
    for block in path.read_text(encoding="utf-8", errors="replace").split("\n\n"):
        match = re.search(r"^Description(?:-en)?: (.+)\n((?: .*\n?)+)", block, re.M)
        name = re.search(r"^Package: (\S+)", block, re.M)
        if not match or not name:
            continue
        body = folded(" ".join(line.strip() for line in match.group(2).splitlines() if line.strip() != "."))
        opening = body[:80]
        if len(body.split()) >= 15 and opening not in seen:
            seen.add(opening)
            yield Document(domain, f"{name.group(1)}: {match.group(1)}", (("", body),))


def dictionary(domain: str, path: Path) -> Iterator[Document]:
    """A dictionary of the dict protocol: ``NAME.index`` beside ``NAME.dict.dz``."""
    raw = gzip.decompress(path.with_suffix(".dict.dz").read_bytes())
    seen: set[int] = set()
    for line in path.with_suffix(".index").read_text(encoding="utf-8", errors="replace").splitlines():
        parts = line.split("\t")
        if len(parts) < 3 or parts[0].startswith("00-database"):
            continue
        start = _number(parts[1])
        body = raw[start : start + _number(parts[2])].decode("utf-8", "replace")
        text = folded(re.sub(r"[{}]|\[[^\]]{0,40}\]|\d{4}-\d\d-\d\d", "", body))
        if start not in seen and len(text.split()) >= 8:
            seen.add(start)
            head = folded(body.splitlines()[0])
            term = parts[0] if len(head) > 60 else re.split(r" [/\\(]|\\", head)[0]
            yield Document(domain, term, (("", text.removeprefix(term).strip(" ,.;:")),), entry=True)


def _number(text: str) -> int:
    value = 0
    for digit in text:
        value = value * 64 + _DIGITS[digit]
    return value


def repository(domain: str, path: Path) -> Iterator[Document]:
    """Markdown, reStructuredText, CNXML and JATS of a git repository."""
    rest, _, commit = str(path).partition("@")
    place, _, below = rest.partition("!")
    git = ["git", "--git-dir", place]
    listing = subprocess.run(
        [*git, "ls-tree", "-r", "--name-only", commit or "HEAD", *([below] if below else [])],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    names = [n for n in listing.splitlines() if re.search(r"\.(md|rst|cnxml|xml)$", n)]
    asked = "".join(f"{commit or 'HEAD'}:{name}\n" for name in names)
    answer = subprocess.run([*git, "cat-file", "--batch"], check=True, capture_output=True, input=asked.encode()).stdout
    position = 0
    for name in names:
        head, _, _ = answer[position : position + 4096].partition(b"\n")
        size = int(head.split()[-1])
        start = position + len(head) + 1
        source = answer[start : start + size].decode("utf-8", "replace")
        position = start + size + 1
        if size > _LONGEST_FILE:
            continue
        if name.endswith("xml"):
            try:
                title, found, entries = xml(source)
            except ElementTree.ParseError:
                continue
            yield from (Document(domain, term, (("", meaning),), entry=True) for term, meaning in entries)
        else:
            title, found = markdown(source)
        if found:
            yield _document(domain, title or Path(name).stem, found)


def installed(domain: str, path: Path) -> Iterator[Document]:
    """Docstrings and read-me sections of installed Python packages with a permissive licence."""
    for pair in packages([path], random.Random(0), limit=80)[0]:
        yield Document(domain, pair.title, ((pair.query, pair.text),))


def standard_library(domain: str, path: Path) -> Iterator[Document]:
    """Docstrings of the Python files of one folder and its subfolders."""
    for file in sorted(path.rglob("*.py")):
        below = file.relative_to(path)
        if "test" not in below.as_posix() and "site-packages" not in below.parts:
            for pair in docstrings(file.read_text(encoding="utf-8", errors="replace")):
                yield Document(domain, pair.title, ((pair.query, pair.text),))


def judged(domain: str, path: Path) -> Iterator[Document]:
    """The documents of a judged set that training may see. A set without a train split gives none."""
    held = load(path).without_test_documents()
    if held.train:
        for title, text in zip(held.titles, held.texts, strict=True):
            yield Document(domain, title, (("", text),))


KINDS: dict[str, Callable[[str, Path], Iterator[Document]]] = {
    "man": manuals,
    "html": pages,
    "descriptions": descriptions,
    "dict": dictionary,
    "git": repository,
    "packages": installed,
    "python": standard_library,
    "judged": judged,
}


def _document(domain: str, title: str, found: Sections) -> Document:
    kept = [(heading[:120], text[:12_000]) for heading, text in islice(found, _MOST_SECTIONS)]
    return Document(domain, title[:160], tuple(kept))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the documents of all sources to one file, and print the number of documents from each source."""
    parser = argparse.ArgumentParser(prog="edge.models.training.gather", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--characters", type=int, default=2_000_000, help="of one source, as far as whole documents go")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("sources", nargs="+", metavar="KIND:DOMAIN:PATH")
    options = parser.parse_args(arguments)
    found: list[Document] = []
    for source in options.sources:
        kind, domain, path = (*source.split(":", 2), "", "")[:3]
        if kind not in KINDS or not domain or not path:
            parser.error(f"{source!r} is no KIND:DOMAIN:PATH; kinds are {', '.join(KINDS)}")
        documents = list(KINDS[kind](domain, Path(path)))
        random.Random(options.seed).shuffle(documents)
        kept, size = list[Document](), 0
        for document in documents:
            if size < options.characters:
                kept.append(document)
                size += sum(len(t) for _, t in document.sections)
        print(f"{domain}: {len(kept)} of {len(documents)} documents, {size / 1e6:.1f} million characters", flush=True)
        found += kept
    write(options.out, found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
