"""Encoding of a step's sentences: division into passes, packing, and gradient caching."""
