"""The planner: pipelines over devices (RAGO, Jiang's thesis, chapter 3), and parameters of an index (FANNS)."""
