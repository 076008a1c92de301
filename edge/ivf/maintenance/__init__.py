"""The upkeep of an index: flushing, training, splitting, merging and cleaning."""
