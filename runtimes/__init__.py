"""What executes a layer or a language model: onnxruntime, mlx, a plain numpy reference."""
