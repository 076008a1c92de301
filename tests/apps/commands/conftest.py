"""The verbs of file search, called as a person calls them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from making.synth import synth
from naive.program import environment_of, settings_of, write_tiny_models

from edge.apps.cli import main
from tests.apps.conftest import Ended

RIVER = "# Rivers\n\nThe river floods in spring, when the snow melts in the mountains.\n"
BREAD = "# Bread\n\nBread needs time, flour, water and salt.\n"


@pytest.fixture(scope="module")
def files_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of tiny random shapes, a project with an index, and nothing of the machine's own settings."""
    folder = tmp_path_factory.mktemp("home").resolve()
    write_tiny_models(folder / "models")
    synth("tiny-bert-embedder", folder / "models" / "other-embedder", seed=5).close()
    project = folder / "project"
    (project / "docs").mkdir(parents=True)
    (project / ".edge").mkdir()
    (project / "docs" / "rivers.md").write_text(RIVER)
    (project / "docs" / "bread.md").write_text(BREAD)
    (project / "notes.txt").write_text("Ice is blue.\n")
    (project / "broken.pdf").write_bytes(b"%PDF-1.7\n" + b"nothing of a PDF" * 50)
    (project / "picture.bin").write_bytes(bytes(range(256)) * 8)
    return folder


class Edge:
    """Runs `edge` in a folder: in this process, for starting one for each command would take most of the time, or, with
    `forked`, in forks of another process, which holds little memory itself."""

    def __init__(self, home: Path, folder: Path, forked: Sequence[str] = ()) -> None:
        self.project = folder
        self.forked = forked
        here = {"EDGE_THREADS": "1", "EDGE_MEMORY": "8GB"}  # the process of the tests may hold a lot itself
        self.environment = environment_of(home, NO_COLOR="1") if forked else settings_of(home, **here)

    def __call__(self, *arguments: str, cwd: Path | None = None, stdin: bytes = b"", **environment: str) -> Ended:
        folder, own = cwd or self.project, self.environment | environment
        if self.forked:
            command = [*self.forked, *arguments]
            done = subprocess.run(command, input=stdin, capture_output=True, cwd=folder, env=own, check=False)
            out, err = (said.decode(errors="surrogateescape") for said in (done.stdout, done.stderr))
            return Ended(done.returncode, out, err)
        output, errors = io.StringIO(), io.StringIO()
        with (
            tempfile.TemporaryFile() as given, pytest.MonkeyPatch.context() as patch,
            redirect_stdout(output), redirect_stderr(errors),
        ):  # fmt: skip
            given.write(stdin)
            given.seek(0)
            patch.setattr("sys.stdin", io.TextIOWrapper(given))
            for name in [name for name in os.environ if name.startswith("EDGE_")]:
                patch.delenv(name)
            for name, value in own.items():
                patch.setenv(name, value)
            patch.chdir(folder)
            with pytest.raises(SystemExit) as end:
                main(list(arguments))
        assert isinstance(end.value.code, int)
        return Ended(end.value.code, output.getvalue(), errors.getvalue())

    def said(self, *arguments: str, code: int = 0, **options: Any) -> str:
        """Its output, of a command that ends with a code."""
        done = self(*arguments, **options)
        assert done.code == code, done.err
        assert "Traceback" not in done.err
        return done.out

    def json(self, *arguments: str, **options: Any) -> Any:
        return json.loads(self.said(*arguments, "--json", **options))

    def refused(self, *arguments: str, **options: Any) -> str:
        """The message of a command that is refused and prints nothing else."""
        done = self(*arguments, **options)
        assert done.code == 2, (done.code, done.err)
        assert "Traceback" not in done.err
        assert done.out == ""
        return done.err.strip()


@pytest.fixture(scope="module")
def edge(files_home: Path) -> Edge:
    edge = Edge(files_home, files_home / "project")
    done = edge("index", ".")
    assert done.code == 0, done.err
    assert done.out.startswith("indexed 3 files (3 passages in ")
    assert "1 skipped, 1 failed" in done.out
    assert "failed: " in done.err
    assert "broken.pdf" in done.err
    assert "%|" not in done.err  # no progress bar where nobody looks
    return edge
