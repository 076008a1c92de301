"""The knowledge tree: KV states of documents in context, host memory and on disk (RAGCache)."""
