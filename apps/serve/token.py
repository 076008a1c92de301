"""The server's token: its checksum, in a file that only its owner can read."""

from __future__ import annotations

import secrets
from hashlib import sha256
from pathlib import Path

import platformdirs

from edge.errors import CorruptBlock, StorageError
from edge.files.sealed import read_sealed, write_sealed

_FILE = "serve-token.json"


def token_file() -> Path:
    """Where the token's checksum is kept."""
    return platformdirs.user_data_path("edge-rag", appauthor=False) / _FILE


def known_token(*, new: bool = False) -> tuple[str, str]:
    """The SHA-256 of the token in hexadecimal, and the token itself where it is made now; empty where it was made
    before, because then nobody knows it but who was told.

    Args:
        new: make another one, which ends the old one.

    Raises:
        StorageError: it cannot be stored.
    """
    path = token_file()
    try:
        stored = None if new else read_sealed(path)
    except CorruptBlock as error:
        raise StorageError(f"{error}; `edge serve --new-token` makes another one") from None
    if stored is not None:
        return str(stored["token"]), ""
    token = secrets.token_urlsafe(24)
    digest = sha256(token.encode()).hexdigest()
    write_sealed(path, {"token": digest})
    path.chmod(0o600)
    return digest, token
