"""The planner: divides the stages of a retrieval pipeline over devices, and predicts the cost.

Besides time to first token, time per token and throughput, it plans peak memory. `schema` describes a pipeline,
`tables` the cost of each stage. `modelled` computes tables for devices that this machine does not have. `search` finds
the schedules that no other schedule dominates. Every table carries its origin: measured, predicted, calibrated or
circular.

Source: RAGO (Jiang et al. 2025); Jiang's thesis, chapter 3.
"""
