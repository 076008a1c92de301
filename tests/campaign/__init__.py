"""The campaign: attacks on every promise of the program, from outside, with counts of the promises that held."""
