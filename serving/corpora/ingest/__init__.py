"""Readers of uploads in all formats. They stream an upload, and check each row."""
