"""Shards are filled and searched as one collection would be, to the bit, and a killed run loses nothing."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from naive.program import output_of
from naive.spread import QUERIES, Small, invented, told
from naive.spread_kills import check, killed_after, started

from edge.apps.cluster.indexing import index
from edge.config import Config
from edge.errors import InputError


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    for number, (name, text) in enumerate(invented(7, 90).items()):
        path = folder / f"{number % 4}" / f"{name}.{'md' if number % 3 else 'txt'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n\n{text}\n")
        os.utime(path, (10**9, 10**9))
    (folder / "empty.txt").touch()
    (folder / "broken.docx").write_bytes(b"PK\x03\x04 no archive")
    return folder


def quiet(_: Any) -> None:
    pass


def test_shards_are_filled_as_one_collection_would_be(small: Callable[..., Small], files: Path) -> None:
    one = small(3)
    readers = one.places.readers(0)
    report = one.whole.index(files)
    done = index(one.cluster, readers, [str(files)], progress=quiet)
    assert done.counts["indexed"] == report.indexed == 90
    assert done.passages == report.chunks
    assert [Path(path).name for path, _ in done.failed] == ["broken.docx"]
    one.check(rerank=False)
    one.check(QUERIES[:1])
    one.check(QUERIES[:2], where="type:markdown", rerank=False)

    again = index(one.cluster, readers, [str(files)], progress=quiet)
    assert (again.counts["unchanged"], again.counts["indexed"], again.passages) == (90, 0, 0)
    changed, gone, *_ = sorted((files / "1").iterdir())
    changed.write_text("# changed\n\nold ice in spring, blue ice\n")
    gone.unlink()
    done = index(one.cluster, readers, [str(files)], progress=quiet)
    assert (done.counts["indexed"], done.counts["removed"], done.counts["unchanged"]) == (1, 1, 88)
    one.whole.index(files)
    one.check(rerank=False)
    with pytest.raises(InputError, match="does not exist"):
        index(one.cluster, readers, [str(files / "nowhere")], progress=quiet)


def test_files_below_a_folder_that_is_not_read_stay(small: Callable[..., Small], files: Path) -> None:
    one = small(2)
    readers = one.places.readers(0)
    index(one.cluster, readers, [str(files)], progress=quiet)
    (files / "2" / ".gitignore").write_text("*.md\n" * 14_000)
    done = index(one.cluster, readers, [str(files)], progress=quiet)
    assert (done.counts["removed"], done.counts["indexed"]) == (0, 0)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("groups", [1, 2])
def test_a_killed_run_goes_on(small: Callable[..., Small], files: Path, groups: int) -> None:
    one = small(2)

    def killed(done: Any) -> None:
        if done.counts["indexed"] >= 32 * groups:
            raise Killed

    with pytest.raises(Killed):
        index(one.cluster, one.places.readers(0), [str(files)], progress=killed)
    asked: list[str] = []

    def counted(reader: Any) -> Any:
        def send(verb: str, head: bytes, raw: bytes) -> Future[tuple[bytes, bytes]]:
            asked.append(verb)
            return reader(verb, head, raw)  # type: ignore[no-any-return]

        return send

    done = index(one.cluster, [counted(reader) for reader in one.places.readers(0)], [str(files)], progress=quiet)
    assert done.counts["unchanged"] >= 32 * groups
    assert done.counts["unchanged"] + done.counts["indexed"] == 90
    assert len(asked) <= 3 - groups + 1
    one.whole.index(files)
    assert [told(hit) for hit in one.cluster.search("old ice", 20).hits] == [
        told(hit) for hit in one.whole.search("old ice", 20)
    ]


def test_the_command_fills_shards(home: Path, files: Path) -> None:
    from edge.apps.cli import edge

    there = ("-c", str(home / "all"), "--cluster", "here")
    output_of(edge, "cluster", "create", *there, "--shard", f"a={home / 'a'}", "--shard", f"b={home / 'b'}")
    assert output_of(edge, "index", *there, str(files)).startswith("1 failed, 90 indexed")
    assert "90 unchanged" in output_of(edge, "index", *there, str(files))
    for words in (["--watch", "--cluster", "here", str(files)], ["--readers", "2", str(files)], there):
        with pytest.raises(InputError, match="--cluster"):
            output_of(edge, "index", *words)


@pytest.mark.parametrize("shards", [1, 2, 4, 8])
@pytest.mark.parametrize("lists", ["flat", "lists"])
def test_shards_are_searched_as_one_collection_would_be(small: Callable[..., Small], shards: int, lists: str) -> None:
    one = small(shards, lists=lists == "lists")
    texts = invented(shards, 220)
    names = list(texts)
    one.add({name: texts[name] for name in names[:150]})
    one.cluster.finish()
    assert (one.share() > 1) == (lists == "lists")
    one.add({name: texts[name] for name in names[150:]})
    one.remove(names[3:120:13])
    one.cluster.publish()
    one.check(rerank=False)
    one.check(rerank=True)
    if lists == "flat":
        one.check(where="type:text", rerank=False)


def test_a_killed_writer_leaves_a_complete_collection(tiny_models: Path, tiny_config: Config, tmp_path: Path) -> None:
    chance = random.Random(4)
    for seed in range(3):
        killed_after(started("write", tmp_path, tiny_models, seed), tmp_path, chance.randint(5, 25), chance)
        check(tmp_path, tiny_config)
