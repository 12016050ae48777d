"""Served encoders, and the queue of each from texts to vectors."""
