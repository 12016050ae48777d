"""Inference: encoders with their engines, tokenizers and request queues."""
