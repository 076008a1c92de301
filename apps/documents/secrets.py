"""Files that are left out because they hold secrets: keys, key stores, databases of passwords, `.env` files, tokens. A
pattern that begins with `!` in an ignore file includes them if it names them, and so does naming them as a root.
"""

from __future__ import annotations

import re
from fnmatch import translate

from edge.apps.documents.base import Reason, Skipped

NAMES = (
    "*.env", "*.jks", "*.kdb", "*.kdbx", "*.key", "*.keychain*", "*.keystore", "*.keytab", "*.p12", "*.pem", "*.pfx",
    "*.ppk", "*.psafe3", "*.token", ".env*", ".git-credentials", ".netrc", ".pgpass", "_netrc", "client_secret*.json",
    "credentials", "htpasswd", "id_dsa", "id_ecdsa", "id_ed25519", "id_rsa", "secring.*",
)  # fmt: skip
"""Globs of names, lower case."""

_NAMED = re.compile("|".join(map(translate, NAMES)))

_KEY = re.compile(
    rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----\s+(?:[\w-]+: [^\n]*\n\s*)*[A-Za-z0-9+/=]{40}"
)
_TOKENS = (
    r"(?:AKIA[0-9A-Z]{16}|gh[opsu]_\w{36,}|github_pat_\w{50,}|glpat-[\w-]{20,}|xox[abps]-[\w-]{20,}|sk-[\w-]{32,}"
    r"|AIza[\w-]{35}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,})"
)
_TOKEN = re.compile(rf"\s*{_TOKENS}\s*".encode())
_IN_TEXT = re.compile(
    rf"(?<![\w-]){_TOKENS}|-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?:.*?-----END [A-Z0-9 ]*-----|.*)",
    re.DOTALL,
)
LEFT_OUT = "[secret left out]"


ASKED = "may hold secrets, and was asked for"
"""The warning of a file with secrets that is included. Each run looks whether it is still asked for."""


def names_secrets(glob: str) -> bool:
    """Whether the glob of a name, such as `server.pem` or `*.pem`, asks for files with secrets. `*.txt` does not."""
    return not any(char in glob for char in "*?[") or _NAMED.match(glob.lower()) is not None


def holds_secrets(name: str, head: bytes = b"") -> bool:
    """Whether a file holds secrets, by its name or its first bytes: a private key, or nothing but a token."""
    return any((_NAMED.match(name.lower()), _KEY.search(head), _TOKEN.fullmatch(head)))


def without_secrets(text: str) -> tuple[str, int]:
    """A text with `LEFT_OUT` in place of its private keys and tokens, and their number."""
    return _IN_TEXT.subn(LEFT_OUT, text)


def refuse_secrets(name: str, head: bytes = b"") -> None:
    """Refuses a file that holds secrets.

    Raises:
        Skipped: it does. The message says how to include it.
    """
    if holds_secrets(name, head):
        raise Skipped(Reason.SECRET, f"may hold secrets; a line !{name} in .edgeignore includes it")
