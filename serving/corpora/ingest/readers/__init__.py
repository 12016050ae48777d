"""Readers of files that need a parser: Parquet, Arrow, Markdown, HTML, PDF and DOCX.

The readers run in a child process (`python -m serving.corpora.ingest.readers`), because even a small file can make a
parser use all memory, run for hours or crash. The package does not import the server, so that the process starts
quickly.
"""
