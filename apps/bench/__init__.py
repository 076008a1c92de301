"""Benchmarks: this runtime and its peers, side by side in one run."""
