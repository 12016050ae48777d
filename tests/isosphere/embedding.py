"""Helpers of the tests of `isosphere embed`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isosphere import Encoder
from isosphere.embed.embedding import Done, Options, embed

TEXTS = ["a cat can sleep", "the dog", 'the man, "he" can play', "Hällo wörld", "a book", "rain"]
ENGINE = ["--engine", "onnxruntime", "--precision", "fp32"]


def text_file(file: Path, texts: Sequence[str]) -> Path:
    file.write_text("".join(f"{text}\n" for text in texts))
    return file


def run(encoder: Encoder, *files: Path, out: Path, force: bool = False, **options: Any) -> Done:
    return embed(encoder, [*map(str, files)], out, Options(**options), force=force, stream=io.StringIO())
