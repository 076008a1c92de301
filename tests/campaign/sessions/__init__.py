"""Programs that run long within one limit."""
