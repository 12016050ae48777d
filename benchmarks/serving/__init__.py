"""Measurements of the server: embeddings under load, ingestion, and restarts."""
