"""Benchmarks that measure this program and its peers side by side in one run."""
