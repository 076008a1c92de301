"""Generators, which write text: language models, and others with the same interface."""
