"""Layers of encoders on a GPU through WebGPU (wgpu). Weights and hidden states are in the GPU's memory."""
