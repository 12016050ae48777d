"""Measurements of the server: embeddings under load, ingestion and restarts, and what they are made of."""
