"""The worker process: reads files and answers with their chunks, one JSON value per line, on a pipe of its own.

Whatever a file does to it (hang, crash, eat memory) the parent survives: it kills the worker and starts another. The
answers are JSON so that a worker that a file has taken over cannot make the parent do anything but read text.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from edge.apps.documents.base import Skipped
from edge.apps.documents.chunking import chunks_of
from edge.apps.documents.opened import OpenedFile
from edge.apps.documents.registry import choose, load
from edge.errors import InputError

_ORPHAN_SECONDS = 10
"""So long after its time limit a worker ends itself: its parent, which should have ended it, must be gone."""

_LIBRARIES_NBYTES = 64 * 10**6
"""Address space for the code of libraries that are loaded later; the parent's watch counts without it."""


def main() -> None:
    """Serves requests on stdin until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):  # what a library prints must not get between the answers
        os.dup2(nothing, standard)
    _say(answers, {"ready": True})
    for line in requests:
        request = json.loads(line)
        faulthandler.dump_traceback_later(request["seconds"] + _ORPHAN_SECONDS, exit=True)
        _limit_memory(request["memory"])
        for answer in _answers(request):
            _say(answers, answer, flush=isinstance(answer, dict))
        faulthandler.cancel_dump_traceback_later()


def _say(answers: BinaryIO, value: Any, *, flush: bool = True) -> None:
    answers.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n")
    if flush:
        answers.flush()


def _answers(request: dict[str, Any]) -> Iterator[Any]:
    """What a file is, then its chunks, then the end; or, at any point, why it cannot be read."""
    try:
        with OpenedFile(Path(request["path"]), max_bytes=request["max_bytes"]) as file:
            kind = choose(file.name, file.head, request["plugins"])
            document = load(kind.extractor)(file)
        title = document.title or request["name"]
        yield {"kind": kind.name, "title": title, "encoding": document.encoding, "warning": document.warning}
        for chunk in chunks_of(document.blocks, title, max_tokens=request["max_tokens"]):
            yield [chunk.text, chunk.context, chunk.line_start, chunk.line_end, chunk.page]
        yield {"end": True}
    except Skipped as error:
        yield {"error": str(error), "reason": error.reason.value}
    except InputError as error:
        yield {"error": str(error), "reason": None}
    except MemoryError:
        yield {"out_of_memory": True}
    except Exception as error:  # damage that a library met in its own way
        yield {"error": f"damaged, or not what its name says ({type(error).__name__}: {error})"[:300], "reason": None}


def _limit_memory(nbytes: int) -> None:
    """Has the system refuse allocations beyond a limit, where it can; the parent's watch samples, and may be late."""
    if sys.platform == "linux":
        import resource

        with open("/proc/self/statm", "rb") as file:
            mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        soft = mapped + nbytes + _LIBRARIES_NBYTES
        resource.setrlimit(resource.RLIMIT_AS, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
