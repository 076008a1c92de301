"""What tests of MCP need."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("mcp") else ["test_errors.py"]
