"""Messages that Outlook saves (.msg). They are read like a mail: its headers, its text, its attachments."""

from __future__ import annotations

from email.message import Message
from email.mime.application import MIMEApplication
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.utils import format_datetime
from typing import Any

from edge.apps.documents.base import MAX_TEXT_CHARS, DocumentBlocks
from edge.apps.documents.mail import message_blocks
from edge.apps.documents.opened import OpenedFile

_HEADERS = ("From", "To", "Cc", "Date", "Subject", "Message-ID", "References", "In-Reply-To")


def extract(file: OpenedFile) -> DocumentBlocks:
    """Reads a message."""
    from oxmsg import Message as OutlookMessage

    return message_blocks(file, _mail(OutlookMessage.load(file.stream)))


def _mail(found: Any) -> Message:
    """The message as a mail. Its own headers come first, because a message that was never sent has none of a mail."""
    made = MIMEMultipart()
    sent = found.sent_date
    known = {
        "From": found.sender,
        "To": ", ".join(filter(None, (each.name or each.email_address for each in found.recipients))),
        "Date": None if sent is None else format_datetime(sent),
        "Subject": found.subject,
    }
    known |= {name: value for name in _HEADERS if (value := found.message_headers.get(name))}
    for name, value in known.items():
        if value:
            made[name] = " ".join(str(value).split())
    text = (found.body or "")[:MAX_TEXT_CHARS]
    made.attach(MIMEText(text, "plain", "utf-8") if text.strip() else MIMEText(found.html_body or "", "html", "utf-8"))
    for each in found.attachments:
        part = MIMEApplication(each.file_bytes or b"")
        part.add_header("Content-Disposition", "attachment", filename=each.file_name or "without a name")
        made.attach(part)
    return made
