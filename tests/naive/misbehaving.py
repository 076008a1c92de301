"""An extractor that obeys its file, and does things that no extractor should."""

# ruff: noqa: SIM115
import ctypes
import errno
import os
import socket
import struct
import sys
import time

try:
    import fcntl
    import resource
except ImportError:  # Windows
    resource = fcntl = None

from edge.apps.documents import file_types
from edge.apps.documents.base import Block, DocumentBlocks

file_types._BY_SUFFIX[".xyz"] = file_types.Kind("xyz", "misbehaving:extract")


def read(text):
    return DocumentBlocks("A plug-in's title", [Block(text, 1, 1)])


def escape(way):
    """Tries a way out of the process; returns the error that stopped it."""
    outside = os.path.dirname(os.path.abspath(__file__)) + "/../outside.txt"
    ways = {
        "read": lambda: open(outside).read(),
        "read-by-path": lambda: open("/etc/passwd").read(),
        "list": lambda: os.listdir(os.path.dirname(outside)),
        "write": lambda: open(outside, "w"),
        "create": lambda: open(outside + ".new", "w"),
        "beside-the-program": lambda: open(__file__, "a"),
        "delete": lambda: os.remove(outside),
        "chmod": lambda: os.chmod(outside, 0o777),
        "fork": os.fork,
        "run": lambda: os.execv("/bin/sh", ["sh", "-c", "true"]),
        "socket": lambda: socket.socket(),
        "pair": lambda: socket.socketpair(),
        "look-up": lambda: socket.getaddrinfo("localhost", 80),
        "signal": lambda: os.kill(os.getppid(), 0),
        "owner": lambda: fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid()),
        "owner-of-kind": lambda: fcntl.fcntl(0, 15, struct.pack("ii", 1, os.getppid())),
        "trace": lambda: libc("ptrace", 16, os.getppid(), 0, 0),
        "more-memory": lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1)),
        "mount": lambda: libc("mount", b"/tmp", b"/mnt", None, 4096, None),
        "own-namespace": lambda: libc("unshare", 0x10000000),
    }
    try:
        ways[way]()
    except OSError as error:
        return f"stopped: {errno.errorcode[error.errno]}" if error.errno in errno.errorcode else "stopped: no name"
    except ValueError as error:
        return f"stopped: {error}"
    return "escaped"


def libc(name, *arguments):
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def extract(file):
    what, _, rest = file.read().decode().partition(" ")
    if what == "hang":
        time.sleep(1000)
    elif what == "spin":
        any(iter(int, 1))
    elif what == "poison":  # the next file crashes
        sys.modules["json"].loads = None
        return read(rest)
    elif what == "crash":
        ctypes.string_at(0)
    elif what == "exit":
        os._exit(3)
    elif what == "abort":
        os.abort()
    elif what == "hold":
        held = [b"x" * 1_000_000 for _ in range(int(rest))]
        time.sleep(0.2)
        return read(f"held {len(held)}")
    elif what == "touch":
        held = bytearray(int(rest) * 1_000_000)
        time.sleep(5)
    elif what == "print":
        print("noise" * 10_000)
        os.write(1, b"more noise")
        sys.stderr.write("noise")
        sys.stdin.read()
    elif what == "much":
        return DocumentBlocks(
            "", [Block(f"Sentence {n} of very many.", n, n, path=(str(n),)) for n in range(1, int(rest))]
        )
    elif what == "raise":
        raise KeyError("odd")
    elif what == "exhaust":
        raise MemoryError
    elif what == "escape":
        return read(escape(rest))
    elif what == "pid":
        return read(str(os.getpid()))
    elif what == "modules":
        return read(" ".join(sorted(sys.modules)))
    elif what == "surrogate":
        return read("a \ud800 b")
    return read(rest)
