"""How time and memory are taken, and what the machine can do at best. Knows no framework and no suite."""
