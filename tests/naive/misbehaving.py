"""An extractor that does what its file says, and what no extractor should."""

import ctypes
import os
import sys
import time

from edge.apps.documents.base import Block, Document


def read(text):
    return Document("A plug-in's title", [Block(text, 1, 1)])


def extract(file):
    what, _, rest = file.read().decode().partition(" ")
    if what == "hang":
        time.sleep(1000)
    elif what == "spin":
        (lambda: [None for _ in iter(int, 1)])()
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
        return Document("", [Block(f"Sentence {n} of very many.", n, n, path=(str(n),)) for n in range(1, int(rest))])
    elif what == "raise":
        raise KeyError("odd")
    elif what == "exhaust":
        raise MemoryError
    elif what == "pid":
        return read(str(os.getpid()))
    elif what == "modules":
        return read(" ".join(sorted(sys.modules)))
    elif what == "surrogate":
        return read("a \ud800 b")
    return read(rest)
