"""A static student: an encoder with one vector per token, initialised by a linear fit to a base encoder.

Sources: Model2Vec (Tulkens and van Dongen, 2024) builds a static encoder from an encoder's vectors of single tokens.
The weights of frequent tokens are from Arora, Liang and Ma (ICLR 2017).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from models.bundle.tokenizer import Tokens
from models.encoder.encoder import Encoder
from models.encoder.static import StaticConfig, StaticModel
from training.encoding.views import Teacher

SENTENCES = 32_768
"""Maximum number of sentences to which the initial vectors are fitted."""
SMOOTHING = 1e-3
"""Constant a in the weight a / (a + p).

Here, p is the relative frequency of the token.
"""
RIDGE = 0.1
"""Penalty of the linear map, relative to the mean variance of a dimension."""
SCALE = 2.0
"""Mean length of the initial token vectors.

Cosines do not depend on this length, but the relative size of a training step does.
"""
SPECIAL = 1e-3
"""Length of the special tokens' vectors.

They give an empty text a direction. They are too short to change another text's vector noticeably.
"""
CHUNK = 256
"""Number of texts that the base encodes at once."""


def without_layers(base: Encoder) -> Encoder:
    """Return a static encoder with the tokenizer, maximum length and prompts of `base`, and random token vectors."""
    (empty,) = base.tokenizer.encode([""])
    config = StaticConfig(
        vocab_size=len(base.backbone.get_input_embeddings().get_parameter("weight")),
        hidden_size=base.dim,
        special_ids=sorted({*empty.ids.tolist()}),
    )
    return Encoder(
        StaticModel(config),
        base.hub_tokenizer,
        pooling="mean",
        max_length=base.max_length,
        prompts=base.prompts,
        origin=base.origin,
    )


def start(student: Encoder, base: Encoder, sentences: Sequence[str], autocast: torch.dtype | None = None) -> None:
    """Initialise the token vectors of `student` by a linear fit to its base.

    At first, the vector of a token is the base's unit vector of a text that is only this token, times a weight that is
    small for frequent tokens. With these token vectors, the student encodes `sentences`. A ridge regression finds the
    matrix that maps the results to the base's vectors of `sentences`. The token vectors are multiplied by this matrix,
    and scaled to the mean length `SCALE`. Special tokens get short vectors, as described at `SPECIAL`.
    """
    table = student.backbone.get_input_embeddings().get_parameter("weight")
    tokens = student.tokenizer.encode(sentences)
    teacher = Teacher(base, autocast)
    with torch.no_grad():
        table.copy_(_alone(teacher, student, len(table)) * _weights(tokens, len(table)).to(table))
        _set_specials(student, table)
        ours = normalize(torch.from_numpy(student.encode(sentences)), dim=1)
        theirs = normalize(_vectors(teacher, tokens), dim=1)
        table.copy_(table @ _ridge(ours, theirs).to(table))
        table.mul_(SCALE / table.norm(dim=1).mean())
        _set_specials(student, table)


def _alone(teacher: Teacher, student: Encoder, rows: int) -> Tensor:
    """Return the teacher's unit vectors (rows, D). Row i is the vector of a text that is only the token with id i."""
    (empty,) = student.tokenizer.encode([""])
    first, last = empty.ids[: len(empty.ids) // 2], empty.ids[len(empty.ids) // 2 :]
    texts = [Tokens(ids := np.array([*first, token, *last]), len(ids)) for token in range(rows)]
    return normalize(_vectors(teacher, texts), dim=1)


def _vectors(teacher: Teacher, tokens: Sequence[Tokens]) -> Tensor:
    chunks = (tokens[start : start + CHUNK] for start in range(0, len(tokens), CHUNK))
    return torch.cat([teacher(chunk).float().cpu() for chunk in chunks])


def _weights(tokens: Sequence[Tokens], rows: int) -> Tensor:
    counts = np.bincount(np.concatenate([each.ids for each in tokens]), minlength=rows) + 0.5
    return torch.from_numpy(SMOOTHING / (SMOOTHING + counts / counts.sum())).unsqueeze(1)


def _ridge(x: Tensor, y: Tensor) -> Tensor:
    gram = x.T @ x
    solved: Tensor = torch.linalg.solve(gram + RIDGE * gram.diagonal().mean() * torch.eye(len(gram)), x.T @ y)
    return solved


def _set_specials(student: Encoder, table: Tensor) -> None:
    mean = normalize(table.mean(dim=0), dim=0)
    table[student.backbone.config.special_ids] = SPECIAL * mean
