"""Encoders as torch modules."""
