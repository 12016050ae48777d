"""Readers of files that need a parser: Parquet, Arrow, Markdown, HTML, PDF and DOCX.

They run in a process of their own (`python -m serving.readers`), because a small file can make a parser take all
memory, run for hours or crash. The package imports nothing of the server, so that the process starts quickly.
"""
