"""Whether a file is e-mail, by its first bytes: the files of a Maildir have no suffix."""

from __future__ import annotations


def is_message(head: bytes) -> bool:
    """Whether first bytes are those of an e-mail: headers, and among them those that every message has."""
    names: list[bytes] = []
    for line in head.split(b"\n")[:60]:
        if not line.strip():
            break
        if line[:1] in b" \t" and names:
            continue
        name, colon, _ = line.partition(b":")
        if not colon or not name.replace(b"-", b"").isalnum():
            return False
        names.append(name.lower())
    known = {b"from", b"date", b"subject", b"to", b"message-id", b"received", b"return-path", b"mime-version"}
    return b"from" in names and len(known.intersection(names)) >= 3


def is_mailbox(head: bytes) -> bool:
    """Whether first bytes are those of an mbox file: an envelope line, and a message behind it."""
    envelope, _, rest = head.partition(b"\n")
    return envelope.startswith(b"From ") and is_message(rest.lstrip(b"\r\n"))
