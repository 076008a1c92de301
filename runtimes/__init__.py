"""Runtimes, which execute transformer layers or language models."""
