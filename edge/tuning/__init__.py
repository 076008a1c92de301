"""Choosing the parameters of an index: recall on sampled queries, a stage cost model, and the search over both."""
