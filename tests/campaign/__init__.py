"""The campaign: attacks on every promise of the program, from outside, with counts of the promises that held.

`run.py` starts it from a checkout. A module of this folder that defines an `Attack` (see `base.py`) takes part.
"""
