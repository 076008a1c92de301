"""Training of the default reranker: data, mining, loss, loop, records of scores (extra ``train``, needs torch)."""
