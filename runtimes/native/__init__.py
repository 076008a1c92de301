"""Layers of int8 encoders, compiled from C at installation, for processors with AVX-512 VNNI or AMX."""
