"""API keys and their limits."""
