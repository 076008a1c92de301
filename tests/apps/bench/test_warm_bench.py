"""`edge bench warm`: every kind of run happens, and the server was used where it is said so."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.apps.conftest import Ended


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the owner's socket, as Linux checks it")
def test_every_kind_of_run_is_timed(edge_verb: Callable[..., Ended], tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "river.md").write_text("# The river\n\nThe river floods every spring.\n")
    done = edge_verb("bench", "warm", str(documents), "--query", "when does it flood", "--runs", "1", "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["rows"]
    assert [row["reranked"] for row in rows] == [False, True]
    for row in rows:
        for name in ("alone_cold", "alone_warm", "server_first", "server_warm"):
            assert len(row[name]) == 1
            assert row[name][0] > 0
