"""The suite `stability`: how far the norm of the hidden state moves while a network trains, and why."""
