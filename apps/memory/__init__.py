"""Agent memory."""
