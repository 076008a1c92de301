"""Compiles `shim.c` and configures its effect on a program's file operations."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SOURCE = Path(__file__).with_name("shim.c")
Doing = Literal["kill", "torn", "EIO", "ENOSPC"]


@functools.cache
def library() -> Path:
    """The compiled shim: once per version of its source and user. `RuntimeError` where it cannot be compiled."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError("the shim needs a C compiler")
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"edge-campaign-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise RuntimeError(f"{folder} belongs to somebody else")
    target = folder / f"shim-{digest}.so"
    if not target.exists():
        draft = folder / f".shim-{digest}.{os.getpid()}"
        command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(draft), str(SOURCE), "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"shim.c cannot be compiled: {done.stderr}")
        draft.replace(target)
    return target


@dataclass(frozen=True)
class Shim:
    """The effect on a program's file operations below the folders `watch`. `at`: the number of the one that is spoiled,
    from 1; 0 only counts. `lasting`: later ones fail, too; `reads` count as well; `log`: a file that takes every
    change, for `powerloss`."""

    watch: tuple[Path, ...]
    at: int = 0
    doing: Doing = "kill"
    lasting: bool = False
    reads: bool = False
    log: Path | None = None

    def environment(self, counter: Path) -> dict[str, str]:
        """The variables that put the shim before a program; `counter` is made anew, and read by `counted`."""
        counter.write_bytes(bytes(24))
        return {
            "LD_PRELOAD": str(library()),
            "SHIM_WATCH": ":".join(str(folder.resolve()) for folder in self.watch),
            "SHIM_COUNTER": str(counter),
            "SHIM_AT": str(self.at),
            "SHIM_DO": self.doing,
            "SHIM_LASTING": "1" if self.lasting else "0",
            "SHIM_READS": "1" if self.reads else "0",
            **({"SHIM_LOG": str(self.log)} if self.log is not None else {}),
        }


def counted(counter: Path) -> tuple[int, int, int]:
    """How many operations the program did, how many of them were spoiled, and how many were reads."""
    done, spoiled, reads = struct.unpack("<QQQ", counter.read_bytes()[:24])
    return done, spoiled, reads
