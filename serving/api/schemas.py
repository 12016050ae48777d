"""Request and response bodies. `null` is absent, unknown fields are ignored, enums are read in any case."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from serving.embedder import EmbedOptions

Encoding = Literal["float", "base64"]


def lower(value: Any) -> Any:
    """Enums are read in any case."""
    return value.lower() if isinstance(value, str) else value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _input_list(value: Any) -> Any:
    """OpenAI's four shapes as two: a text is a list of one, and so are the ids of one text."""
    if isinstance(value, str):
        return [value]
    return [value] if isinstance(value, list) and value and isinstance(value[0], int) else value


def _input_kind(value: Any) -> str:
    return "ids" if isinstance(value, list) and value and isinstance(value[0], list) else "texts"


Strings = Annotated[list[str], Field(fail_fast=True)]
"""Checked up to the first that is none: a body of millions would otherwise become millions of errors."""
Ids = Annotated[list[int], Field(fail_fast=True)]
Texts = Annotated[
    Strings,
    BeforeValidator(_listed, json_schema_input_type=str | list[str]),
    Field(examples=[["A list of texts.", "Or one text."]]),
]
TextsOrIds = Annotated[
    Annotated[Strings, Tag("texts")] | Annotated[list[Ids], Field(fail_fast=True), Tag("ids")],
    Discriminator(_input_kind),
    BeforeValidator(_input_list, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
]
UNION_TAGS = {"texts", "ids"}
"""Steps of an error's location that are ours, not the caller's."""


class Body(BaseModel):
    """The rules that hold for every request body: types are taken at their word, save that an integer is a float."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        return {key: one for key, one in value.items() if one is not None} if isinstance(value, dict) else value


class TruncationFields(Body):
    """Shared by the native inference routes."""

    truncate: bool = True
    truncation_direction: Annotated[Literal["right", "left"], BeforeValidator(lower)] = "right"
    prompt_name: str | None = Field(default=None, description="a key of the bundle's prompts, put before every text")

    def options(self) -> EmbedOptions:
        """What the service wants to know."""
        return EmbedOptions(truncate=self.truncate, direction=self.truncation_direction, prompt_name=self.prompt_name)


class EmbedRequest(TruncationFields):
    """text-embeddings-inference's /embed."""

    inputs: Texts
    normalize: bool = True
    dimensions: int | None = Field(default=None, description="leading dimensions to keep; cut before normalising")
    encoding_format: Annotated[Encoding, BeforeValidator(lower)] = "float"

    def options(self) -> EmbedOptions:
        """What the service wants to know."""
        return EmbedOptions(
            normalize=self.normalize,
            truncate=self.truncate,
            direction=self.truncation_direction,
            prompt_name=self.prompt_name,
            dimensions=self.dimensions,
        )


class SourceSentences(Body):
    """One text against many."""

    source_sentence: str
    sentences: Strings


class SentencePairs(Body):
    """Many texts against many."""

    sentences_a: Strings
    sentences_b: Strings


def _pair_kind(value: Any) -> str:
    return "pairs" if isinstance(value, dict) and value.keys() & {"sentences_a", "sentences_b"} else "source"


class SimilarityRequest(Body):
    """text-embeddings-inference's /similarity, and the matrix form."""

    inputs: Annotated[
        Annotated[SourceSentences, Tag("source")] | Annotated[SentencePairs, Tag("pairs")], Discriminator(_pair_kind)
    ] = Field(examples=[{"source_sentence": "A cat sits outside.", "sentences": ["A feline is outdoors.", "Taxes."]}])
    parameters: TruncationFields = TruncationFields()


UNION_TAGS |= {"source", "pairs"}


class InferenceRequest(Body):
    """`inputs` decides: texts are embedded, an object is a question of similarity."""

    inputs: Any = Field(examples=["A text."])


class OpenAIEmbeddingsRequest(Body):
    """OpenAI's /v1/embeddings."""

    input: TextsOrIds = Field(examples=["A text."])
    model: str | None = None
    encoding_format: Annotated[Encoding, BeforeValidator(lower)] = "float"
    dimensions: int | None = None


class OpenAIEmbedding(BaseModel):
    """One vector: numbers, or base64 over little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Tokens embedded; `truncated` counts the texts that were cut."""

    prompt_tokens: int
    total_tokens: int
    truncated: int


class OpenAIEmbeddings(BaseModel):
    """OpenAI's list of embeddings."""

    object: Literal["list"] = "list"
    data: list[OpenAIEmbedding]
    model: str
    usage: Usage


class OpenAIModel(BaseModel):
    """OpenAI's description of a model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class OpenAIModels(BaseModel):
    """OpenAI's list of models."""

    object: Literal["list"] = "list"
    data: list[OpenAIModel]


class OpenAIErrorBody(BaseModel):
    """What went wrong, and with which parameter."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    """OpenAI's error."""

    error: OpenAIErrorBody


class ErrorAnswer(BaseModel):
    """The native family's error."""

    error: str
    error_type: str
