"""Training corpora and their batches."""
