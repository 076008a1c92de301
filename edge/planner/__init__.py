"""The planner: stages of a retrieval pipeline over devices (RAGO, Jiang et al. 2025; Jiang's thesis, chapter 3)."""
