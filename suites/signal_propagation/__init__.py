"""How much energy a recurrence keeps: theory, Monte Carlo, and the layers themselves."""
