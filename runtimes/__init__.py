"""Runtimes, which execute transformer layers or language models: onnxruntime, mlx, and a plain numpy reference."""
