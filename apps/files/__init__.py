"""The verbs of file search."""
