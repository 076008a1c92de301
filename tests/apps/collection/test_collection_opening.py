"""Opening collections: models, limits, readers, status."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from apsw import Connection

from edge.apps.collection.collection import Collection
from edge.apps.collection.schema import set_setting
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import BudgetExceeded, InputError, ModelError, StorageError
from edge.models.evidence import FILE, RESULT_SIGNALS, Evidence, Logistic, log_odds, results_name, save

Make = Callable[..., Collection]
Check = Callable[[Collection], None]


def test_without_reranking_the_reranker_stays_closed(make: Make, small: Any, tiny_config: Config) -> None:
    make().index(small.path)
    reader = make(config=dataclasses.replace(tiny_config, reranker="absent"), read_only=True)
    hits = reader.search("river", 3, rerank=False)
    assert hits[0].stages.reranker is None
    assert hits[0].stages.fused_rank == 1
    with pytest.raises(ModelError, match="absent"):
        reader.search("river", 3)


def test_stages_tell_how_a_hit_came_about(collection: Collection, small: Any) -> None:
    collection.index(small.path)
    hits = collection.search("river flood", 3)
    hit = next(hit for hit in hits if hit.path.endswith("rivers.md"))
    assert hit.stages.lexical_rank == 1
    assert hit.stages.vector_rank in (1, 2, 3)
    assert hit.stages.reranker is not None
    assert 0 <= hit.stages.reranker <= 1
    fused = [hit.stages.fused_rank for hit in collection.search("river flood", 3, rerank=False)]
    assert fused == [1, 2, 3]


def test_a_fitted_model_makes_blended_scores_probabilities(collection: Collection, small: Any) -> None:
    """The order stays, and what was fitted for other weights has no effect."""
    collection.index(small.path)
    blended = collection.search("river flood", 3)
    assert [hit.score for hit in blended] == [hit.stages.blend for hit in blended], "nothing is fitted"
    packed, name = collection.reranker.model, results_name(collection.embedder.model.name)
    fitted = Evidence(RESULT_SIGNALS, Logistic((2.0, -1.0, 0.5), (0.0, 0.0), (1.0, 1.0)), 0.0, "any", 1)
    save(SimpleNamespace(path=packed.path, fingerprint="other weights"), {name: fitted})  # type: ignore[arg-type]
    assert collection.search("river flood", 3) == blended
    save(packed, {name: fitted})
    try:
        hits = collection.search("river flood", 3)
    finally:
        (packed.path / FILE).unlink()
    assert [hit.id for hit in hits] == [hit.id for hit in blended]
    best, second, _ = (log_odds(hit.stages.blend or 0.0) for hit in hits)
    assert log_odds(hits[1].score) == pytest.approx(2 * second - best + 0.5)
    assert hits[0].relevance == hits[0].score > hits[1].score


def test_the_embedder_cannot_be_changed(make: Make, small: Any, tiny_config: Config, model_folder: Path) -> None:
    make().index(small.path)
    other = make(embedder="other-embedder")
    with pytest.raises(ModelError, match=r"embedded with .*, and vectors of two models cannot be compared"):
        other.search("river")
    with pytest.raises(ModelError, match="cannot be compared"):
        other.add("a text")
    # Without a choice it is the collection's own, with any default.
    own = make(config=dataclasses.replace(tiny_config, embedder=""))
    assert own.search("river")


def test_a_collection_without_passages_takes_any_embedder(make: Make, small: Any, model_folder: Path) -> None:
    first = make()
    with pytest.raises(InputError, match="is empty"):
        first.add(" ")
    other = make(embedder="other-embedder")
    assert other.index(small.path).indexed == 3
    assert other.search("river")
    with pytest.raises(ModelError, match="another build"):
        make().search("river")


def test_a_missing_embedder_is_named_with_the_command_that_gets_it(make: Make, small: Any, tiny_config: Config) -> None:
    collection = make(config=dataclasses.replace(tiny_config, embedder=""))
    with pytest.raises(ModelError, match="edge models pull all-MiniLM-L6-v2"):
        collection.index(small.path)
    assert collection.files() == []


def test_a_collection_that_is_not_there_cannot_be_read(make: Make, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"there is no collection in .*; `edge index DIR` makes one"):
        make("absent", read_only=True)
    assert not (tmp_path / "absent").exists()


def test_a_reader_changes_nothing(make: Make, small: Any) -> None:
    make().index(small.path)
    reader = make(read_only=True)
    assert reader.search("river")
    assert reader.status().indexed == 3
    with pytest.raises(StorageError):
        reader.index(small.path)


def test_a_newer_collection_is_refused(make: Make, tmp_path: Path) -> None:
    make().close()
    db = Connection(str(tmp_path / "collection" / "edge.db"))
    db.execute("PRAGMA user_version = 1000")
    db.close()
    with pytest.raises(StorageError, match="newer version of edge-rag"):
        make()


def test_status_and_files(collection: Collection, small: Any) -> None:
    collection.index(small.path)
    status = collection.status()
    assert status.indexed == 3
    assert dict(status.kinds) == {"markdown": 2, "text": 1}
    assert [Path(file.path).name for file in status.skipped] == ["picture.bin"]
    assert status.chunks == 3
    assert list(status.roots) == [str(small.path)]
    assert status.embedder is not None
    assert status.vectors is not None
    assert status.vectors.rows == 3
    assert [file.chunks for file in collection.files()] == [1, 1, 1]
    assert [file.kind for file in collection.files(["path:*.txt"])] == ["text"]


def test_compacting_keeps_what_is_there(collection: Collection, small: Any, consistent: Check) -> None:
    collection.index(small.path)
    collection.delete(small.path / "ice.txt")
    before = [(hit.path, hit.id) for hit in collection.search("river", 5)]
    collection.compact()
    assert [(hit.path, hit.id) for hit in collection.search("river", 5)] == before
    consistent(collection)


def test_everything_is_given_back(make: Make, small: Any) -> None:
    budget = MemoryBudget(10**11, baseline=0)
    collection = make(budget=budget)
    collection.index(small.path)
    collection.search("river")
    held = budget.holders()
    assert {"SQLite", "headroom"} <= set(held)
    collection.close()
    assert set(budget.holders()) <= {"libraries"}, budget.holders()  # modules stay


def test_a_limit_that_cannot_work_is_refused(make: Make, small: Any) -> None:
    make().index(small.path)
    with pytest.raises(BudgetExceeded, match="smallest"):
        make(budget=MemoryBudget(20_000_000, baseline=0)).search("river")


def test_a_limit_that_is_named_works_or_names_one_that_does_before_a_file_is_read(make: Make, small: Any) -> None:
    limits, reason = [20_000_000], ""
    for attempt in range(4):
        collection = make(f"attempt {attempt}", budget=MemoryBudget(limits[-1], baseline=0))
        try:
            report = collection.index(small.path)
            break
        except BudgetExceeded as error:
            limits.append(error.needed)
            reason = str(error)
        assert collection.status().indexed == 0
    assert report.indexed == 3
    assert limits == sorted(set(limits))
    assert "reading files while others are embedded" in reason


def test_both_models_need_not_fit_at_once(make: Make, small: Any) -> None:
    """Memory for one model at a time is enough: the other one makes room."""
    collection = make(budget=(wide := MemoryBudget(10**11, baseline=0)))
    collection.index(small.path)
    collection.close()
    reader = make(budget=wide, read_only=True)
    reader.search("river", rerank=False)
    reader.vectors, reader.embedder  # noqa: B018
    alone = wide.used
    reader.rerank("river", reader.candidates("river"))
    both = wide.used
    reader.close()
    narrow = MemoryBudget(both - (both - alone) // 32, baseline=0)
    tight = make(budget=narrow, read_only=True)
    expected = [hit.id for hit in make(read_only=True).search("river")]
    assert [hit.id for hit in tight.search("river")] == expected
    assert [hit.id for hit in tight.search("river")] == expected


def test_an_embedder_named_by_a_path_is_found_from_elsewhere(
    make: Make, small: Any, tiny_config: Config, model_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = dataclasses.replace(tiny_config, embedder="", models_dir=str(tmp_path / "empty"))
    monkeypatch.chdir(model_folder.parent)
    make(config=own, embedder=f"{model_folder.name}/tiny-embedder").index(small.path)
    monkeypatch.chdir(tmp_path)
    reader = make(config=own, read_only=True)
    assert reader.search("river", rerank=False)
    embedder = reader.status().embedder
    assert embedder is not None
    assert embedder.source == str((model_folder / "tiny-embedder").resolve())
    make("named").index(small.path)
    named = make("named").status().embedder
    assert named is not None
    assert named.source == "tiny-embedder"


@pytest.mark.parametrize("named", ["by its path", "by a name that is a folder here"])
def test_a_projects_collection_does_not_choose_a_path_to_a_model(
    make: Make, tmp_path: Path, tiny_config: Config, model_folder: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """It may have come with a cloned folder, and the model with it."""
    shutil.copytree(model_folder / "tiny-embedder", tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    own = dataclasses.replace(tiny_config, embedder="")
    for name in (".edge", "mine"):
        with make(name, embedder=str(tmp_path / "elsewhere")) as collection:
            collection.add("A river floods.", ids=["river"])
            if named != "by its path":
                identity = collection.identity
                assert identity is not None
                with collection.database.write() as db:
                    set_setting(db, "embedder", dataclasses.replace(identity, source="elsewhere").to_json())
        with make(name, config=own, read_only=True) as collection:
            if name == "mine":
                assert collection.search("river", rerank=False)
            else:
                with pytest.raises(ModelError, match=r"by a path, .* may have come with the folder: name it with"):
                    collection.search("river", rerank=False)
        with make(name, config=own, embedder=str(tmp_path / "elsewhere"), read_only=True) as collection:
            assert collection.search("river", rerank=False)
