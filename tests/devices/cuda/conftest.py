from making.interpreted_triton import load

load()
