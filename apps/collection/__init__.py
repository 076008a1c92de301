"""A collection: files, chunks, their index, and hybrid search over them."""
