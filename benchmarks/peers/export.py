"""Script `python export.py BACKEND MODEL FOLDER`, which exports a model in sentence-transformers' own environment."""

from __future__ import annotations

import sys
from typing import Any

from sentence_transformers import SentenceTransformer

backend: Any
backend, model, folder = sys.argv[1:]
SentenceTransformer(model, backend=backend, model_kwargs={"export": True}).save_pretrained(folder)
