"""Encoding of training sentences: views, packing, attention, gradient caching and adapters."""
