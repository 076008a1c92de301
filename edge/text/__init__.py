"""Sentences of a text, and the characters in it that must not be shown."""
