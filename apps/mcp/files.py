"""The file server's tools: they read what is indexed, and nothing else of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edge.apps.collection.catalog import Catalog
from edge.apps.collection.collection import Collection
from edge.apps.collection.searching import read_hits
from edge.apps.mcp.protocol import make_server
from edge.errors import InputError

if TYPE_CHECKING:
    from mcp.server import MCPServer

_INSTRUCTIONS = (
    "Searches the user's indexed files by meaning and by words. Search first, then get the lines around a result; cite "
    "results as path:line."
)
_LONGEST = 20_000
"""Characters that `get` returns at once."""


def files_server(collection: Collection) -> MCPServer[Any]:
    """A server over one collection, which is only read.

    Raises:
        CapabilityError: the package `mcp` is missing.
    """
    catalog = Catalog()

    def search(query: str, top_k: int = 8, filters: list[str] | None = None, rerank: bool = True) -> dict[str, Any]:
        """Find passages in the indexed files, best first.

        Args:
            query: a question, a description, or words; a phrase in double quotes is looked up as it stands.
            top_k: how many results.
            filters: conditions on the files: path:docs/**, type:pdf, after:2026-01-31, before:2026-07-01, larger:1MB.
            rerank: let the cross-encoder judge; false is quicker and less exact.
        """
        hits = collection.search(query, top_k, rerank=rerank, where=filters or ())
        results = []
        for hit in hits:
            result = {
                "path": hit.path, "line_start": hit.line_start, "line_end": hit.line_end, "score": hit.score,
                "snippet": hit.snippet, "text": hit.text, "context": hit.context,
            }  # fmt: skip
            results.append(result if hit.page is None else result | {"page": hit.page})
        return {"results": results}

    def get(path: str, line_start: int = 1, line_end: int | None = None, passage: int = 0) -> dict[str, Any]:
        """Read the indexed passages of a file. Long answers end early, with continues_at_passage: give that as passage
        to go on.

        Args:
            path: as a result of search has it.
            line_start: first line wanted.
            line_end: last line wanted; to the end if not given.
            passage: first passage wanted, as continues_at_passage of the answer before says.
        """
        with collection.database.read() as db:
            file = catalog.find(db, path)
            if file is None:
                raise InputError(f"{path} is not in the collection; search says what is")
            if file.status != "indexed":
                raise InputError(f"{path} is not indexed: {file.reason or 'it waits for the next `edge index`'}")
            passages: list[dict[str, Any]] = []
            length = 0
            following: int | None = None
            for chunk in catalog.chunks(db, file.id):
                if chunk.ordinal < passage or chunk.line_end < line_start:
                    continue
                if line_end is not None and chunk.line_start > line_end:
                    continue
                text = read_hits(db, [chunk.id])[chunk.id].text
                length += len(text)
                if passages and length > _LONGEST:
                    # A line may be longer than an answer, so a line does not say where to go on.
                    following = chunk.ordinal
                    break
                passages.append({"line_start": chunk.line_start, "line_end": chunk.line_end, "text": text})
        return {"path": path, "passages": passages, "continues_at_passage": following}

    def status() -> dict[str, Any]:
        """What the collection holds: folders, numbers of files by kind, what failed and why."""
        found = collection.status()
        return {
            "folders": list(found.roots),
            "files": found.indexed,
            "kinds": dict(found.kinds),
            "pending": found.pending,
            "passages": found.chunks,
            "failed": [{"path": file.path, "reason": file.reason} for file in found.failed],
        }

    return make_server("edge-files", _INSTRUCTIONS, [search, get, status], collection.budget)
