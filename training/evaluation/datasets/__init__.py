"""Datasets of evaluation and training: their catalogue, download and checks."""
