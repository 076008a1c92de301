"""A GPU through torch: its memory, its streams, and the search of the lists it holds."""
