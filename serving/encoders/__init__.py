"""Served encoders. Each has a queue of texts to embed."""
