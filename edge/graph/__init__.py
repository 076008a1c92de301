"""The search of a graph of neighbours with several groups of candidates under way."""
