"""`python -m bench`: the same as the command `bench`."""

from bench.cli import main

main()
