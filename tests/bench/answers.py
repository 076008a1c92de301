"""A set of documents, statements and memories, and how an answer is compared with a known one."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

FOLDER = Path(__file__).parent / "answers_set"
HALVES = ("choose", "judge")
"""Rules and thresholds are chosen on one half, and judged on the other."""

_HIDDEN = ".txt"
"""A suffix added to Python files of the set, so that no tool takes them for files of this project."""


def copy_documents(folder: Path) -> Path:
    """Copies the set's documents into a new folder under `folder`, and returns it."""
    target = folder / "documents"
    shutil.copytree(FOLDER / "documents", target)
    for path in target.rglob(f"*.py{_HIDDEN}"):
        path.rename(path.with_suffix(""))
    return target


def holds(text: str, wanted: str) -> bool:
    """Whether a text holds a phrase as whole words, regardless of case and white space.

    >>> holds("Within SIX\\nweeks", "six weeks"), holds("It costs 145 euros.", "45 euros"), holds("`KEEP=5`", "KEEP=5")
    (True, False, True)
    """
    phrase = r"\s+".join(re.escape(word) for word in wanted.casefold().split())
    return re.search(rf"(?<!\w){phrase}(?!\w)", " ".join(text.casefold().split())) is not None
