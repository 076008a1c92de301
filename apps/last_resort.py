"""Handles unexpected errors: writes a report to a file, and gives one sentence for people.

The report holds the traceback, versions and the verb, but no arguments and no settings. It contains text of documents
only if a library has put it into its error message. The report stays on this machine.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import threading
import time
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import platformdirs

from edge.files.own_folder import make_folder
from edge.text.control_characters import escaped

DEBUG_ENVIRONMENT = "EDGE_DEBUG"
"""An environment variable; if it is 1, the traceback is printed as well."""

_KEPT = 20
"""The number of reports that are kept; older ones are deleted."""

_LONGEST = 200
"""The most characters of an error's own message that the sentence repeats."""


def reports_dir() -> Path:
    """The folder of the reports, in the platform's folder for a user's state."""
    return platformdirs.user_state_path("edge-rag", appauthor=False) / "reports"


def report(error: BaseException, verb: str) -> str:
    """Writes a report that only its owner may read. With EDGE_DEBUG=1 it also prints the traceback to stderr.

    Args:
        verb: the command that failed, such as `edge index`.

    Returns:
        One sentence about the error and the report.
    """
    lines = "".join(traceback.format_exception(error))
    if os.environ.get(DEBUG_ENVIRONMENT) == "1":
        print("\n".join(map(escaped, lines.splitlines())), file=sys.stderr, flush=True)
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if len(what) > _LONGEST:
        what = what[: _LONGEST - 4] + " ..."
    try:
        path = _write(f"{_facts(verb)}\n{lines}")
    except OSError as failure:
        place = f"no report could be written to {reports_dir()} ({failure.strerror}); {DEBUG_ENVIRONMENT}=1 shows it"
    else:
        place = f"a report is in {path}; {DEBUG_ENVIRONMENT}=1 shows it here, too"
    return f"{escaped(what)} is an error of the program that nobody expected; {place}"


def _facts(verb: str) -> str:
    try:
        release = version("edge-rag")
    except PackageNotFoundError:
        release = "unknown"
    return (
        f"{verb}\nedge-rag {release}\nPython {platform.python_version()}\n{platform.platform()}\n"
        f"{time.strftime('%Y-%m-%d %H:%M:%S %z')}\n"
    )


def _write(text: str) -> Path:
    folder = reports_dir()
    make_folder(folder)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{threading.get_native_id()}.txt"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    for old in sorted(folder.glob("*.txt"))[:-_KEPT]:
        with contextlib.suppress(OSError):  # another process may delete the same reports
            old.unlink()
    return path
