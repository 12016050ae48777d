"""Training data: files, documents, sentences, positive pairs, augmentations and batches."""
