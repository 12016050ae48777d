"""Ollama's request and response bodies. The requests are subclasses of `bodies.Body`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field

from serving.api.schemas.bodies import Body, FullyRead, Strings, listed


def _some(value: Any) -> Any:
    """Convert a text to a list of one text, and an empty text to an empty list, as Ollama does."""
    return [] if value == "" else listed(value)


_Name = Annotated[str, Field(description="Name of a model in /api/tags. The tag `:latest` is optional.")]


class OllamaOptions(Body):
    """Ollama's options of a model.

    The server uses `num_ctx` only. The other options are for text generation or memory, and are ignored.
    """

    num_ctx: int | None = Field(
        default=None,
        ge=1,
        description="Context length in tokens. It must not be below the model's maximum length, to which longer "
        "texts are truncated.",
    )


class OllamaRequest(FullyRead):
    """Fields that all of Ollama's requests for embeddings have."""

    model: _Name
    options: OllamaOptions = OllamaOptions()
    keep_alive: str | float | None = Field(default=None, description="Ignored, because models always stay loaded.")


class OllamaEmbedRequest(OllamaRequest):
    """Request of Ollama's /api/embed."""

    input: Annotated[Strings, BeforeValidator(_some, json_schema_input_type=str | list[str])] = Field(
        default=[],
        examples=[["A list of texts.", "Or one text."]],
        description="Texts to embed. Without texts, the answer has no vectors.",
    )
    truncate: bool = Field(
        default=True, description="If true, texts that are too long are truncated. If false, they are refused."
    )
    dimensions: int | None = Field(
        default=None,
        description="Number of leading dimensions to return. Vectors are truncated first and normalized afterwards.",
        json_schema_extra={"minimum": 1},
    )


class OllamaEmbeddingRequest(OllamaRequest):
    """Request of Ollama's /api/embeddings, which embeds one text."""

    prompt: str = Field(
        default="",
        examples=["A text."],
        description="Text to embed. For an empty text, the vector in the answer is empty.",
    )


class OllamaShowRequest(Body):
    """Request of Ollama's /api/show.

    Older clients use the field `name` instead of `model`.
    """

    other_names: ClassVar[Mapping[str, str]] = {"name": "model"}

    model: _Name


class OllamaEmbeddings(BaseModel):
    """Unit vectors, and times in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: Literal[0]
    prompt_eval_count: int = Field(description="Number of embedded tokens.")


class OllamaEmbedding(BaseModel):
    """A unit vector."""

    embedding: list[float]


class OllamaDetails(BaseModel):
    """Format of a model. Unknown facts are empty strings or lists."""

    parent_model: str
    format: Literal["onnx"]
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(BaseModel):
    """A model in Ollama's list."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaModels(BaseModel):
    """Ollama's list of models."""

    models: list[OllamaModel]


class OllamaDescription(BaseModel):
    """Ollama's description of a model. The keys of `model_info` are those of GGUF files."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, str | int]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(BaseModel):
    """Version of Ollama's API."""

    version: str


class OllamaError(BaseModel):
    """Error response of Ollama's routes."""

    error: str
