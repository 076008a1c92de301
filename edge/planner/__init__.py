"""The planner: divides the stages of a retrieval pipeline over devices, and predicts the cost (RAGO, Jiang et al. 2025;
Jiang's thesis, chapter 3)."""
