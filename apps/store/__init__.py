"""What collection and memory share: the database, BM25, fusion."""
