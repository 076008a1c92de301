"""Benchmarks of this program beside its peers, each measurement in a process of its own: `python -m tests.bench`."""
