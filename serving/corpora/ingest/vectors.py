"""Vectors that callers computed: the rule on which documents have a vector, and checks of vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from models.runtimes.base import Floats
from serving.corpora.ingest.rows import VECTOR
from serving.errors import Conflict, Invalid
from serving.operations.bounds import MAX_VECTOR

UNIT = 1e-7
"""Maximum difference of a vector's length from 1 at which the vector is stored unchanged. The length of a float32 unit
vector differs by at most half of this value, so a vector that is exported and uploaded again does not change by a
single bit."""


@dataclass
class VectorRule:
    """The rule of a corpus for the field `vector` of its documents."""

    corpus: str
    own: bool
    """True if the corpus has own vectors, so that each document must have a vector."""
    dim: int | None = None
    """Number of dimensions of the vectors. None until the first vector sets it."""
    embedded_by: str = ""
    """Fingerprint of the encoder that computed the documents' vectors. If it is empty and the corpus has an encoder,
    documents must not have a vector."""

    def vector(self, given: Any, field: str) -> Floats | None:
        """Return the unit vector (D,) of a document, or None if the corpus's encoder embeds the document.

        Raises:
            Conflict: a vector is given although the corpus's encoder embeds the document, or a required vector is
                missing.
            Invalid: `given` is not a vector, or has another dimension than the corpus.
        """
        if not (self.own or self.embedded_by):
            if given is None:
                return None
            raise Conflict(
                f"an encoder embeds corpus {self.corpus!r}: leave the field out, move it into metadata, "
                "use `embedded_by` if this encoder computed the vector, "
                'or upload to a corpus created with {"vectors": "own"}',
                field=field,
            )
        if given is None:
            own = f"the vectors of corpus {self.corpus!r} come with its documents"
            why = "of `embedded_by`" if self.embedded_by else own
            raise Conflict(f"is required, because {why}. Only JSON, Parquet and Arrow can contain vectors", field=field)
        unit = unit_vector(given, field)
        self.dim = self.dim or len(unit)
        if len(unit) != self.dim:
            raise Invalid(f"{len(unit)} numbers, but corpus {self.corpus!r} has {self.dim} dimensions", field=field)
        return unit


def unit_vector(given: Any, field: str = VECTOR) -> Floats:
    """Convert a list of numbers to a unit vector (D,).

    The numbers are scaled in float64, so that no finite vector overflows.

    Raises:
        Invalid: `given` is not a list of finite numbers, is too long or empty, or is a zero vector.
    """
    if not isinstance(given, list) or not {*map(type, given)} <= {int, float}:
        raise Invalid("must be a list of numbers", field=field)
    if len(given) > MAX_VECTOR:
        raise Invalid(f"{len(given)} numbers are more than the {MAX_VECTOR} of one vector", field=field)
    try:
        vector = np.array(given, dtype=np.float64)
    except OverflowError:
        raise Invalid("numbers must be finite", field=field) from None
    if not np.isfinite(vector).all():
        raise Invalid("numbers must be finite", field=field)
    largest = float(np.abs(vector).max(initial=0.0))
    if not largest:
        raise Invalid("has no direction: it is empty or all zeros", field=field)
    with np.errstate(over="ignore"):  # the length may overflow, and an infinite length is not 1 either
        length = np.linalg.norm(vector)
    if abs(length - 1) > UNIT:
        vector /= largest
        vector /= np.linalg.norm(vector)
    unit: Floats = vector.astype(np.float32)
    return unit
