"""Folders below a root that lie on another device. A collection keeps their files while the device is not there."""

from __future__ import annotations

import json
import os

from edge.apps.collection.paths import ancestors, contains
from edge.apps.collection.schema import get_setting, set_setting
from edge.apps.store.failures import WrongValue
from edge.ivf.base import Connection

_SETTING = "mounts"


class Mounts:
    def __init__(self, known: frozenset[str]) -> None:
        self.missing = frozenset(mount for mount in known if _is_missing(mount))
        """Mounts whose device was not there when this object was made."""
        self._known = known
        self._seen: dict[str, bool] = {}

    @classmethod
    def read(cls, db: Connection) -> Mounts:
        try:
            stored = json.loads(get_setting(db, _SETTING) or "[]")
        except (ValueError, RecursionError):
            stored = None
        if not isinstance(stored, list) or not all(isinstance(path, str) and os.path.isabs(path) for path in stored):
            raise WrongValue("the setting of mounts is no list of folders")
        return cls(frozenset(stored))

    def see(self, path: str, root: str) -> None:
        for folder in ancestors(path):
            if folder in self._seen or folder == root or not contains(root, folder):
                return
            try:
                self._seen[folder] = device(folder) != device(os.path.dirname(folder))
            except OSError:  # it has gone meanwhile
                self._seen[folder] = False

    def write(self, db: Connection) -> None:
        found = {folder for folder, is_mount in self._seen.items() if is_mount} | self.missing
        found |= {mount for mount in self._known if mount not in self._seen}
        if found != self._known:
            set_setting(db, _SETTING, json.dumps(sorted(found)))


def device(folder: str) -> int:
    return os.stat(folder).st_dev


def _is_missing(mount: str) -> bool:
    try:
        if device(mount) != device(os.path.dirname(mount)):
            return False
        with os.scandir(mount) as entries:
            return next(entries, None) is None
    except (OSError, ValueError):
        return True
