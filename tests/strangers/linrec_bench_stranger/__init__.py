"""What somebody else gives to linrec-bench."""
