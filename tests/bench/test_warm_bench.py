"""`warm`: every kind of run happens, and the server was used where it is said so."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from naive.program import output_of, settings_of

from bench.warm import warm


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the owner's socket, as Linux checks it")
def test_every_kind_of_run_is_timed(tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvicorn")
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "river.md").write_text("# The river\n\nThe river floods every spring.\n")
    own = {"EDGE_MODELS_DIR": str(tiny_models), "EDGE_MEMORY": "10GB"}
    for name, value in settings_of(tmp_path, **own).items():
        monkeypatch.setenv(name, value)
    rows = json.loads(output_of(warm, str(documents), "--query", "when does it flood", "--runs", "1", "--json"))["rows"]
    assert [row["reranked"] for row in rows] == [False, True]
    for row in rows:
        for name in ("alone_cold", "alone_warm", "server_first", "server_warm"):
            assert len(row[name]) == 1
            assert row[name][0] > 0
