"""Stores KV states in the folder it is given, rewrites their past and removes some, and prints each step."""

from __future__ import annotations

import sys
from pathlib import Path

from edge.errors import EdgeError
from edge.kv_cache.prefix_tree import Node, Usage
from edge.kv_cache.store import KnowledgeStore

FINGERPRINT = "a model"
STATES = 8
REMOVED = (1, 4)


def content(number: int) -> bytes:
    """A state."""
    return bytes((number * 37 + i * i) % 256 for i in range(1500 * (number + 1)))


def node(number: int) -> Node:
    """The node it belongs to, below a common one."""
    return Node(Node(Node(None, "", b""), "system", bytes(20)), f"document {number}", bytes([number, 0, 0, 0]) * 9)


def main() -> None:
    """Writes; prints `kept N` or `removed N` when that is durable."""
    store = KnowledgeStore(Path(sys.argv[1]), FINGERPRINT, 1 << 24)
    for found in list(store.scan()):
        store.remove(found.state)
    for number in range(STATES):
        stored = store.put(node(number), content(number), float(number))
        print(f"kept {number}", flush=True)
        store.note(stored, Usage(number, 2, 0.5), number + 1.0)
        if number in REMOVED:
            print(f"removing {number}", flush=True)
            store.remove(stored)


if __name__ == "__main__":
    try:
        main()
    except EdgeError as error:
        print(f"edge: {error}", file=sys.stderr)
        sys.exit(2)
