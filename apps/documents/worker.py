"""The worker process: reads files and answers with their chunks, one JSON value per line, on a pipe of its own. A
worker that a file has taken over can only send text to the parent. Where descriptors can be passed between processes,
the parent opens the files, and the sandbox lets the worker open none."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any, BinaryIO

from edge.apps.documents.base import Skipped, meaningful
from edge.apps.documents.chunking import chunks_of
from edge.apps.documents.file_types import ARCHIVE, MAIL, OUTLOOK, PDF, choose, load
from edge.apps.documents.opened import PASSES_DESCRIPTORS, Attempt, OpenedFile
from edge.apps.documents.pictures import is_installed
from edge.apps.documents.sandbox import enter
from edge.apps.documents.secrets import ASKED, SecretParts, holds_secrets, without_secrets
from edge.errors import InputError

_ORPHAN_SECONDS = 10  # A worker exits this long after its time limit, in case its parent is gone.
_LIBRARIES_NBYTES = 64 * 10**6
"""Address space for the code of libraries that are loaded later. The parent does not count it."""

_RECOGNIZER_NBYTES = 128 * 10**6  # Additional address space for numpy and onnxruntime, if the extra `ocr` is installed.

STACK_NBYTES = 4 << 20
"""Largest stack of the main thread."""

_THREAD_STACK_NBYTES = 512 << 10  # Stack of the thread that ends an orphan; all of it counts as in use.
_CLOSED_NBYTES = 2 << 20
"""Pages of libraries that become read-only after loading: 0.3 MB for the interpreter, 1.1 MB with text recognition."""

_NO_ROOM = re.compile("failed to map segment|annot allocate memory")
"""What the loader says if a library does not fit the limit."""

_PIECE = 1 << 16
_NOISE = 1 << 16  # Largest output of libraries on stderr that is kept for the parent, in bytes.


def main(*, memory: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    requests: Iterator[tuple[dict[str, Any], int | None]]
    if PASSES_DESCRIPTORS:
        requests = _requests_with_files(socket.socket(fileno=os.dup(0)))
    else:
        requests = ((json.loads(line), None) for line in os.fdopen(os.dup(0), "rb"))
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):  # output of libraries must not get between the answers
        os.dup2(nothing, standard)
    _limit(memory)
    _say(answers, {"ready": True, "sandbox": enter()})
    for request, descriptor in requests:
        faulthandler.dump_traceback_later(request["seconds"] + _ORPHAN_SECONDS, exit=True)
        for answer in _answers(request, descriptor):
            _say(answers, answer, flush=isinstance(answer, dict))
        faulthandler.cancel_dump_traceback_later()


def _requests_with_files(channel: socket.socket) -> Iterator[tuple[dict[str, Any], int]]:
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
    """Yields the kind and title of a file, its chunks, and an end; or the picture of a page; or an error. `parts` comes
    first if the file holds others, which another attempt may leave out."""
    path, attempt = Path(request["path"]), Attempt(request.get("attempt", Attempt.FIRST))
    try:
        if "page" in request:
            from edge.apps.documents.pdf import drawn

            with OpenedFile(path, descriptor=descriptor) as file:
                yield drawn(file, request["page"], frozenset(request["lines"]))
            return
        with OpenedFile(path, descriptor=descriptor, attempt=attempt) as file:
            kind = choose(file.name, file.head)
            if kind in (MAIL, OUTLOOK, PDF, ARCHIVE):
                yield {"parts": True}
            file.hides_secrets = not (asked := holds_secrets(file.name, file.head))
            document = load(kind.extractor)(file)
            warning = ASKED if asked else document.warning
        title = without_secrets(meaningful(document.title) or request["name"])[0]
        yield {"kind": document.kind or kind.name, "title": title, "warning": warning}
        for page, mail in document.mails.items():
            yield {"mail": [page, *(without_secrets(field)[0] for field in astuple(mail))]}
        secrets = SecretParts()
        blocks = document.blocks if asked else secrets.without(document.blocks)
        for chunk in chunks_of(blocks, title):
            yield [chunk.text, chunk.context, chunk.line_start, chunk.line_end, chunk.page, chunk.lines,
                   chunk.kinds.hex()]  # fmt: skip
        yield {"end": True, "secrets": secrets.left_out}
    except Skipped as error:
        yield {"error": str(error), "reason": error.reason.value}
    except InputError as error:
        yield {"error": str(error), "reason": None}
    except MemoryError:
        yield {"out_of_memory": True}
    except Exception as error:  # libraries report damage by many kinds of errors
        if isinstance(error, OSError) and _NO_ROOM.search(str(error)):
            yield {"out_of_memory": True}
            return
        yield {"error": f"damaged, or not what its name says ({type(error).__name__}: {error})"[:300], "reason": None}


def _limit(memory: int) -> None:
    """Makes the system refuse memory beyond a limit, because the parent only samples. Linux counts private writable
    mappings against `RLIMIT_DATA`, to which the main thread's stack and pages that the loader wrote before it made them
    read-only are added; `RLIMIT_AS` bounds the rest. The size of stderr, the only file open for writing, is limited
    too."""
    threading.stack_size(_THREAD_STACK_NBYTES)
    sys.dont_write_bytecode = (
        True  # Python would cut off a large module's file at the limit, and fail to import it later
    )
    if sys.platform == "linux":
        import resource

        data = memory - STACK_NBYTES - _CLOSED_NBYTES

        with open("/proc/self/statm", "rb") as file:
            mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        libraries = _LIBRARIES_NBYTES + (_RECOGNIZER_NBYTES if is_installed() else 0)
        for what, most in (
            (resource.RLIMIT_AS, mapped + memory + libraries),
            (resource.RLIMIT_DATA, data),
            (resource.RLIMIT_STACK, STACK_NBYTES),
            (resource.RLIMIT_FSIZE, _NOISE),
        ):
            _, hard = resource.getrlimit(what)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(what, (most, most))
