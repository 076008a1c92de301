"""PDFs in memory: of text runs, or of any objects. They have no table of places, which readers then make anew."""

from __future__ import annotations

from collections.abc import Sequence

Run = tuple[float, float, float, str]
"""A run of text: x, y, size and words."""


def pdf_of(*objects: bytes, trailer: bytes = b"") -> bytes:
    """The objects by their numbers, of which the first is the catalog."""
    body = b"".join(b"%d 0 obj\n%b\nendobj\n" % each for each in enumerate(objects, 1))
    return b"%PDF-1.7\n" + body + b"trailer<</Size %d/Root 1 0 R%b>>\n%%%%EOF" % (len(objects) + 1, trailer)


def stream_of(data: bytes, *, names: bytes = b"") -> bytes:
    return b"<</Length %d%b>>stream\n%b\nendstream" % (len(data), names, data)


def pdf_bytes(pages: Sequence[Sequence[Run]], *, title: str = "", encrypted: bool = False) -> bytes:
    """A PDF with one text run for each entry, in Helvetica."""
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    objects = [font, b"<< /Title (%s) >>" % title.encode("cp1252")]
    kids = []
    for runs in pages:
        lines = [
            b"BT /F1 %g Tf 1 0 0 1 %g %g Tm (%s) Tj ET"
            % (size, x, y, text.encode("cp1252").replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)"))
            for x, y, size, text in runs
        ]
        kids.append(b"%d 0 R" % (len(objects) + 3))
        page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R "
        page += b"/Resources << /Font << /F1 3 0 R >> >> >>"
        objects += [page % (len(objects) + 4), stream_of(b"\n".join(lines))]
    trailer = b"/Info 4 0 R"
    if encrypted:
        objects.append(b"<< /Filter /Standard /V 1 /R 2 /P -44 /O <%s> /U <%s> >>" % (b"5a" * 32, b"3c" * 32))
        trailer += b"/Encrypt %d 0 R/ID [<%s> <%s>]" % (len(objects) + 2, b"11" * 16, b"11" * 16)
    tree = b"<< /Type /Pages /Count %d /Kids [%s] >>" % (len(kids), b" ".join(kids))
    return pdf_of(b"<< /Type /Catalog /Pages 2 0 R >>", tree, *objects, trailer=trailer)
