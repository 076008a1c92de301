"""The verbs of the command line that work on texts, files and collections."""
