"""The command line of another Python process of this program."""

from __future__ import annotations

import sys

from edge.errors import CapabilityError

FORKED = "import os; os.fork() and os._exit(0)\n"
"""Before the code of a process that outlives the one that starts it, and has a limit of its own."""


def python(code: str, *arguments: str, isolated: bool = False) -> list[str]:
    """The command that runs `code` with this process's import path; `isolated`: without Python's environment variables.
    The path is set before the first import, or the working directory, perhaps of foreign files, would come first."""
    if not sys.executable:
        raise CapabilityError("part of the work is done in a process of its own, and this Python cannot start another")
    path = [entry for entry in sys.path if isinstance(entry, str) and entry]
    options = ["-I", "-c"] if isolated else ["-c"]
    return [sys.executable, *options, f"import sys; sys.path[:] = {path!a}\n{code}", *arguments]
