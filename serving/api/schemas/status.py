"""Response bodies about the server's state."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

State = Literal["loading", "ready", "failing", "draining", "failed"]


class StateAnswer(BaseModel):
    """State of the server."""

    state: State


class Pooling(BaseModel):
    """Pooling method, which combines token vectors into one vector."""

    pooling: str


class Labels(BaseModel):
    """Names of a cross-encoder's output labels."""

    id2label: dict[str, str]
    label2id: dict[str, int]


class ModelType(BaseModel):
    """Type of the model as text-embeddings-inference reports it: an encoder or a cross-encoder."""

    embedding: Pooling | None = None
    reranker: Labels | None = None


class TrainingCorpus(BaseModel):
    """Sentences on which an encoder was trained."""

    name: str | None = Field(description="Name of the file with the sentences. null if they were not in a single file.")
    sentences: int | None
    digest: str | None = Field(description="Hash of the sentences.")


class Training(BaseModel):
    """Training of an encoder. Facts that the manifest does not contain are null."""

    about: str | None = Field(description="Description of the training in one line.")
    objective: str | None
    backbone: str | None = Field(description="Model from which the training started.")
    seed: int | None
    corpus: TrainingCorpus | None
    teacher: str | None


class InfoAnswer(BaseModel):
    """Answer of /info: the keys of text-embeddings-inference, followed by keys of Isosphere.

    Facts about the engine are null until the engine is loaded.
    """

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
        description="Largest difference between components of the exported graph's vectors and of the original "
        "encoder's vectors."
    )
    scores: dict[str, float] = Field(
        description="Evaluation scores from the manifest. STS tasks have Spearman correlation × 100. Self-retrieval "
        "has MRR@10 from 0 to 1."
    )
    training: Training | None = Field(description="Training of the encoder. null if the manifest has no record of it.")
    report: bool = Field(
        description="True if the bundle has a promotion report, which `GET /models/{id}/report` returns."
    )
    engine: str | None
    precision: str | None
    device: str | None
    engines: list[dict[str, Any]] | None = Field(
        description="Engines that were measured on this machine. The engine in use has `chosen: true`."
    )
    index: str
    adapts: bool = Field(
        description="True if `POST /corpora/{name}/adapt` is available: the extra `train` is installed, and "
        "`--no-adapt` is not set."
    )
    state: State
