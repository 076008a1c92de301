"""From files to chunks with positions."""
