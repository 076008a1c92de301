"""When work starts, in which order, and whether it pays (PipeRAG)."""
