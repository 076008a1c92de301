"""Building and maintaining an index that is much larger than the memory allowed for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from naive import index_memory

CHILD = Path(index_memory.__file__)
ROWS = 50_000


def test_the_process_stays_below_its_limit(tmp_path: Path) -> None:
    spare = 36 << 20
    command = [sys.executable, str(CHILD), str(tmp_path), str(ROWS), str(spare), "sq8"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    figures = json.loads(said.splitlines()[-1])
    size = sum(path.stat().st_size for path in (tmp_path / "segments").glob("*.blk"))
    assert figures["rows"] == ROWS - ROWS // 10 + 300
    assert figures["lists"] > 500
    assert figures["found"] == 200
    assert figures["left"] == 0, "closing gives everything back"
    assert figures["peak"] <= figures["limit"], figures
    assert size > spare
