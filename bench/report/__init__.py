"""Everything that is shown, computed from the store and from nothing else."""
