"""Training of the default reranker: data, mining, loss, loop, evaluation (extra ``train``, needs torch)."""
