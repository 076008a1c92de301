"""Commands of `edge` in forks of a process that has imported the program already: a quarter of a start's time.

For tests of what many commands do, in a shell as a person types them, and for many looks at files. What a start itself
does is tested elsewhere, with processes of their own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_IMPORTED = (
    "edge.apps.cli", "edge.apps.commands.models", "edge.apps.commands.index", "edge.apps.commands.search",
    "edge.apps.verbs.work", "edge.apps.commands.contents", "edge.apps.collection.care", "edge.apps.commands.texts",
    "edge.apps.collection.collection", "edge.apps.collection.intake", "edge.apps.collection.writing",
    "edge.apps.memory.command", "edge.apps.memory.memory", "edge.apps.memory.care",
    "edge.devices.cpu", "edge.devices.faiss_codec", "faiss", "numpy.ma",
    "edge.ivf.maintenance.compaction", "edge.ivf.maintenance.retraining",
    "edge.runtimes.reranker", "edge.runtimes.embedder", "edge.runtimes.native.runtime", "tokenizers",
)  # fmt: skip

_PID = struct.Struct("=i")
_DIED = -int(signal.SIGABRT)
"""The exit code of a command whose process ended without one."""

_CLIENT = """#!{python} -IS
import json, os, socket, sys
# A watch is interrupted, which a fork elsewhere would not see. A limit is for what a process of its own holds, and the
# encoding of the output is chosen when Python starts.
if sys.argv[1:2] == ["watch"] or "--memory" in sys.argv or "PYTHONIOENCODING" in os.environ:
    os.execv({python!r}, [{python!r}, "-c", "from edge.apps.cli import main; main()", *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    task = {{"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}
    socket.send_fds(server, [b"+"], [0, 1, 2])
    server.sendall(json.dumps(task).encode() + b"\\n")
    server.recv({pid}, socket.MSG_WAITALL)
    code = server.recv(1)
sys.exit(code[0] if code else "the command died")
"""


class Forks:
    """The process that waits for commands, on Linux. It ends with this one."""

    def __init__(self) -> None:
        self.address = f"\0edge-tests-{os.getpid()}-{id(self)}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process, unless it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(self.address)
            server.listen()
            os.set_inheritable(server.fileno(), True)
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(server.fileno())], pass_fds=[server.fileno()], stdin=subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
            )  # fmt: skip

    def run(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], out: Path, err: Path,
        patience: float,
    ) -> tuple[int, bool]:  # fmt: skip
        """Runs `edge ARGUMENTS`, which reads nothing. The exit code, negative if its process died, and whether it had
        to be killed."""
        self.start()
        task = {"arguments": list(arguments), "folder": str(folder), "environment": dict(environment)}
        with (
            socket.socket(socket.AF_UNIX) as server, open(os.devnull, "rb") as nothing,
            out.open("wb") as output, err.open("wb") as errors,
        ):  # fmt: skip
            server.connect(self.address)
            socket.send_fds(server, [b"+"], [nothing.fileno(), output.fileno(), errors.fileno()])
            server.sendall(json.dumps(task).encode() + b"\n")
            (pid,) = _PID.unpack(server.recv(_PID.size, socket.MSG_WAITALL))
            server.settimeout(1.0)
            # Where all of this was suspended, a second became longer, and counts as one.
            for _ in range(round(patience)):
                with contextlib.suppress(TimeoutError):
                    code = server.recv(1)
                    return (code[0] if code else _DIED), False
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            return -int(signal.SIGKILL), True

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.communicate()
            self._process = None


@contextlib.contextmanager
def forked_edge(program: Path) -> Iterator[tuple[str, ...]]:
    """Writes a program that stands for `edge`, gives the command that starts it, and runs its commands until the
    context ends. Elsewhere than on Linux each of them is a process of its own."""
    if sys.platform != "linux":
        program.write_text(f"#!{sys.executable}\nfrom edge.apps.cli import main\nmain()\n", encoding="utf-8")
        program.chmod(0o755)
        yield sys.executable, str(program)
        return
    forks = Forks()
    text = _CLIENT.format(python=sys.executable, address=forks.address, pid=_PID.size)
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)
    forks.start()
    try:
        yield (str(program),)
    finally:
        forks.close()


def _serve(server: socket.socket) -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    from naive.unflushed import leave_unflushed

    leave_unflushed()  # no power is lost here
    gc.collect()
    gc.freeze()  # no command looks through the objects of these modules
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the commands
    while server in select.select([server, sys.stdin], [], [])[0]:  # the other end of stdin closes with the parent
        client, _ = server.accept()
        with client:
            if os.fork() == 0:
                server.close()
                _become(client)


def _become(client: socket.socket) -> None:
    """The child: one command, as if it had been started from a shell."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _, descriptors, _, _ = socket.recv_fds(client, 1, 3)
        with client.makefile("rb") as lines:
            task = json.loads(lines.readline())
        client.sendall(_PID.pack(os.getpid()))
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(0, encoding="utf-8"), os.fdopen(1, "w", encoding="utf-8"),
            os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace"),
        )  # fmt: skip
        os.chdir(task["folder"])
        os.environ.clear()
        os.environ.update(task["environment"])
        sys.argv = ["edge", *task["arguments"]]
        from edge.apps.cli import main

        try:
            main(task["arguments"])
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            import traceback

            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        client.sendall(bytes([code]))
    finally:
        os._exit(code)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != here]
    runpy.run_path(str(here.parent / "packages.py"))["load"]()
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        _serve(listening)
