"""Readers beside a writer: every search sees one committed state, and none waits for the writer or fails."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge.apps.collection.collection import Collection

MARK = re.compile(r"v(\d+)")


def test_searches_see_whole_states_while_files_change(
    collection: Collection, folder: Any, consistent: Callable[[Collection], None]
) -> None:
    def write(version: int) -> None:
        for name in ("a", "b", "c"):
            paragraph = f"The river of {name} in version v{version} floods the valley. " * 30
            folder.write(f"{name}.md", f"# {name}\n\n{paragraph}")

    write(0)
    collection.index(folder.path)
    stop = threading.Event()
    errors: list[BaseException] = []
    searches = 0

    def read(rerank: bool) -> None:
        nonlocal searches
        try:
            while not stop.is_set():
                hits = collection.search("river valley", 10, rerank=rerank)
                assert hits
                for path in {hit.path for hit in hits}:
                    versions = {v for hit in hits if hit.path == path for v in MARK.findall(hit.text)}
                    assert len(versions) == 1, (Path(path).name, versions)
                searches += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(rerank,)) for rerank in (False, False, True)]
    for thread in threads:
        thread.start()
    for version in range(1, 6):
        write(version)
        assert collection.index(folder.path).indexed == 3
    collection.delete(folder.path / "c.md")
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert searches >= 3
    consistent(collection)


def test_two_collections_on_one_directory(make: Callable[..., Collection], small: Any) -> None:
    """As two processes would: each its own connections, caches and snapshots."""
    writer, reader = make(), make(read_only=False)
    writer.index(small.path)
    assert len(reader.files()) == 3
    first = {hit.path for hit in reader.search("river", 5)}
    small.write("new.txt", "A new river.")
    writer.index(small.path)
    assert {hit.path for hit in reader.search("river", 5)} == first | {str(small.path / "new.txt")}
    reader.delete(small.path / "new.txt")
    assert {hit.path for hit in writer.search("river", 5)} == first
