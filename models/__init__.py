"""Models as files: architectures, weight names, packing, tokenizers, the registry and downloads. Runs no model."""
