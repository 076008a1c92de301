"""A search accelerator as a design in Amaranth: its units, its simulation, its cycles, and what it takes of a chip."""
