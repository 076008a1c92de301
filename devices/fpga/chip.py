"""What a design takes of a chip, and how fast its clock may be."""

from __future__ import annotations

FREQUENCY = 90e6
"""Cycles per second of the modelled accelerator."""
