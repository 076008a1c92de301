"""Office files in memory: saved by the library that made them, and with members changed."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping
from typing import Any


def saved(document: Any) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def container(parts: Mapping[str, str | bytes]) -> bytes:
    """A ZIP file of members by name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in parts.items():
            made.writestr(name, content)
    return buffer.getvalue()


def rewritten(data: bytes, name: str, change: Callable[[bytes], bytes | None]) -> bytes:
    """A ZIP file with one member changed, or left out where `change` returns None."""
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        parts = {member: old.read(member) for member in old.namelist()}
    changed = change(parts.pop(name))
    return container(parts if changed is None else {**parts, name: changed})
