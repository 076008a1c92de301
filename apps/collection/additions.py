"""`Additions`: the items of one call of `Collection.add`, separated into texts and files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from edge.apps.collection.paths import checked, resolved
from edge.apps.documents.decoding import normalised
from edge.errors import InputError

Item = str | os.PathLike[str]
"""A text, or a path."""


@dataclass(frozen=True, slots=True)
class Additions:
    """The items of one call of `Collection.add`.

    Attributes:
        names: the name under which each item is found, in the order of the items.
        texts: text and title, by name.
        files: files and folders, absolute and without symbolic links.
    """

    names: list[str]
    texts: Mapping[str, tuple[str, str]]
    files: Sequence[str]

    @classmethod
    def of(cls, items: Item | Sequence[Item], ids: Sequence[str] | None, title: str | Sequence[str]) -> Additions:
        """Separates the arguments of `Collection.add` into texts and files.

        Raises:
            InputError: the number of ids or titles differs from the number of items, a text or an id is empty, or
                something is not valid Unicode.
        """
        given = listed(items)
        if ids is not None and len(ids) != len(given):
            raise InputError(f"{len(given)} items came with {len(ids)} ids")
        titles = [title] * len(given) if isinstance(title, str) else list(title)
        if len(titles) != len(given):
            raise InputError(f"{len(given)} items came with {len(titles)} titles")
        texts: dict[str, tuple[str, str]] = {}
        files: list[str] = []
        names: list[str] = []
        for i, item in enumerate(given):
            if isinstance(item, str) and not (os.path.isabs(item) and os.path.exists(item)):
                text = checked(item, f"text {i + 1} of {len(given)}")
                names.append(checked(ids[i], f"the id {ids[i]!a}") if ids is not None else text_name(text))
                if not names[-1]:
                    raise InputError(f"the id of text {i + 1} of {len(given)} is empty")
                # Checked before anything is written: a call adds all its items or none.
                if not normalised(text).strip():
                    raise InputError(f"the text {names[-1]!r} is empty")
                texts[names[-1]] = (text, checked(titles[i], f"the title {titles[i]!a}"))
            else:
                names.append(resolved(item))
                files.append(names[-1])
        return cls(names, texts, files)


def listed(items: Item | Sequence[Item]) -> list[Item]:
    """The items as a list, even if there is only one."""
    return [items] if isinstance(items, str | os.PathLike) else list(items)


def text_name(text: str) -> str:
    """A name for a text without an id, made from its content."""
    return "text-" + blake2b(text.encode(), digest_size=8).hexdigest()
