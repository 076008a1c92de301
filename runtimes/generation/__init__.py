"""Generators: what writes text."""
