"""MCP servers over stdio."""
