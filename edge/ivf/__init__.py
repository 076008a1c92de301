"""The tiered IVF index: cluster lists as blocks on disk, in memory, on a device."""
