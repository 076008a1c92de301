"""What a model is: architecture, weight names, packing, tokenizer, registry and pull. Runs nothing."""
