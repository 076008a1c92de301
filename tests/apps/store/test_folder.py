"""A folder holds one collection or one memory: maintenance of the one would remove the segments of the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.apps.collection.collection import DATABASE as COLLECTION
from edge.apps.collection.collection import Collection
from edge.apps.memory.damage import VERBS
from edge.apps.memory.memory import Memory
from edge.apps.memory.schema import migrations
from edge.apps.memory.store import DATABASE as MEMORY
from edge.apps.store.backup import Store, back_up, restore
from edge.apps.store.folder import claim
from edge.errors import InputError


def test_the_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    Collection(tmp_path / "c", memory="10GB").close()
    Memory(tmp_path / "m", memory="10GB").close()
    with pytest.raises(InputError, match="is the folder of a memory; name another one"):
        Collection(tmp_path / "m", memory="10GB")
    with pytest.raises(InputError, match="is the folder of a collection; name another one"):
        Memory(tmp_path / "c", memory="10GB")
    back_up(Store("memory", tmp_path / "m", MEMORY, VERBS, len(migrations())), tmp_path / "saved")
    with pytest.raises(InputError, match="is the folder of a collection"):
        restore(Store("memory", tmp_path / "c", MEMORY, VERBS, len(migrations())), tmp_path / "saved", force=True)
    assert not (tmp_path / "m" / COLLECTION).exists()
    assert not (tmp_path / "c" / MEMORY).exists()


def test_what_is_there_already_is_opened(tmp_path: Path) -> None:
    """Both may lie in one folder since before this was refused."""
    for name in (COLLECTION, MEMORY):
        (tmp_path / name).touch()
    for name in (COLLECTION, MEMORY):
        claim(tmp_path, name)
