"""An engine that could not be opened, or was forgotten, leaves nothing behind."""

from __future__ import annotations

import gc
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from making.synth import synth
from naive.program import printed
from naive.waiting import PATIENCE_S

from edge.blocks import BlockId
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import CorruptBlock, EdgeError
from edge.models.packed import EMBED, HEAD, PackedModel
from edge.runtimes.embedder import Embedder
from edge.runtimes.reranker import Reranker

FOLDER = Path("/proc/self/fd")


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs")
    synth("tiny-bert", folder / "reranker", "int8").close()
    synth("tiny-bert-embedder", folder / "embedder").close()
    return folder


def damaged(pack: Path, target: Path, find: Callable[[PackedModel], BlockId]) -> Path:
    """A copy of a pack in which a byte of one block is another."""
    shutil.copytree(pack, target)
    with PackedModel.open(target) as model:
        offset = model.file.extents[find(model)].offset
    data = bytearray((target / "model.safetensors").read_bytes())
    data[offset] ^= 255
    (target / "model.safetensors").write_bytes(data)
    return target


@pytest.mark.parametrize("block", [HEAD, EMBED], ids=str)
def test_a_damaged_model_leaves_a_shared_ledger_as_it_was(packs: Path, tmp_path: Path, block: BlockId) -> None:
    path = damaged(packs / "reranker", tmp_path / "damaged", lambda model: block)
    budget = MemoryBudget(4 * 10**9)
    Reranker(packs / "reranker", budget=budget).close()  # libraries stay
    held, caches = dict(budget.holders()), len(budget._caches)
    with pytest.raises(CorruptBlock):
        Reranker(path, budget=budget)
    assert budget.holders() == held
    assert len(budget._caches) == caches


@pytest.mark.skipif(not FOLDER.exists(), reason="counts the descriptors that Linux lists")
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "bogus"}, {"threshold": "x"}, {"memory": "1MB"}, {"memory": "nonsense"}, {"max_tokens": 0},
        {"config": Config(runtime="none")}, {"budget": "small"},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_opened_keeps_no_file_open(packs: Path, options: dict[str, Any]) -> None:
    def refused() -> None:
        budget = {"budget": MemoryBudget(1, part=True)} if "budget" in options else {}
        with pytest.raises(EdgeError):
            Reranker(packs / "reranker", **(options | budget))
        if not {"mode", "threshold"} & set(options):
            with pytest.raises(EdgeError):
                Embedder(packs / "embedder", **(options | budget))

    refused()
    before = len(os.listdir(FOLDER))
    refused()
    assert len(os.listdir(FOLDER)) == before


def test_a_model_that_was_handed_over_stays_open_if_it_cannot_be_used_yet(packs: Path) -> None:
    with PackedModel.open(packs / "reranker") as model:
        with pytest.raises(EdgeError):
            Reranker(model, mode="bogus")  # type: ignore[arg-type]
        with Reranker(model, memory="40GB") as reranker:
            assert reranker.rank("river", ["a river"])


def test_an_engine_that_is_forgotten_leaves_no_thread(packs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.link._shared", {})  # others may have the process's own link open
    before = set(threading.enumerate())
    reranker: Reranker | None = Reranker(packs / "reranker", memory="40GB")
    assert reranker is not None
    reranker.rank("river", ["a river"])
    (lane,) = set(threading.enumerate()) - before
    del reranker
    gc.collect()
    lane.join(PATIENCE_S)
    assert not lane.is_alive()


CYCLES = 20

_CODE = """
import json, sys
from pathlib import Path
from edge import Embedder, MemoryBudget, Reranker
from edge.errors import BudgetExceeded
from edge.resident import ResidentWatch, anonymous_resident, trim_heap

folder, limit, cycles = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
texts = ["The river floods in spring, when the snow melts. " * n for n in range(1, 30)]
left = []
try:
    budget = MemoryBudget(limit)
    with ResidentWatch(0.002) as watch:
        for _ in range(cycles):
            with Reranker(folder / "tiny-bert", budget=budget) as reranker:
                reranker.rank("when does the river flood", texts, top_k=3)
            with Embedder(folder / "tiny-bert-embedder", budget=budget) as embedder:
                embedder.embed(texts)
            trim_heap()
            left.append(anonymous_resident())
    print(json.dumps({"peak": watch.high_water, "left": left, "used": budget.used}))
except BudgetExceeded as error:
    print(json.dumps({"needed": error.needed}))
"""


def run(folder: Path, limit: int, cycles: int) -> dict[str, object]:
    return dict(json.loads(printed(_CODE, str(folder), str(limit), str(cycles))))


def test_engines_opened_again_and_again(tmp_path: Path) -> None:
    for shape in ("tiny-bert", "tiny-bert-embedder"):
        synth(shape, tmp_path / shape).close()
    limit = 32 << 20
    for _ in range(4):  # the first refusal does not know the needs of the second model
        found = run(tmp_path, limit, 1)
        if "needed" not in found:
            break
        limit = int(str(found["needed"]))
    found = run(tmp_path, limit, CYCLES)
    assert "needed" not in found, "what was accepted once is accepted again"
    assert int(str(found["peak"])) <= limit
    left = list(found["left"])  # type: ignore[call-overload]
    assert left[-1] - left[2] < 1 << 20, left
