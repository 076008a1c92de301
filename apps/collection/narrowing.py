"""Looking at single paths below a root exactly as a scan of the whole root would, without walking it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Set

from edge.apps.collection.scopes import ancestors, contains


def on_the_way(root: str, paths: Iterable[str]) -> Mapping[str, Set[str]]:
    """For each folder from `root` to one of `paths` (at or below it, none of them below another), the names in it that
    lead there.

    A scan that takes nothing else in these folders comes by the paths, and applies the rules of all folders it passes
    through, as it always does.
    """
    names: dict[str, set[str]] = {}
    for path in paths:
        for folder in ancestors(path):
            if not contains(root, folder):
                break
            found = names.setdefault(folder, set())
            name = os.path.basename(path)
            if name in found:
                break  # so are the folders above
            found.add(name)
            path = folder
    return names
