"""What is uploaded, in whatever format, as checked documents: read as a stream, never the whole in memory."""

from __future__ import annotations

from serving.ingest.documents import Checked, Rejected, Upload, checked, names_within, read_upload
from serving.ingest.rows import Row
from serving.ingest.uploading import Options, check_is_text, rows

__all__ = [
    "Checked",
    "Options",
    "Rejected",
    "Row",
    "Upload",
    "check_is_text",
    "checked",
    "names_within",
    "read_upload",
    "rows",
]
