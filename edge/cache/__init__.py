"""Blocks that stay in memory, and blocks that are fetched ahead of their use (TeleRAG)."""
