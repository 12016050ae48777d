"""The manifest of a snapshot."""

from __future__ import annotations

from typing import Annotated

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serving.bounds import Count, Fingerprint, Moment
from serving.errors import Invalid
from serving.names import CORPUS_NAME

MANIFEST = "manifest.json"
FORMAT = 1


class Content(BaseModel):
    """The manifest's entry for the corpus file."""

    model_config = ConfigDict(strict=True)

    bytes: Count
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Format(BaseModel):
    model_config = ConfigDict(strict=True)

    format: Count


class Manifest(_Format):
    """The manifest of a snapshot."""

    corpus: Annotated[str, Field(pattern=CORPUS_NAME)]
    created: Moment
    documents: Count
    passages: Count
    fingerprint: Fingerprint | None
    content: Content


def read_manifest(raw: bytes) -> Manifest:
    """Parse and check a manifest.

    Raises:
        Invalid: the format is unknown, or a part is missing or wrong.
    """
    try:
        described = orjson.loads(raw)
        format = _Format.model_validate(described).format
        if format != FORMAT:
            raise Invalid(f"of format {format}, this version reads {FORMAT}", field="snapshot")
        return Manifest.model_validate(described)
    except orjson.JSONDecodeError as error:
        raise Invalid(f"{MANIFEST} is not JSON", field="snapshot") from error
    except ValidationError as error:
        *_, place = ("format", *error.errors(include_input=False)[0]["loc"])
        raise Invalid(
            f"{MANIFEST} does not describe a snapshot: its {place!r} is missing or wrong", field="snapshot"
        ) from error
