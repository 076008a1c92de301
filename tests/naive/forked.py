"""Commands of `edge` in forks of a process that has imported the program already: a quarter of a start's time.

For tests of what many commands do, in a shell as a person types them. What a start itself does is tested elsewhere,
with processes of their own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_IMPORTED = (
    "edge.apps.cli", "edge.apps.commands.index", "edge.apps.commands.search", "edge.apps.commands.contents",
    "edge.apps.memory.command", "edge.apps.collection.collection", "edge.devices.cpu", "edge.devices.faiss_codec",
    "faiss", "tokenizers",
)  # fmt: skip

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
    code = server.recv(1)
sys.exit(code[0] if code else "the command died")
"""


@contextlib.contextmanager
def forked_edge(program: Path) -> Iterator[tuple[str, ...]]:
    """Writes a program that stands for `edge`, gives the command that starts it, and runs its commands until the
    context ends. Elsewhere than on Linux each of them is a process of its own."""
    if sys.platform != "linux":
        program.write_text(f"#!{sys.executable}\nfrom edge.apps.cli import main\nmain()\n", encoding="utf-8")
        program.chmod(0o755)
        yield sys.executable, str(program)
        return
    address = f"\0edge-tests-{os.getpid()}-{id(program)}"
    program.write_text(_CLIENT.format(python=sys.executable, address=address), encoding="utf-8")
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        os.set_inheritable(server.fileno(), True)
        process = subprocess.Popen(
            [sys.executable, __file__, str(server.fileno())], pass_fds=[server.fileno()], start_new_session=True
        )
    try:
        yield (str(program),)
    finally:
        process.kill()
        process.wait()


def _serve(server: socket.socket) -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # no command looks through the objects of these modules
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the commands
    while True:
        client, _ = server.accept()
        with client:
            if os.fork() == 0:
                server.close()
                _become(client)


def _become(client: socket.socket) -> None:
    """The child: one command, as if it had been started from a shell."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _, descriptors, _, _ = socket.recv_fds(client, 1, 3)
        with client.makefile("rb") as lines:
            task = json.loads(lines.readline())
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
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != here]
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        _serve(listening)
