"""Rows of tokens on the device: which are sent, where the whole table has no room."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edge.blocks import RowTable
from edge.budget import MemoryBudget
from edge.devices.cuda.device import CudaDevice
from edge.runtimes.cuda import tokens
from edge.runtimes.cuda.tokens import TokenTable

torch = pytest.importorskip("torch")

CHUNK, ROWS = 8, 40


class Rows:
    """A table whose row r holds r in each byte, and the number of rows that were asked for."""

    scales = None
    sent = 0

    def stored(self, missing: Any) -> tuple[Any, None]:
        self.sent += len(missing)
        return np.repeat(missing.astype(np.uint8)[:, None], 4, axis=1), None

    def tables(self, longest: int) -> dict[str, Any]:
        return {}


def test_rows_that_most_chunks_read_stay_for_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_SHARE", 1 << 30)
    device, rows = CudaDevice(MemoryBudget(1 << 36, baseline=0), on="cpu"), Rows()
    model = SimpleNamespace(embedding=RowTable(0, ROWS, 4), embedding_dtype=np.dtype(np.float32))
    table, staging = TokenTable(device), device.staging(1 << 16)
    sent = []
    for _ in range(3):
        table.begin(SimpleNamespace(embedding=rows, model=model, longest=4), staging, CHUNK)  # type: ignore[arg-type]
        for first in (0, 8, 0, 16, 0, 24, 0):
            ids = np.arange(first, first + CHUNK, dtype=np.int32)[::-1].copy()
            places = table._present(ids)
            assert table._rows[torch.from_numpy(places)].numpy().tolist() == [[own] * 4 for own in ids.tolist()]
        table.end()
        sent.append(rows.sent - sum(sent))
    assert sent == [48, 32, 32], "the rows that most chunks read are sent once a pass"
    table.close()
    staging.close()
    device.close()
    assert not device.memory.used
