"""How the encoder runs over a step's sentences: which passes, how they are packed, and in how much memory."""
