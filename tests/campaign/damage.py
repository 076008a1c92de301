"""The damage of a failing disk to a file: seeded, and never without effect."""

from __future__ import annotations

import random
from pathlib import Path

PAGE = 4096
KINDS = ("bit", "byte", "truncated", "cut at a page", "zeroed page", "swapped blocks", "emptied", "longer")


def damage(path: Path, kind: str, chance: random.Random) -> str:
    """Damages a file in place, and says how. The content differs afterwards, for any file.

    Args:
        kind: one of `KINDS`.
    """
    data = bytearray(path.read_bytes())
    before, size = bytes(data), len(data)
    said = kind
    if size == 0 or kind == "longer":
        data += bytes(chance.randrange(256) for _ in range(chance.randrange(1, 64)))
        said = "longer"
    elif kind == "truncated":
        keep = chance.randrange(size)
        del data[keep:]
        said = f"truncated to {keep:,} of {size:,} bytes"
    elif kind == "cut at a page":
        keep = chance.randrange(-(-size // PAGE)) * PAGE
        del data[keep:]
        said = f"cut to {keep:,} of {size:,} bytes"
    elif kind == "emptied":
        data.clear()
    elif kind == "zeroed page":
        start = chance.randrange(-(-size // PAGE)) * PAGE
        data[start : start + PAGE] = bytes(len(data[start : start + PAGE]))
        said = f"page at {start:,} zeroed"
    elif kind == "swapped blocks":
        width = max(1, min(512, size // 4))
        first, second = sorted(chance.sample(range(max(2, size // width)), 2)) if size >= 2 * width else (0, 0)
        one, two = data[first * width :][:width], data[second * width :][:width]
        if len(one) == len(two):
            data[first * width : first * width + width] = two
            data[second * width : second * width + width] = one
        said = f"blocks of {width} bytes at {first * width:,} and {second * width:,} swapped"
    elif kind == "byte":
        at = chance.randrange(size)
        data[at] = chance.randrange(256)
        said = f"byte {at:,} set to {data[at]}"
    if bytes(data) == before:
        at = chance.randrange(size)
        bit = chance.randrange(8)
        data[at] ^= 1 << bit
        said = f"bit {bit} of byte {at:,} of {size:,} flipped"
    path.write_bytes(data)
    return said
