"""Texts to vectors: encoders, their queues, tokenizers and engines."""
