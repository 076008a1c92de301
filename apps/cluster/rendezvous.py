"""Rendezvous hashing: the shard of a document is the one with the highest weight for it.

A further shard takes its share from all others, and moves nothing between them (Thaler and Ravishankar, "A name-based
mapping scheme for rendezvous", 1996).
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b


def home(path: str, shards: Iterable[str]) -> str:
    """The shard of a document among at least one."""
    return max(shards, key=lambda shard: (_weight(shard, path), shard))


def _weight(shard: str, path: str) -> bytes:
    return blake2b(f"{shard}\0{path}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
