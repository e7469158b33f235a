"""How fast layers and networks run: time of a forward pass, of a training step, of a step of decoding."""
