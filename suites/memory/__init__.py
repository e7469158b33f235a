"""How much memory layers and networks take: forward, in training, in decoding."""
