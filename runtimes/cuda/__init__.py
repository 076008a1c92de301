"""Layers on a GPU with torch. Weights and hidden states are in device memory."""
