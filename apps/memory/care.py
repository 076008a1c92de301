"""`edge memory check`, `repair`, `backup` and `restore`: commands that check a memory for damage and restore it."""

from __future__ import annotations

from pathlib import Path

from edge.apps.commands.upkeep import Folder, backup_command, check_command, repair_command, restore_command
from edge.apps.console import ProgressBar
from edge.apps.memory.arguments import default_path, existing_memory
from edge.apps.memory.console import path_option
from edge.apps.memory.damage import VERBS, Opener
from edge.apps.memory.damage import check as check_memory
from edge.apps.memory.damage import repair as repair_memory
from edge.apps.memory.memory import Memory
from edge.apps.memory.schema import migrations
from edge.apps.memory.store import DATABASE
from edge.apps.options import Setup
from edge.apps.store.backup import Store
from edge.apps.store.checking import CheckReport
from edge.apps.store.repairing import RepairReport
from edge.budget import MemoryBudget
from edge.config import Config


def _check(path: Folder, setup: Setup, read_data: bool) -> CheckReport:
    """Check the stored memory, of all users, agents and sessions, for damage; exit code 2 if there is any.

    `edge memory repair` brings back everything that can still be read.
    """
    return check_memory(*_opener(path, setup.config()), read_data=read_data)


def _repair(path: Folder, setup: Setup, progress: ProgressBar) -> RepairReport:
    """Make a damaged memory again from everything that can still be read.

    A copy of the damaged files is kept in a folder beside it. Exit code 2 if something stays damaged.
    """
    config = setup.config()
    return repair_memory(*_opener(path, config), budget=MemoryBudget(config.memory), progress=progress)


def _opener(path: Folder, config: Config) -> tuple[Path, Opener]:
    """The folder of an existing memory, and a function that opens the memory for all scopes.

    Raises:
        InputError: there is no memory in the folder.
    """
    place = existing_memory(path and path.absolute())
    return place, lambda: Memory(place, config=config)


def _store(path: Folder) -> Store:
    return Store("memory", (path or default_path()).absolute(), DATABASE, VERBS, len(migrations()))


check = check_command(_check, path_option, VERBS)
repair = repair_command(_repair, path_option, VERBS, "texts")
backup = backup_command(_store, path_option, "the memory, of all users, agents and sessions,")
restore = restore_command(_store, path_option, "a memory")
