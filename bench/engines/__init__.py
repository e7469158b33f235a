"""What carries cells to processors. Results travel by files, so an engine that dies loses nothing."""
