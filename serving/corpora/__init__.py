"""Corpora of documents with their vectors: writing, searching, copying and restoring corpora."""
