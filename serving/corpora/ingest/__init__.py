"""Parsing of uploads in all formats. An upload is streamed, and each row is checked."""
