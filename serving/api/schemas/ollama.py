"""Ollama's request and response bodies, which follow the rules of `schemas.Body`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from serving.api.schemas.bodies import Body, FullyRead, Strings, called, listed
from serving.inference.embeddings import EmbedOptions


def _some(value: Any) -> Any:
    """Accept a text in place of a list. As in Ollama, an empty text means no texts."""
    return [] if value == "" else listed(value)


_Name = Annotated[str, Field(description="Name of a model in /api/tags. `:latest` may be left out.")]


class OllamaOptions(Body):
    """Ollama's options of a model. All but `num_ctx` are about generation or memory, and are ignored."""

    num_ctx: int | None = Field(
        default=None,
        ge=1,
        description="Must be at least the model's maximum length. Longer texts are truncated at the maximum length.",
    )


class OllamaRequest(FullyRead):
    """Fields of every request that embeds texts."""

    model: _Name
    options: OllamaOptions = OllamaOptions()
    keep_alive: str | float | None = Field(default=None, description="Ignored. Models stay loaded.")


class OllamaEmbedRequest(OllamaRequest):
    """Request of Ollama's /api/embed."""

    input: Annotated[Strings, BeforeValidator(_some, json_schema_input_type=str | list[str])] = Field(
        default=[], examples=[["A list of texts.", "Or one text."]], description="Without a text, no text is embedded."
    )
    truncate: bool = Field(
        default=True, description="Whether to truncate texts that are too long. If false, they are refused."
    )
    dimensions: int | None = Field(
        default=None,
        description="Number of leading dimensions to keep. Vectors are truncated before they are normalized.",
        json_schema_extra={"minimum": 1},
    )

    def embed_options(self) -> EmbedOptions:
        return EmbedOptions(truncate=self.truncate, dimensions=self.dimensions)


class OllamaEmbeddingRequest(OllamaRequest):
    """Request of Ollama's /api/embeddings, which embeds one text."""

    prompt: str = Field(default="", examples=["A text."], description="Without a text, no text is embedded.")


class OllamaShowRequest(Body):
    """Request of Ollama's /api/show. Older clients call the model `name`."""

    model: _Name

    @model_validator(mode="before")
    @classmethod
    def _name(cls, value: Any) -> Any:
        return called("model", value, "name")


class OllamaEmbeddings(BaseModel):
    """Unit vectors, with times in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: Literal[0]
    prompt_eval_count: int = Field(description="Number of embedded tokens.")


class OllamaEmbedding(BaseModel):
    """One unit vector."""

    embedding: list[float]


class OllamaDetails(BaseModel):
    """Format of a model. Facts that are not known are empty."""

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
    """Ollama's description of a model. `model_info` has the keys of GGUF files."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, str | int]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(BaseModel):
    """Version of Ollama."""

    version: str


class OllamaError(BaseModel):
    """Error of an Ollama route."""

    error: str
