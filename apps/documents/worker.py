"""The worker process: reads files and answers with their chunks, one JSON value per line, on a pipe of its own.

Whatever a file does to it (hang, crash, eat memory) the parent survives: it kills the worker and starts another. The
answers are JSON so that a worker that a file has taken over cannot make the parent do anything but read text. Where
the system can pass descriptors between processes, the parent opens the files, and the worker works in a sandbox in
which it can open none of them itself (see `sandbox`).
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from edge.apps.documents.base import Skipped
from edge.apps.documents.chunking import chunks_of
from edge.apps.documents.meaningful_title import meaningful
from edge.apps.documents.opened import PASSES_DESCRIPTORS, OpenedFile
from edge.apps.documents.pictures import PACKAGE
from edge.apps.documents.registry import choose, load
from edge.apps.documents.sandbox import enter
from edge.errors import InputError

_ORPHAN_SECONDS = 10
"""So long after its time limit a worker ends itself: its parent, which should have ended it, must be gone."""

_LIBRARIES_NBYTES = 64 * 10**6
"""Address space for the code of libraries that are loaded later; the parent's watch counts without it."""

_RECOGNIZER_NBYTES = 128 * 10**6
"""The same for what reads pictures, where it is installed: numpy and onnxruntime."""

STACK_NBYTES = 4 << 20
"""The main thread's stack at most."""

_THREAD_STACK_NBYTES = 512 << 10
"""Of the thread that ends an orphan; all of it counts as in use."""

_CLOSED_NBYTES = 2 << 20
"""Anonymous pages of libraries in mappings that are closed for writing after they are loaded: 0.3 MB of the
interpreter's, 1.1 MB with what reads pictures."""

_PIECE = 1 << 16
_NOISE = 1 << 16
"""Bytes of what libraries write to stderr that are kept for the parent."""


def main(*, memory: int, everything_importable: bool) -> None:
    """Serves requests on stdin until it ends.

    Args:
        memory: anonymous bytes it may hold, those of an idle worker included.
        everything_importable: as for `sandbox.enter`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    requests: Iterator[tuple[dict[str, Any], int | None]]
    if PASSES_DESCRIPTORS:
        requests = _requests_with_files(socket.socket(fileno=os.dup(0)))
    else:
        requests = _requests(os.fdopen(os.dup(0), "rb"))
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):  # what a library prints must not get between the answers
        os.dup2(nothing, standard)
    _limit(memory)
    _say(answers, {"ready": True, "sandbox": enter(everything_importable=everything_importable)})
    for request, descriptor in requests:
        faulthandler.dump_traceback_later(request["seconds"] + _ORPHAN_SECONDS, exit=True)
        for answer in _answers(request, descriptor):
            _say(answers, answer, flush=isinstance(answer, dict))
        faulthandler.cancel_dump_traceback_later()


def _requests(lines: BinaryIO) -> Iterator[tuple[dict[str, Any], None]]:
    for line in lines:
        yield json.loads(line), None


def _requests_with_files(channel: socket.socket) -> Iterator[tuple[dict[str, Any], int]]:
    """Requests, each with the descriptor of its file."""
    while True:
        line, descriptors = b"", list[int]()
        while not line.endswith(b"\n"):
            piece, passed, _, _ = socket.recv_fds(channel, _PIECE, 1)
            if not piece:
                return
            line += piece
            descriptors += passed
        yield json.loads(line), descriptors[0]


def _say(answers: BinaryIO, value: Any, *, flush: bool = True) -> None:
    answers.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n")
    if flush:
        answers.flush()


def _answers(request: dict[str, Any], descriptor: int | None) -> Iterator[Any]:
    """What a file is, then its chunks, then the end; or, at any point, why it cannot be read."""
    try:
        with OpenedFile(Path(request["path"]), max_bytes=request["max_bytes"], descriptor=descriptor) as file:
            kind = choose(file.name, file.head, request["plugins"])
            document = load(kind.extractor)(file)
        title = meaningful(document.title) or request["name"]
        yield {"kind": kind.name, "title": title, "encoding": document.encoding, "warning": document.warning}
        for chunk in chunks_of(document.blocks, title, max_tokens=request["max_tokens"]):
            yield [chunk.text, chunk.context, chunk.line_start, chunk.line_end, chunk.page, chunk.lines]
        yield {"end": True}
    except Skipped as error:
        yield {"error": str(error), "reason": error.reason.value}
    except InputError as error:
        yield {"error": str(error), "reason": None}
    except MemoryError:
        yield {"out_of_memory": True}
    except Exception as error:  # damage that a library met in its own way
        yield {"error": f"damaged, or not what its name says ({type(error).__name__}: {error})"[:300], "reason": None}


def _limit(memory: int) -> None:
    """Has the system refuse memory beyond a limit, where it can; the parent's watch samples, and may be late. What is
    written to stderr, the one file open for writing, is limited as well.

    Linux counts private writable mappings against `RLIMIT_DATA`, whether their pages are in use or not. Anonymous
    memory is at most that, the main thread's stack, and what the loader wrote into mappings before it closed them for
    writing. `RLIMIT_AS` bounds the rest of the address space.
    """
    threading.stack_size(_THREAD_STACK_NBYTES)
    if sys.platform == "linux":
        import resource

        data = memory - STACK_NBYTES - _CLOSED_NBYTES

        with open("/proc/self/statm", "rb") as file:
            mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        libraries = _LIBRARIES_NBYTES + (_RECOGNIZER_NBYTES if importlib.util.find_spec(PACKAGE) else 0)
        for what, most in (
            (resource.RLIMIT_AS, mapped + memory + libraries),
            (resource.RLIMIT_DATA, data),
            (resource.RLIMIT_STACK, STACK_NBYTES),
            (resource.RLIMIT_FSIZE, _NOISE),
        ):
            _, hard = resource.getrlimit(what)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(what, (most, most))
