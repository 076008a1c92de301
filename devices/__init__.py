"""Where bytes live and vectors are searched. One file, one class for each device."""
