"""`Document`: a titled text in sections, from which training pairs are made; and the file format for many documents."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, cast


@dataclass(frozen=True)
class Document:
    """One text with a title.

    Attributes:
        domain: the collection that holds the document. The negatives of a query come from its own domain.
        title: the title of the whole document; it may be empty.
        sections: (heading, text) in the order of the document; a heading may be empty.
        entry: whether the text explains its title, as an entry of a dictionary does.
    """

    domain: str
    title: str
    sections: tuple[tuple[str, str], ...]
    entry: bool = False


def write(path: Path, documents: Iterable[Document]) -> int:
    """Write one JSON line per document (`.gz` and `.xz` are compressed), and return the number of documents."""
    count = 0
    with _open(path, "wt") as out:
        for document in documents:
            row = {"d": document.domain, "t": document.title, "s": document.sections, "e": int(document.entry)}
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def read(path: Path) -> Iterator[Document]:
    """The documents of a file that `write` made, in file order."""
    with _open(path, "rt") as lines:
        for line in lines:
            row = json.loads(line)
            yield Document(row["d"], row["t"], tuple((h, t) for h, t in row["s"]), bool(row["e"]))


def _open(path: Path, mode: Literal["rt", "wt"]) -> IO[str]:
    if path.suffix == ".gz":
        return cast(IO[str], gzip.open(path, mode, encoding="utf-8"))
    if path.suffix == ".xz":
        return cast(IO[str], lzma.open(path, mode, encoding="utf-8"))
    return cast(IO[str], path.open(mode, encoding="utf-8"))
