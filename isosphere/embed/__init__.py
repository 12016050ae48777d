"""Command `isosphere embed`: embed the texts in files, and write the vectors to a file."""
