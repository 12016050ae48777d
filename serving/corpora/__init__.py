"""Corpora of documents with their vectors: opening, writing, searching, copying and restoring them."""
