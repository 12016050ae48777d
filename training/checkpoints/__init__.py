"""Checkpoints, records and outcomes of runs."""
