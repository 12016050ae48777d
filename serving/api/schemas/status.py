"""Response bodies about the server's status."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

State = Literal["loading", "ready", "failing", "draining", "failed"]


class StateAnswer(BaseModel):
    """State of the server."""

    state: State


class Pooling(BaseModel):
    """Pooling of token vectors to one vector."""

    pooling: str


class Labels(BaseModel):
    """Names of a cross-encoder's outputs."""

    id2label: dict[str, str]
    label2id: dict[str, int]


class ModelType(BaseModel):
    """Type of the model, in the terms of text-embeddings-inference: an encoder or a cross-encoder."""

    embedding: Pooling | None = None
    reranker: Labels | None = None


class TrainingCorpus(BaseModel):
    """The sentences that an encoder was trained on."""

    name: str | None = Field(description="Name of the corpus file. null if the corpus is not one file.")
    sentences: int | None
    digest: str | None = Field(description="Hash of the sentences.")


class Training(BaseModel):
    """Training of an encoder. Facts missing in its manifest are null."""

    about: str | None = Field(description="Description of the training in one sentence.")
    objective: str | None
    backbone: str | None = Field(description="Model that the training started from.")
    seed: int | None
    corpus: TrainingCorpus | None
    teacher: str | None


class InfoAnswer(BaseModel):
    """Keys of text-embeddings-inference, then our own. Facts about the engine are null until it is loaded."""

    model_config = ConfigDict(extra="forbid")

    model_id: str
    model_sha: str
    model_dtype: str | None
    served_model_name: str
    model_type: ModelType
    max_concurrent_requests: int | None
    max_input_length: int
    max_batch_tokens: int | None
    max_batch_requests: int | None
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    sha: str | None
    docker_label: str | None
    fingerprint: str
    backbone: str
    objective: str | None
    dim: int
    prompts: dict[str, str]
    int8_limit: float | None
    parity: float | None = Field(
        description="Largest difference between numbers of the exported graph's vectors and the original encoder's."
    )
    scores: dict[str, float] = Field(
        description="Scores from the manifest: Spearman correlation × 100 for STS tasks, MRR@10 from 0 to 1 for "
        "self-retrieval."
    )
    training: Training | None = Field(description="Training of the encoder. null if the manifest has no record of it.")
    report: bool = Field(description="Whether `GET /models/{id}/report` returns a promotion report.")
    engine: str | None
    precision: str | None
    device: str | None
    engines: list[dict[str, Any]] | None = Field(
        description="Engines that were measured on this machine. The selected engine is marked."
    )
    index: str
    adapts: bool = Field(
        description="Whether `POST /corpora/{name}/adapt` adapts encoders: the extra `train` is installed, and "
        "`--no-adapt` is not set."
    )
    state: State
