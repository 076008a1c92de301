"""Units in hardware that are simulated and measured, and are no part of the accelerator (`devices/fpga`)."""
