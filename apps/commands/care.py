"""`edge check`, `repair`, `backup` and `restore`: detecting and mending damage of a collection."""

from __future__ import annotations

from edge.apps.collection.collection import DATABASE
from edge.apps.collection.damage import VERBS, CollectionCare, place_of
from edge.apps.collection.registry import locate
from edge.apps.commands.index import allowed_roots
from edge.apps.commands.upkeep import Folder, backup_command, check_command, repair_command, restore_command
from edge.apps.console import ProgressBar
from edge.apps.options import Setup, collection_option, memory_option
from edge.apps.store import care as store_care
from edge.apps.store.backup import Store
from edge.apps.store.care import CheckReport, RepairReport, checking_budget
from edge.apps.store.planning import INDEXING, retrieval_plan


def _check(collection: Folder, setup: Setup, read_data: bool) -> CheckReport:
    """Check the index for damage; exit code 2 if it is damaged.

    Names the damaged parts and the affected files. Later commands report the damage until `edge repair` mends it.
    """
    config = setup.config()
    path = locate(collection)
    budget = checking_budget(config.memory, path / DATABASE, "chunks")
    return store_care.check(CollectionCare(path, config, budget), read_data=read_data)


def _repair(collection: Folder, setup: Setup, progress: ProgressBar) -> RepairReport:
    """Repair a damaged index: from its readable parts, and from the indexed files.

    Copies of the damaged files are kept in a folder beside the index. Exit code 2 if damage remains.
    """
    config = setup.config()
    path = locate(collection)
    whole = retrieval_plan(
        "the repair", config, embedder=None, reranker=None, rerank=False, candidates=0, writes=True, extra=INDEXING,
        databases=1,
    )  # fmt: skip
    budget = checking_budget(config.memory, path / DATABASE, "chunks", whole)
    care = CollectionCare(path, config, budget, lambda opened: allowed_roots(opened, collection))
    return store_care.repair(care, budget=budget, progress=progress)


def _store(collection: Folder) -> Store:
    return place_of(locate(collection))


check = check_command(_check, collection_option, VERBS, memory_option)
repair = repair_command(_repair, collection_option, VERBS, "passages")
backup = backup_command(_store, collection_option, "the index")
restore = restore_command(_store, collection_option, "an index")
