"""The answers of MCP's tools, as a test reads them."""

from __future__ import annotations

import json
from typing import Any

from edge.apps.mcp.protocol import NOTICE


def data_of(result: Any) -> Any:
    """The data of an answer, an object of the SDK or its JSON: they are sent once, between two lines with a mark."""
    document = result if isinstance(result, dict) else result.model_dump(mode="json", by_alias=True)
    assert not document.get("structuredContent")
    (part,) = document["content"]
    notice, begin, data, end = part["text"].split("\n")
    assert (notice, begin[1:]) == (NOTICE, end[2:])
    return json.loads(data)
