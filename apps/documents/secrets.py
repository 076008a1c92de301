"""Files that are left out because they hold secrets: keys, key stores, databases of passwords, `.env` files, tokens. A
pattern that begins with `!` in an ignore file includes them, and so does naming them as a root.
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
_TOKEN = re.compile(
    rb"\s*(?:AKIA[0-9A-Z]{16}|gh[opsu]_\w{36,}|github_pat_\w{50,}|glpat-[\w-]{20,}|xox[abps]-[\w-]{20,}|sk-[\w-]{32,}"
    rb"|AIza[\w-]{35}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,})\s*"
)


def refuse_secrets(name: str, head: bytes = b"") -> None:
    """Refuses a file that holds secrets, by its name or its first bytes: a private key, or nothing but a token.

    Raises:
        Skipped: it does. The message says how to include it.
    """
    if _NAMED.match(name.lower()) or _KEY.search(head) or _TOKEN.fullmatch(head):
        raise Skipped(Reason.SECRET, f"may hold secrets; a line !{name} in .edgeignore includes it")
