"""Thin bridges to other frameworks; each needs its own extra."""
