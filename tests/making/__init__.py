"""Made-up models for tests and benchmarks: random weights in published shapes, tokenizers, and GGUF files."""
