"""The data sets: one task a file."""
