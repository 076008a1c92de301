"""Engines that are opened and closed again and again stay below the smallest limit that was accepted."""

from __future__ import annotations

import json
from pathlib import Path

from making.synth import synth
from naive.program import printed

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
