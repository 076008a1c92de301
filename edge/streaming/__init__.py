"""Layers, weights and hidden states that pass through memory in turn (GRATING)."""
