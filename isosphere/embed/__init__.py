"""`isosphere embed`: the vectors of texts in files, written to a file."""
