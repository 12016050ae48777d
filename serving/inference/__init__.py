"""Inference: encoders, their engines, tokenizers and request queues."""
