"""Readers of uploads in all formats. They stream an upload, and check each row."""

from __future__ import annotations

from serving.corpora.ingest.documents import Checked, Rejected, Upload, checked, names_within, read_upload
from serving.corpora.ingest.rows import Row
from serving.corpora.ingest.uploading import Options, check_is_text, rows
from serving.corpora.ingest.vectors import VectorRule

__all__ = [
    "Checked",
    "Options",
    "Rejected",
    "Row",
    "Upload",
    "VectorRule",
    "check_is_text",
    "checked",
    "names_within",
    "read_upload",
    "rows",
]
