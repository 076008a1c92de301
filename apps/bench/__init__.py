"""`edge bench`: reranking, search and indexing measured on this machine, with a person's own data."""
